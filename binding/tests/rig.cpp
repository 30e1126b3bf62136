#include "rig.h"

namespace test {

void Rig::SetUp() { calrt_emulator_clear(); }

void Rig::TearDown() {
    calrt_emulator_clear();
    calrt_emulator_release();
    close();
}

void Rig::open(const Shape &shape) {
    files = std::make_unique<CalbinDirectory>(shape);
    const std::string lock = files->path("lock"), no_pci = files->path("no-pci");
    const calculet_open_options options{lock.c_str(), no_pci.c_str(), 0};
    ASSERT_CODE(CALCULET_OK, calculet_device_open(&options, &device));
    std::vector<const char *> shards;
    for (const auto &shard : files->shards()) shards.push_back(shard.c_str());
    ASSERT_CODE(
        CALCULET_OK,
        calculet_calbin_open(device, shards.data(), static_cast<std::uint32_t>(shards.size()), &calbin));
    roles = {{CALCULET_PREFILL, "prefill", nullptr, nullptr, nullptr, nullptr, nullptr, nullptr}};
    role_names.clear();
    for (const auto batch : shape.batches)
        role_names.push_back(batch == 1 ? "decode" : "decode_b" + std::to_string(batch));
    for (const auto &role : role_names)
        roles.push_back({CALCULET_DECODE, role.c_str(), nullptr, nullptr, nullptr,
                         role == "decode" ? nullptr : "lane_valid", nullptr, nullptr});
    ASSERT_CODE(
        CALCULET_OK,
        calculet_model_configure(calbin, roles.data(), static_cast<std::uint32_t>(roles.size()), &model));
}

void Rig::close() {
    if (model != nullptr) {
        const auto code = calculet_model_unload(model);
        EXPECT_TRUE(code == CALCULET_OK || (is_lost_expected && code == CALCULET_NOT_QUIET)) << calculet_error_text();
    }
    if (calbin != nullptr) {
        EXPECT_CODE(CALCULET_OK, calculet_calbin_close(calbin));
    }
    if (device != nullptr) {
        EXPECT_CODE(is_lost_expected ? CALCULET_NOT_QUIET : CALCULET_OK, calculet_device_close(device));
    }
    model = nullptr;
    calbin = nullptr;
    device = nullptr;
}

Sequence Rig::allocate(std::uint32_t lane, std::uint32_t tokens) {
    Sequence sequence;
    EXPECT_CODE(CALCULET_OK, calculet_kv_allocate(model, lane, tokens, &sequence.id));
    return sequence;
}

calculet_code Rig::prepare(
    std::uint32_t engine, std::uint32_t role, const Sequence &sequence, const std::vector<std::int32_t> &tokens,
    std::uint32_t row) {
    const calculet_lane_work lane{sequence.id, tokens.data(), static_cast<std::uint32_t>(tokens.size()),
                                  sequence.length, row};
    const calculet_job job{&lane, nullptr, role, 1, 0, 1};
    return calculet_job_prepare(model, engine, &job);
}

calculet_code Rig::run(
    std::uint32_t engine, std::uint32_t role, Sequence &sequence, const std::vector<std::int32_t> &tokens,
    std::int32_t *said, double timeout_s, std::uint32_t row) {
    if (const auto code = prepare(engine, role, sequence, tokens, row); code != CALCULET_OK) return code;
    std::uint64_t ticket = 0;
    if (const auto code = calculet_job_submit(model, engine, &ticket); code != CALCULET_OK) return code;
    calculet_result result{};
    if (const auto code = calculet_job_wait(model, engine, ticket, timeout_s, &result); code != CALCULET_OK)
        return code;
    append(sequence, tokens);
    if (said != nullptr) *said = best(result, row);
    return CALCULET_OK;
}

void Rig::append(Sequence &sequence, const std::vector<std::int32_t> &tokens) {
    for (const auto token : tokens) sequence.history = emulator::extend(sequence.history, token);
    sequence.length += static_cast<std::uint32_t>(tokens.size());
}

std::int32_t Rig::best(const calculet_result &result, std::uint32_t row) {
    const auto *logits = reinterpret_cast<const std::uint16_t *>(
        static_cast<const char *>(result.logits) + row * result.row_stride_bytes);
    std::int32_t chosen = -1;
    for (std::uint32_t token = 0; token < result.vocab_size; ++token)
        if (logits[token] != 0) {
            EXPECT_EQ(chosen, -1) << "two logits stand out";
            EXPECT_EQ(logits[token], 0x42C8) << "bfloat16 of 100";
            chosen = static_cast<std::int32_t>(token);
        }
    return chosen;
}

}  // namespace test
