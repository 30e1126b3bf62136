// Jobs that end well say what the Python emulated board says; jobs that are wrong touch nothing.
#include <cmath>

#include "rig.h"

namespace {

using Job = test::Rig;
using test::Sequence;

struct Vector {
    std::vector<std::int32_t> tokens;
    std::uint64_t history;
    std::int32_t next;
};

const Vector kVectors[] = {
#include "history_vectors.inc"
};

TEST(History, IsThePythonEmulatedBoards) {
    for (const auto &vector : kVectors) {
        std::uint64_t history = 0;
        for (const auto token : vector.tokens) history = emulator::extend(history, token);
        EXPECT_EQ(history, vector.history);
        EXPECT_EQ(emulator::next_token(history), vector.next);
    }
}

TEST_F(Job, ARequestIsTheSameOverBothEnginesAndEveryBatch) {
    open({{1, 4}, 4, 128, 300, 0, {5, 7}});
    auto sequence = allocate(2);
    std::vector<std::int32_t> tokens{10, 20, 30, 40};
    for (std::uint32_t step = 0; step < 40; ++step) {
        std::int32_t said = -1;
        const std::uint32_t role = step == 0 ? 0 : 1 + step % 2, row = role == 2 ? step % 4 : 0;
        ASSERT_CODE(CALCULET_OK, run(step / 2 % 2, role, sequence, tokens, &said, test::kBound_s, row));
        ASSERT_EQ(said, emulator::next_token(sequence.history));
        tokens = {said};
    }
    EXPECT_CODE(CALCULET_OK, calculet_kv_remove_tail(model, sequence.id, 39));
    Sequence again{sequence.id, 4, 0};
    for (const auto token : {10, 20, 30, 40}) again.history = emulator::extend(again.history, token);
    std::int32_t said = -1;
    EXPECT_CODE(CALCULET_OK, run(CALCULET_PING, 1, again, {99}, &said));
    EXPECT_EQ(said, emulator::next_token(again.history)) << "as if the tail had never been";
    EXPECT_CODE(CALCULET_OK, calculet_kv_release(model, sequence.id));
}

TEST_F(Job, ABatchGivesEachRowItsOwn) {
    open({{1, 4}, 4, 128, 300, 0, {5, 7}});
    std::vector<Sequence> sequences;
    for (std::uint32_t lane = 0; lane < 3; ++lane) {
        sequences.push_back(allocate(lane));
        ASSERT_CODE(CALCULET_OK, run(CALCULET_PING, 0, sequences[lane], {static_cast<std::int32_t>(lane) + 1, 7}));
    }
    const std::int32_t token = 5;
    const calculet_lane_work rows[] = {
        {sequences[0].id, &token, 1, 2, 3}, {sequences[1].id, &token, 1, 2, 0}, {sequences[2].id, &token, 1, 2, 2}};
    const calculet_csr_write spare{2, 1, -9};
    const calculet_job job{rows, &spare, 2, 3, 1, 1};
    ASSERT_CODE(CALCULET_OK, calculet_job_prepare(model, CALCULET_PONG, &job));
    std::uint64_t ticket = 0;
    ASSERT_CODE(CALCULET_OK, calculet_job_submit(model, CALCULET_PONG, &ticket));
    calculet_result result;
    ASSERT_CODE(CALCULET_OK, calculet_job_wait(model, CALCULET_PONG, ticket, test::kBound_s, &result));
    EXPECT_EQ(result.rows, 4U);
    for (std::size_t index = 0; index < 3; ++index) {
        append(sequences[index], {token});
        EXPECT_EQ(best(result, rows[index].row), emulator::next_token(sequences[index].history));
    }
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(result.logits) % 4096, 0U) << "page-aligned";
}

TEST_F(Job, StartIsPrepareAndSubmitInOne) {
    open();
    auto sequence = allocate(0);
    const std::int32_t tokens[] = {1, 2};
    std::uint64_t ticket = 0;
    const auto start = [&](std::uint32_t position, std::uint64_t *to) {
        const calculet_lane_work lane{sequence.id, tokens, 2, position, 0};
        const calculet_job job{&lane, nullptr, 0, 1, 0, 1};
        return calculet_job_start(model, CALCULET_PING, &job, to);
    };
    EXPECT_CODE(CALCULET_INVALID, start(0, nullptr));
    EXPECT_TEXT("ticket");
    EXPECT_CODE(CALCULET_INVALID, start(1, &ticket));
    EXPECT_TEXT("position");
    EXPECT_CODE(CALCULET_WRONG_STATE, calculet_job_submit(model, CALCULET_PING, &ticket)) << "nothing was prepared";
    ASSERT_EQ(calrt_emulator_plan("device_busy", CALCULET_PING, 1, 1, 0), 0);
    EXPECT_CODE(CALCULET_DEVICE_BUSY, start(0, &ticket));
    ASSERT_CODE(CALCULET_OK, calculet_job_submit(model, CALCULET_PING, &ticket)) << "it is still prepared";
    EXPECT_CODE(CALCULET_WRONG_STATE, start(0, &ticket));
    calculet_result result;
    ASSERT_CODE(CALCULET_OK, calculet_job_wait(model, CALCULET_PING, ticket, test::kBound_s, &result));
    append(sequence, {1, 2});
    EXPECT_EQ(best(result, 0), emulator::next_token(sequence.history));
    ASSERT_CODE(CALCULET_OK, start(2, &ticket));
    EXPECT_CODE(CALCULET_OK, calculet_job_wait(model, CALCULET_PING, ticket, test::kBound_s, &result));
}

TEST_F(Job, WithoutTimeItIsDoneWhenTheDeviceHasIt) {
    open();
    auto sequence = allocate(0);
    ASSERT_CODE(CALCULET_OK, prepare(CALCULET_PING, 0, sequence, {1, 2}));
    std::uint64_t ticket = 0;
    ASSERT_CODE(CALCULET_OK, calculet_job_submit(model, CALCULET_PING, &ticket));
    calculet_status status;
    ASSERT_CODE(CALCULET_OK, calculet_device_status(device, &status));
    EXPECT_EQ(status.queue_submitted, 1U);
    EXPECT_EQ(status.queue_completed, 1U);
    calculet_result result;
    EXPECT_CODE(CALCULET_OK, calculet_job_wait(model, CALCULET_PING, ticket, test::kBound_s, &result));
}

TEST_F(Job, TellsItsTimesAndCounters) {
    open({{1}, 4, 128, 300, 2'000'000, {5}});
    ASSERT_EQ(calrt_emulator_timing(1.0, 0.001, 0.003, 0), 0);
    auto sequence = allocate(0);
    ASSERT_CODE(CALCULET_OK, prepare(CALCULET_PING, 0, sequence, {1, 2}));
    std::uint64_t ticket = 0;
    ASSERT_CODE(CALCULET_OK, calculet_job_submit(model, CALCULET_PING, &ticket));
    calculet_result result;
    ASSERT_CODE(CALCULET_OK, calculet_job_wait(model, CALCULET_PING, ticket, test::kBound_s, &result));
    EXPECT_NEAR(result.infer_s, 0.002, 1e-9);
    EXPECT_NEAR(result.h2d_s, 0.001, 1e-9);
    EXPECT_NEAR(result.d2h_s, 0.003, 1e-9);
    EXPECT_GE(result.total_s, 0.006);
    EXPECT_EQ(result.queue_submitted, 1U);
    EXPECT_EQ(result.queue_completed, 1U);
    EXPECT_EQ(result.vendor_status, 0U);
    ASSERT_EQ(calrt_emulator_timing(1.0, 0, 0, 0), 0);
}

TEST_F(Job, WrongOnesAreRefusedByFieldAndTouchNothing) {
    open({{1, 2}, 4, 16, 300, 0, {5}});
    auto sequence = allocate(0, 10);
    const std::vector<std::int32_t> one{1};
    const auto refused = [&](const calculet_job &job, calculet_code code, const std::string &text) {
        EXPECT_CODE(code, calculet_job_prepare(model, CALCULET_PING, &job));
        EXPECT_TEXT(text);
    };
    const std::int32_t tokens[17]{}, outside[]{300}, negative[]{-1};
    const calculet_lane_work good{sequence.id, tokens, 1, 0, 0};
    refused({&good, nullptr, 3, 1, 0, 1}, CALCULET_INVALID, "submodel");
    refused({&good, nullptr, 0, 0, 0, 1}, CALCULET_INVALID, "lanes");
    refused({nullptr, nullptr, 0, 1, 0, 1}, CALCULET_INVALID, "lanes");
    refused({&good, nullptr, 0, 2, 0, 1}, CALCULET_INVALID, "lane_count");
    refused({&good, nullptr, 0, 1, 1, 1}, CALCULET_INVALID, "csrs");
    const calculet_csr_write no_csr{3, 0, 0}, no_element{2, 2, 0};
    refused({&good, &no_csr, 0, 1, 1, 1}, CALCULET_INVALID, "csrs.csr");
    refused({&good, &no_element, 0, 1, 1, 1}, CALCULET_INVALID, "csrs.element");
    const auto lane_refused = [&](calculet_lane_work lane, std::uint32_t role, calculet_code code, const char *text) {
        refused({&lane, nullptr, role, 1, 0, 1}, code, text);
    };
    lane_refused({sequence.id, tokens, 1, 0, 1}, 0, CALCULET_INVALID, "lanes.row");
    lane_refused({sequence.id, tokens, 0, 0, 0}, 0, CALCULET_INVALID, "lanes.tokens");
    lane_refused({sequence.id, tokens, 17, 0, 0}, 0, CALCULET_INVALID, "lanes.token_count");
    lane_refused({sequence.id, tokens, 2, 0, 0}, 1, CALCULET_INVALID, "decode");
    lane_refused({sequence.id, outside, 1, 0, 0}, 0, CALCULET_INVALID, "vocabulary");
    lane_refused({sequence.id, negative, 1, 0, 0}, 0, CALCULET_INVALID, "vocabulary");
    lane_refused({sequence.id, tokens, 1, 1, 0}, 0, CALCULET_INVALID, "position");
    lane_refused({sequence.id, tokens, 11, 0, 0}, 0, CALCULET_NO_CAPACITY, "room for 10");
    lane_refused({4711, tokens, 1, 0, 0}, 0, CALCULET_INVALID, "4711");
    const calculet_lane_work twice[] = {{sequence.id, tokens, 1, 0, 0}, {sequence.id, tokens, 1, 0, 1}};
    refused({twice, nullptr, 2, 2, 0, 1}, CALCULET_INVALID, "there twice");
    EXPECT_CODE(CALCULET_INVALID, prepare(2, 0, sequence, one));
    EXPECT_TEXT("engine");
    std::uint64_t ticket = 0;
    EXPECT_CODE(CALCULET_WRONG_STATE, calculet_job_submit(model, CALCULET_PING, &ticket));
    std::int32_t said = -1;
    EXPECT_CODE(CALCULET_OK, run(CALCULET_PING, 0, sequence, {1, 2}, &said));
    EXPECT_EQ(said, emulator::next_token(sequence.history));
}

TEST_F(Job, WaitsForItsOwnTicketWithinBounds) {
    open();
    auto sequence = allocate(0);
    calculet_result result;
    EXPECT_CODE(CALCULET_WRONG_STATE, calculet_job_wait(model, CALCULET_PING, 1, 1.0, &result));
    ASSERT_CODE(CALCULET_OK, prepare(CALCULET_PING, 0, sequence, {1}));
    EXPECT_CODE(CALCULET_WRONG_STATE, calculet_job_wait(model, CALCULET_PING, 1, 1.0, &result));
    std::uint64_t ticket = 0;
    ASSERT_CODE(CALCULET_OK, calculet_job_submit(model, CALCULET_PING, &ticket));
    for (const double bound_s : {-1.0, 86401.0, static_cast<double>(NAN)}) {
        EXPECT_CODE(CALCULET_INVALID, calculet_job_wait(model, CALCULET_PING, ticket, bound_s, &result));
        EXPECT_TEXT("timeout_s");
    }
    EXPECT_CODE(CALCULET_INVALID, calculet_job_wait(model, CALCULET_PING, ticket + 1, 1.0, &result));
    EXPECT_CODE(CALCULET_WRONG_STATE, prepare(CALCULET_PING, 0, sequence, {1}));
    EXPECT_CODE(CALCULET_WRONG_STATE, calculet_model_unload(model));
    EXPECT_CODE(CALCULET_OK, calculet_job_wait(model, CALCULET_PING, ticket, test::kBound_s, &result));
    EXPECT_CODE(CALCULET_WRONG_STATE, calculet_job_wait(model, CALCULET_PING, ticket, 1.0, &result));
}

TEST_F(Job, ASequenceIsNeverInTwo) {
    open({{1}, 4, 128, 300, 20'000'000, {5}});
    auto sequence = allocate(0);
    ASSERT_CODE(CALCULET_OK, prepare(CALCULET_PING, 0, sequence, {1}));
    ASSERT_CODE(CALCULET_OK, prepare(CALCULET_PONG, 0, sequence, {1})) << "nothing is submitted yet";
    std::uint64_t ticket = 0, second = 0;
    ASSERT_CODE(CALCULET_OK, calculet_job_submit(model, CALCULET_PING, &ticket));
    EXPECT_CODE(CALCULET_INVALID, calculet_job_submit(model, CALCULET_PONG, &second));
    EXPECT_CODE(CALCULET_UNCONFIRMED, calculet_kv_release(model, sequence.id));
    EXPECT_CODE(CALCULET_INVALID, calculet_kv_remove_tail(model, sequence.id, 0));
    calculet_result result;
    EXPECT_CODE(CALCULET_OK, calculet_job_wait(model, CALCULET_PING, ticket, test::kBound_s, &result));
    EXPECT_CODE(CALCULET_INVALID, calculet_job_submit(model, CALCULET_PONG, &second)) << "it is longer now";
    EXPECT_CODE(CALCULET_OK, calculet_kv_release(model, sequence.id));
}

TEST_F(Job, LanesAreTakenOnceAndConfirmedEmpty) {
    open();
    std::uint32_t fits = 0;
    ASSERT_CODE(CALCULET_OK, calculet_kv_can_allocate(model, 4, &fits));
    EXPECT_EQ(fits, 1U);
    const auto first = allocate(1);
    std::uint64_t id = 0;
    EXPECT_CODE(CALCULET_NO_CAPACITY, calculet_kv_allocate(model, 1, 10, &id));
    EXPECT_CODE(CALCULET_INVALID, calculet_kv_allocate(model, 4, 10, &id));
    EXPECT_CODE(CALCULET_INVALID, calculet_kv_allocate(model, 0, 0, &id));
    EXPECT_CODE(CALCULET_INVALID, calculet_kv_allocate(model, 0, 129, &id));
    EXPECT_TEXT("128");
    ASSERT_CODE(CALCULET_OK, calculet_kv_can_allocate(model, 4, &fits));
    EXPECT_EQ(fits, 0U);
    calculet_kv_info info;
    ASSERT_CODE(CALCULET_OK, calculet_kv_inspect(model, &info));
    EXPECT_EQ(info.lanes, 4U);
    EXPECT_EQ(info.sequences, 1U);
    EXPECT_CODE(CALCULET_INVALID, calculet_kv_remove_tail(model, first.id, 1));
    EXPECT_CODE(CALCULET_OK, calculet_kv_release(model, first.id));
    EXPECT_CODE(CALCULET_INVALID, calculet_kv_release(model, first.id));
    EXPECT_NE(allocate(1).id, first.id) << "a number is never used twice";
}

TEST_F(Job, GoldenIsReplayed) {
    open();
    calculet_golden golden;
    ASSERT_CODE(CALCULET_OK, calculet_model_golden(model, test::kBound_s, &golden));
    EXPECT_EQ(golden.cases, 1U);
    EXPECT_EQ(golden.passed, 1U);
    EXPECT_EQ(golden.largest_difference, 0.0F);
    ASSERT_EQ(calrt_emulator_plan("cross_talk", CALRT_EMULATOR_ANY_ENGINE, 1, 1, 0), 0);
    ASSERT_CODE(CALCULET_OK, calculet_model_golden(model, test::kBound_s, &golden));
    EXPECT_EQ(golden.passed, 0U) << "and it can fail";
    EXPECT_EQ(golden.largest_difference, 100.0F);
    calculet_kv_info info;
    ASSERT_CODE(CALCULET_OK, calculet_kv_inspect(model, &info));
    EXPECT_EQ(info.sequences, 0U) << "its lane is given back";
}

TEST(Widen, IsBfloat16sOwnBits) {
    const std::uint16_t bits[] = {0x42C8, 0, 0x8000, 0xBF80, 0x7F80};
    float floats[5];
    calculet_widen(bits, floats, 5);
    EXPECT_EQ(floats[0], 100.0F);
    EXPECT_EQ(floats[1], 0.0F);
    EXPECT_EQ(floats[3], -1.0F);
    EXPECT_EQ(floats[4], HUGE_VALF);
}

}  // namespace
