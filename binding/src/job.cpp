// The jobs of a model: checked whole, then written into the engine's buffers; nothing here allocates when all is well.
#include <algorithm>
#include <bitset>
#include <cstring>

#include "model.h"

using calculet::Failure;
using calculet::Role;
using calculet::require;

void calculet_model::check(const Role &role, const calculet_job &job) const {
    require(job.lanes != nullptr && job.lane_count >= 1, "lanes: a job has at least one");
    require(job.lane_count <= role.batch, "lane_count: more than the submodel's batch");
    require(role.mask || job.lane_count == role.batch, "lanes: a row is missing, and the submodel has no mask for it");
    require(job.csr_count == 0 || job.csrs != nullptr, "csrs: not given");
    const auto &registers = calbin_.submodel(role.submodel).registers;
    for (std::uint32_t index = 0; index < job.csr_count; ++index) {
        require(job.csrs[index].csr < registers.size(), "csrs.csr: the submodel has not so many");
        require(job.csrs[index].element < registers[job.csrs[index].csr].elements, "csrs.element: out of range");
    }
    std::bitset<CALCULET_BATCH_MAX> rows;
    for (std::uint32_t index = 0; index < job.lane_count; ++index) {
        const auto &lane = job.lanes[index];
        require(lane.row < role.batch && !rows.test(lane.row), "lanes.row: out of the batch, or there twice");
        rows.set(lane.row);
        require(lane.tokens != nullptr && lane.token_count >= 1, "lanes.tokens: at least one");
        require(role.role == CALCULET_PREFILL || lane.token_count == 1, "lanes.token_count: a decode takes one");
        require(lane.token_count <= role.row_tokens, "lanes.token_count: more than a row takes");
        const auto vocab = static_cast<std::int32_t>(role.vocab_size);
        require(
            std::all_of(
                lane.tokens, lane.tokens + lane.token_count,
                [=](std::int32_t token) { return token >= 0 && token < vocab; }),
            "lanes.tokens: a token is not of the vocabulary");
        sequences_.check({lane.sequence, lane.position, lane.token_count});
        for (std::uint32_t other = 0; other < index; ++other)
            require(job.lanes[other].sequence != lane.sequence, "lanes.sequence: there twice");
    }
}

void calculet_model::fill(Work &work, const calculet_job &job) {
    const Role &role = *work.role;
    auto &slot = *work.slot;
    auto &buffers = *slot.buffers;
    std::memset(slot.mask.as<std::uint8_t>(), 0, role.batch);
    buffers.clear_sequences();
    work.hold_count = job.lane_count;
    for (std::uint32_t index = 0; index < job.lane_count; ++index) {
        const auto &lane = job.lanes[index];
        work.holds[index] = {lane.sequence, lane.position, lane.token_count};
        const std::size_t begin = std::size_t{lane.row} * role.row_tokens;
        std::copy_n(lane.tokens, lane.token_count, slot.tokens.as<std::int32_t>() + begin);
        auto *positions = slot.positions.as<std::int32_t>() + begin;
        for (std::uint32_t token = 0; token < lane.token_count; ++token)
            positions[token] = static_cast<std::int32_t>(lane.position + token);
        slot.mask.as<std::uint8_t>()[lane.row] = 1;
        buffers.set_sequence(lane.row, lane.sequence);
        buffers.set_register(role.past_register, lane.row, lane.position);
        buffers.set_register(role.current_register, lane.row, lane.token_count);
    }
    for (std::uint32_t index = 0; index < job.csr_count; ++index)
        buffers.set_register(job.csrs[index].csr, job.csrs[index].element, job.csrs[index].value);
    if (role.role == CALCULET_PREFILL) {  // the prompt's own length in, its last row out: 40,960 rows are 11.6 GiB
        const auto count = job.lanes[0].token_count;
        buffers.slice_input(role.tokens, 1, 0, count);
        buffers.slice_input(role.positions, 1, 0, count);
        buffers.slice_output(role.logits, 0, count - 1, 1);
    }
    work.wants_logits = job.wants_logits != 0;
}

void calculet_model::prepare(std::uint32_t index, const calculet_job &job) {
    auto &engine = device.engine(index);
    const calculet::OneUser::Section section(engine.user);
    if (job.submodel >= roles_.size())
        throw Failure(CALCULET_INVALID, "submodel: the model has " + std::to_string(roles_.size()) + " roles");
    const Role &role = roles_[job.submodel];
    engine.expect_free();
    check(role, job);
    auto slot = slots_[std::size_t{index} * roles_.size() + job.submodel];
    engine.prepare({slot, slot->buffers.get()});  // the engine keeps the whole slot
    auto &work = work_[index];
    work.role = &role;
    work.slot = std::move(slot);
    try {
        fill(work, job);
    } catch (...) {
        engine.discard();
        throw;
    }
}

std::uint64_t calculet_model::submit(std::uint32_t index) {
    auto &engine = device.engine(index);
    const calculet::OneUser::Section section(engine.user);
    auto &work = work_[index];
    if (engine.inspect().state != CALCULET_ENGINE_PREPARED) return engine.submit();  // which says what is wrong
    require(work.slot != nullptr, "engine: another model prepared it");
    sequences_.hold(work.holds.data(), work.hold_count);
    try {
        const std::lock_guard lock(device.vendor_calls);
        return engine.submit();
    } catch (const Failure &failure) {
        const auto code = failure.code();
        if (code == CALCULET_DEVICE_BUSY || code == CALCULET_INVALID || code == CALCULET_WRONG_STATE ||
            code == CALCULET_ENGINE_LOST)
            sequences_.settle(work.holds.data(), work.hold_count, false);
        throw;
    }
}

void calculet_model::wait(std::uint32_t index, std::uint64_t ticket, double timeout_s, calculet_result &result) {
    auto &engine = device.engine(index);
    const calculet::OneUser::Section section(engine.user);
    require(timeout_s >= 0 && timeout_s <= CALCULET_WAIT_S_MAX, "timeout_s: from 0 to 86,400");
    const auto answer = engine.wait(ticket, timeout_s);
    const auto &work = work_[index];
    const bool is_good = answer.code == CALCULET_OK;
    if (is_good || answer.code == CALCULET_OUTPUT_ERROR)
        sequences_.settle(work.holds.data(), work.hold_count, is_good);
    const std::uint32_t element_bytes = work.role->is_bfloat16 ? 2 : 4;
    result = {};
    result.logits = is_good && work.wants_logits ? work.slot->logits.as<void>() : nullptr;
    result.row_stride_bytes = std::uint64_t{work.role->vocab_size} * element_bytes;
    result.rows = work.role->batch;
    result.vocab_size = work.role->vocab_size;
    result.is_bfloat16 = work.role->is_bfloat16;
    result.vendor_status = answer.account.status;
    result.queue_submitted = answer.account.queue_submitted;
    result.queue_completed = answer.account.queue_completed;
    result.infer_s = answer.account.infer_s;
    result.h2d_s = answer.account.h2d_s;
    result.d2h_s = answer.account.d2h_s;
    result.total_s = answer.total_s;
    if (!is_good) throw Failure(answer.code, answer.text);
}
