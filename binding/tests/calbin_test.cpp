// What a calbin says of itself is passed on as it is; what it lacks is refused by name.
#include "rig.h"

namespace {

using Calbin = test::Rig;
using test::Shape;

calculet_code open_spoilt(calculet_device *device, const test::CalbinDirectory &files) {
    std::vector<const char *> shards;
    for (const auto &shard : files.shards()) shards.push_back(shard.c_str());
    calculet_calbin *calbin = nullptr;
    return calculet_calbin_open(device, shards.data(), static_cast<std::uint32_t>(shards.size()), &calbin);
}

TEST_F(Calbin, IsInspectedWithTodaysFaults) {
    open({{1, 4}, 4, 128, 300, 0, {5, 7}});
    calculet_calbin_info info;
    ASSERT_CODE(CALCULET_OK, calculet_calbin_inspect(calbin, &info));
    EXPECT_STREQ(info.schema_version, "v0.1");
    EXPECT_EQ(info.max_batch_size, 4U);
    EXPECT_EQ(info.max_seq_len, 128U);
    EXPECT_EQ(info.lanes, 4U);
    EXPECT_EQ(info.submodels, 3U);
    EXPECT_EQ(info.vocab_size, 300U);
    EXPECT_EQ(info.kv_token_bytes, 98304U);
    calculet_submodel_info submodel;
    ASSERT_CODE(CALCULET_OK, calculet_submodel_inspect(calbin, 0, &submodel));
    EXPECT_STREQ(submodel.name, "prefill");
    EXPECT_STREQ(submodel.model_type, "llm_decode") << "mistyped, as today's are: passed on and not believed";
    EXPECT_EQ(submodel.workload, 0U);
    EXPECT_EQ(submodel.target_chips, 0U);
    ASSERT_CODE(CALCULET_OK, calculet_submodel_inspect(calbin, 2, &submodel));
    EXPECT_EQ(submodel.batch, 4U);
    EXPECT_EQ(submodel.tensors, 4U);
    calculet_tensor_info tensor;
    ASSERT_CODE(CALCULET_OK, calculet_tensor_inspect(calbin, 0, 0, &tensor));
    EXPECT_STREQ(tensor.name, "inputs[0]");
    EXPECT_STREQ(tensor.dtype, "int32");
    EXPECT_EQ(tensor.direction, CALCULET_INPUT);
    EXPECT_EQ(tensor.rank, 2U);
    EXPECT_EQ(tensor.shape[1], CALCULET_DYNAMIC);
    calculet_csr_info csr;
    ASSERT_CODE(CALCULET_OK, calculet_csr_inspect(calbin, 2, 0, &csr));
    EXPECT_STREQ(csr.name, "past_kv_cur_seq_len");
    EXPECT_EQ(csr.elements, 4U);
    EXPECT_CODE(CALCULET_INVALID, calculet_submodel_inspect(calbin, 3, &submodel));
    EXPECT_TEXT("submodel");
    EXPECT_CODE(CALCULET_INVALID, calculet_tensor_inspect(calbin, 0, 3, &tensor));
    EXPECT_CODE(CALCULET_INVALID, calculet_csr_inspect(calbin, 0, 3, &csr));
}

TEST_F(Calbin, ARoleIsFoundByItsExactName) {
    open();
    ASSERT_CODE(CALCULET_OK, calculet_model_unload(model));
    model = nullptr;
    ASSERT_CODE(CALCULET_OK, calculet_device_reset_configuration(device));
    const auto refused = [&](calculet_role role, calculet_code code, const std::string &text) {
        calculet_model *none = nullptr;
        EXPECT_CODE(code, calculet_model_configure(calbin, &role, 1, &none));
        EXPECT_TEXT(text);
        EXPECT_EQ(none, nullptr);
    };
    const calculet_role good = roles[0];
    auto role = good;
    role.submodel = "prefil";  // part of a name decides nothing
    refused(role, CALCULET_BAD_CALBIN, "prefil");
    role = good;
    role.submodel = nullptr;
    refused(role, CALCULET_INVALID, "roles.submodel");
    role = good;
    role.role = 3;
    refused(role, CALCULET_INVALID, "roles.role");
    role = good;
    role.tokens = "outputs[0]";
    refused(role, CALCULET_BAD_CALBIN, "outputs[0]");
    role = good;
    role.logits = "inputs[0]";
    refused(role, CALCULET_BAD_CALBIN, "inputs[0]");
    role = good;
    role.lane_mask = "inputs[0]";
    refused(role, CALCULET_BAD_CALBIN, "uint8");
    role = good;
    role.past_length_csr = "past";
    refused(role, CALCULET_BAD_CALBIN, "past");
    role = good;
    role.role = CALCULET_DECODE;
    refused(role, CALCULET_BAD_CALBIN, "decode");
    ASSERT_CODE(CALCULET_OK, calculet_model_configure(calbin, &good, 1, &model)) << "nothing was left configured";
}

TEST_F(Calbin, ASpoiltFileIsRefused) {
    open();
    const std::string whole = test::metadata_of({});
    const auto refused = [&](const std::string &metadata, const test::Spoil &spoil, const std::string &text) {
        const test::CalbinDirectory spoilt(metadata, {5, 7}, spoil);
        EXPECT_CODE(CALCULET_BAD_CALBIN, open_spoilt(device, spoilt));
        EXPECT_TEXT(text);
    };
    const auto none = [](std::string &) {};
    refused(whole, [](std::string &bytes) { bytes.resize(40); }, "shorter");
    refused(whole, [](std::string &bytes) { bytes[0] = 'X'; }, "magic");
    refused(whole, [](std::string &bytes) { bytes[20] ^= 1; }, "checksum");
    refused(whole, [](std::string &bytes) { bytes[70] ^= 1; }, "checksum");
    refused(whole, [](std::string &bytes) { bytes += "more"; }, "longer or shorter");
    refused(whole.substr(0, whole.size() - 4), none, "should begin with end");
    refused(whole + "more\n", none, "after end");
    refused("name only\n", none, "compiler");
    auto changed = whole;
    changed.replace(changed.find("lanes 4"), 7, "lanes 0");
    refused(changed, none, "0 is not from 1 to 1024");
    changed = whole;
    changed.replace(changed.find("bfloat16"), 8, "float8_t");
    refused(changed, none, "no use");
    const test::CalbinDirectory fine;
    const char *doubled[] = {fine.shards()[0].c_str(), fine.shards()[0].c_str()};
    calculet_calbin *unused = nullptr;
    EXPECT_CODE(CALCULET_BAD_CALBIN, calculet_calbin_open(device, doubled, 2, &unused));
    EXPECT_TEXT("doubled");
    const char *absent[] = {"/nowhere/at/all"};
    EXPECT_CODE(CALCULET_NO_FILE, calculet_calbin_open(device, absent, 1, &unused));
    EXPECT_CODE(CALCULET_INVALID, calculet_calbin_open(device, absent, 0, &unused));
    EXPECT_TEXT("shard_count");
}

}  // namespace
