#include "model.h"

#include <algorithm>
#include <cmath>

using calculet::Failure;
using calculet::Hold;
using calculet::Role;
using calculet::require;

// ---- configuring and unloading ------------------------------------------------------------------------------------

calculet_model::Slot::Slot(const Role &role, std::shared_ptr<calculet::vendor::Buffers> of)
    : tokens(std::size_t{role.batch} * role.row_tokens * sizeof(std::int32_t)),
      positions(tokens.bytes()),
      mask(role.batch),
      logits(std::size_t{role.batch} * role.vocab_size * (role.is_bfloat16 ? 2 : 4)),
      buffers(std::move(of)) {
    buffers->map_input(role.tokens, tokens.as<void>(), tokens.bytes());
    buffers->map_input(role.positions, positions.as<void>(), positions.bytes());
    if (role.mask) buffers->map_input(*role.mask, mask.as<void>(), mask.bytes());
    buffers->map_output(role.logits, logits.as<void>(), logits.bytes());
}

calculet_model::calculet_model(calculet_calbin &calbin, const calculet_role *roles, std::uint32_t role_count)
    : device(calbin.device), calbin_(calbin), sequences_(calbin.vendor->describe().lanes) {
    for (std::uint32_t index = 0; index < role_count; ++index)
        roles_.push_back(calculet::find_role(calbin, roles[index]));
    calbin.vendor->configure();
    try {
        kv_ = calbin.vendor->make_kv();
        make_slots();
    } catch (...) {
        slots_.clear();
        kv_.reset();
        calculet::guard([&] {
            device.vendor->reset_configuration();
            return CALCULET_OK;
        });
        throw;
    }
    ++device.models;
    ++calbin.models;
}

void calculet_model::make_slots() {
    for (std::uint32_t engine = 0; engine < device.engines; ++engine)
        for (const auto &role : roles_)
            slots_.push_back(std::make_shared<Slot>(role, calbin_.vendor->make_buffers(kv_, role.submodel, engine)));
}

calculet_model::~calculet_model() {
    --device.models;
    --calbin_.models;
}

calculet_code calculet_model::unload(std::unique_ptr<calculet_model> model) {
    auto &device = model->device;
    if (device.has_job()) {
        static_cast<void>(model.release());
        throw Failure(CALCULET_WRONG_STATE, "a job is in flight: wait for it first");
    }
    for (std::uint32_t engine = 0; engine < device.engines; ++engine) device.engine(engine).discard();
    model.reset();
    if (!device.is_stuck()) return CALCULET_OK;
    return calculet::remember(CALCULET_NOT_QUIET, "unloaded; the process keeps the buffers of a lost job");
}

// ---- KV sequences -------------------------------------------------------------------------------------------------

bool calculet_model::can_allocate(std::uint32_t count) {
    const std::lock_guard lock(device.vendor_calls);
    return kv_->can_allocate(count);
}

std::uint64_t calculet_model::allocate(std::uint32_t lane, std::uint32_t tokens) {
    const auto &description = calbin_.vendor->describe();
    if (lane >= description.lanes)
        throw Failure(CALCULET_INVALID, "lane: there are " + std::to_string(description.lanes));
    if (tokens == 0 || tokens > description.max_seq_len)
        throw Failure(CALCULET_INVALID, "tokens: from 1 to " + std::to_string(description.max_seq_len));
    if (sequences_.is_taken(lane)) throw Failure(CALCULET_NO_CAPACITY, "lane: there is a sequence in it");
    std::uint64_t sequence = 0;
    {
        const std::lock_guard lock(device.vendor_calls);
        if (!kv_->allocate(lane, tokens, sequence))
            throw Failure(CALCULET_NO_CAPACITY, "the runtime has no room for another sequence");
    }
    sequences_.add(sequence, lane, tokens);
    return sequence;
}

calculet_code calculet_model::release(std::uint64_t sequence) {
    if (sequences_.is_in_job(sequence))
        return calculet::remember(CALCULET_UNCONFIRMED, "the sequence is in a job, or was in one that was lost");
    {
        const std::lock_guard lock(device.vendor_calls);
        if (!kv_->release(sequence))
            return calculet::remember(CALCULET_UNCONFIRMED, "the runtime did not confirm that the lane is empty");
    }
    sequences_.remove(sequence);
    return CALCULET_OK;
}

calculet_code calculet_model::remove_tail(std::uint64_t sequence, std::uint32_t tokens) {
    require(!sequences_.is_in_job(sequence), "sequence: it is in a job, or was in one that was lost");
    require(tokens <= sequences_.length(sequence), "tokens: the sequence has not so many");
    {
        const std::lock_guard lock(device.vendor_calls);
        if (!kv_->remove_tail(sequence, tokens))
            return calculet::remember(CALCULET_UNCONFIRMED, "the runtime did not confirm that the tail is gone");
    }
    sequences_.shorten(sequence, tokens);
    return CALCULET_OK;
}

calculet_kv_info calculet_model::inspect_kv() const {
    return {calbin_.vendor->describe().lanes, sequences_.count()};
}

// ---- golden -------------------------------------------------------------------------------------------------------

std::uint32_t calculet_model::role_of(std::uint32_t submodel) const {
    const auto found = std::find_if(roles_.begin(), roles_.end(), [&](const Role &role) {
        return role.submodel == submodel && role.role == CALCULET_PREFILL;
    });
    return static_cast<std::uint32_t>(found - roles_.begin());
}

void calculet_model::run_golden(double timeout_s, calculet_golden &golden) {
    golden = {};
    for (const auto &recorded : calbin_.vendor->golden()) {
        if (role_of(recorded.submodel) == roles_.size()) continue;
        ++golden.cases;
        golden.passed += replay(recorded, timeout_s, golden.largest_difference);
    }
    calculet::put(
        golden.text, std::to_string(golden.passed) + " of " + std::to_string(golden.cases) + " recorded cases passed");
}

bool calculet_model::replay(const calculet::vendor::Golden &recorded, double timeout_s, float &difference) {
    const auto index = role_of(recorded.submodel);
    if (recorded.tokens.empty() || recorded.logits.size() != roles_[index].vocab_size)
        throw Failure(CALCULET_BAD_CALBIN, "a recorded case has no tokens, or logits of another width");
    const auto count = static_cast<std::uint32_t>(recorded.tokens.size());
    const auto sequence = allocate(sequences_.free_lane(), count);
    std::vector<float> said(recorded.logits.size());
    try {
        const calculet_lane_work lane{sequence, recorded.tokens.data(), count, 0, 0};
        prepare(CALCULET_PING, {&lane, nullptr, index, 1, 0, 1});
        calculet_result result{};
        wait(CALCULET_PING, submit(CALCULET_PING), timeout_s, result);
        if (result.is_bfloat16 != 0)
            calculet_widen(static_cast<const std::uint16_t *>(result.logits), said.data(), said.size());
        else
            std::copy_n(static_cast<const float *>(result.logits), said.size(), said.begin());
    } catch (...) {
        if (!sequences_.is_in_job(sequence)) release(sequence);
        throw;
    }
    if (release(sequence) != CALCULET_OK) throw Failure(CALCULET_UNCONFIRMED, calculet_error_text());
    for (std::size_t token = 0; token < said.size(); ++token)
        difference = std::max(difference, std::abs(said[token] - recorded.logits[token]));
    return std::max_element(said.begin(), said.end()) - said.begin() ==
           std::max_element(recorded.logits.begin(), recorded.logits.end()) - recorded.logits.begin();
}
