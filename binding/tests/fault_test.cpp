// Every fault ends as its code, within the bound; what nobody can know stays taken; a lost engine is used no more.
#include <thread>

#include "rig.h"

namespace {

constexpr double kShort_s = 0.05;  // a bound that is meant to expire

class Fault : public test::Rig {
   protected:
    void plan(const char *fault, int engine = CALRT_EMULATOR_ANY_ENGINE, double seconds = 0) {
        ASSERT_EQ(calrt_emulator_plan(fault, engine, 1, 1, seconds), 0);
        before_ = calrt_emulator_happened(fault);
        fault_ = fault;
    }
    void expect_happened() { EXPECT_EQ(calrt_emulator_happened(fault_), before_ + 1); }

    calculet_status status() {
        calculet_status status{};
        EXPECT_CODE(CALCULET_OK, calculet_device_status(device, &status));
        return status;
    }

   private:
    const char *fault_ = "";
    std::uint64_t before_ = 0;
};

TEST_F(Fault, OnlyWhatIsMeantCanBePlanned) {
    EXPECT_EQ(calrt_emulator_plan("no_such_fault", 0, 1, 1, 0), 1);
    EXPECT_EQ(calrt_emulator_plan(nullptr, 0, 1, 1, 0), 1);
    EXPECT_EQ(calrt_emulator_plan("late", 2, 1, 1, 0), 1);
    EXPECT_EQ(calrt_emulator_plan("late", 0, 0, 1, 0), 1);
    EXPECT_EQ(calrt_emulator_plan("late", 0, 1, 1, -1), 1);
    EXPECT_EQ(calrt_emulator_timing(-1, 0, 0, 0), 1);
}

TEST_F(Fault, ABusyDeviceTakesTheSameJobLater) {
    open();
    auto sequence = allocate(0);
    plan("device_busy", CALCULET_PING);
    ASSERT_CODE(CALCULET_OK, prepare(CALCULET_PING, 0, sequence, {1, 2}));
    std::uint64_t ticket = 0;
    EXPECT_CODE(CALCULET_DEVICE_BUSY, calculet_job_submit(model, CALCULET_PING, &ticket));
    expect_happened();
    EXPECT_EQ(status().engine[0].state, CALCULET_ENGINE_PREPARED);
    ASSERT_CODE(CALCULET_OK, calculet_job_submit(model, CALCULET_PING, &ticket));
    calculet_result result;
    EXPECT_CODE(CALCULET_OK, calculet_job_wait(model, CALCULET_PING, ticket, test::kBound_s, &result));
}

TEST_F(Fault, AnUnusableOutputCommitsNothing) {
    open();
    auto sequence = allocate(0);
    plan("output_error");
    EXPECT_CODE(CALCULET_OUTPUT_ERROR, run(CALCULET_PING, 0, sequence, {1, 2}));
    expect_happened();
    std::int32_t said = -1;
    EXPECT_CODE(CALCULET_OK, run(CALCULET_PONG, 0, sequence, {3}, &said));
    EXPECT_EQ(said, emulator::next_token(sequence.history));
}

struct Ending {
    const char *fault;
    calculet_code code;
};

void PrintTo(const Ending &ending, std::ostream *out) { *out << ending.fault; }

class UnknownKv : public Fault, public ::testing::WithParamInterface<Ending> {};

TEST_P(UnknownKv, StaysTakenAndTheEngineGoesOn) {
    open();
    auto sequence = allocate(0), other = allocate(1);
    ASSERT_CODE(CALCULET_OK, run(CALCULET_PING, 0, sequence, {1, 2}));
    plan(GetParam().fault, CALCULET_PING);
    EXPECT_CODE(GetParam().code, run(CALCULET_PING, 1, sequence, {3}));
    expect_happened();
    EXPECT_CODE(CALCULET_UNCONFIRMED, calculet_kv_release(model, sequence.id));
    EXPECT_CODE(CALCULET_INVALID, run(CALCULET_PONG, 1, sequence, {3}));
    EXPECT_EQ(status().engine[0].state, CALCULET_ENGINE_IDLE);
    if (GetParam().code == CALCULET_DEVICE_LOST) {
        EXPECT_EQ(status().ok, 0U);
        EXPECT_CODE(CALCULET_DEVICE_LOST, run(CALCULET_PONG, 0, other, {1}));
        EXPECT_CODE(CALCULET_UNCONFIRMED, calculet_kv_release(model, other.id));
        calculet_memory memory;
        EXPECT_CODE(CALCULET_DEVICE_LOST, calculet_device_memory(device, &memory));
    } else {
        EXPECT_CODE(CALCULET_OK, run(CALCULET_PING, 0, other, {1}));
    }
}

INSTANTIATE_TEST_SUITE_P(
    EachFault, UnknownKv,
    ::testing::Values(
        Ending{"ccu_fault", CALCULET_CCU_FAULT}, Ending{"pcie_error", CALCULET_PCIE_ERROR},
        Ending{"unknown_dma", CALCULET_UNKNOWN_DMA}, Ending{"timeout", CALCULET_UNKNOWN_DMA},
        Ending{"device_lost", CALCULET_DEVICE_LOST}),
    [](const auto &each) { return std::string(each.param.fault); });

TEST_F(Fault, AModelIsNewAfterResetAndConfigure) {
    open();
    auto sequence = allocate(0);
    plan("ccu_fault");
    EXPECT_CODE(CALCULET_CCU_FAULT, run(CALCULET_PING, 0, sequence, {1}));
    ASSERT_CODE(CALCULET_OK, calculet_model_unload(model));
    model = nullptr;
    ASSERT_CODE(CALCULET_OK, calculet_device_reset_configuration(device));
    ASSERT_CODE(CALCULET_OK, calculet_model_configure(calbin, roles.data(), 2, &model));
    auto fresh = allocate(0);
    std::int32_t said = -1;
    EXPECT_CODE(CALCULET_OK, run(CALCULET_PING, 0, fresh, {1}, &said));
    EXPECT_EQ(said, emulator::next_token(fresh.history));
}

TEST_F(Fault, AStuckWaitLosesItsEngineAndNoOther) {
    open();
    auto stuck = allocate(0), other = allocate(1);
    plan("stuck_wait", CALCULET_PONG);
    EXPECT_CODE(CALCULET_TIMEOUT, run(CALCULET_PONG, 0, stuck, {1, 2}, nullptr, kShort_s));
    expect_happened();
    is_lost_expected = true;
    EXPECT_EQ(status().engine[1].state, CALCULET_ENGINE_LOST_FOR_GOOD);
    EXPECT_EQ(status().engine[1].has_returned, 0U);
    EXPECT_CODE(CALCULET_ENGINE_LOST, prepare(CALCULET_PONG, 0, other, {1}));
    std::uint64_t ticket = 0;
    EXPECT_CODE(CALCULET_ENGINE_LOST, calculet_job_submit(model, CALCULET_PONG, &ticket));
    EXPECT_CODE(CALCULET_UNCONFIRMED, calculet_kv_release(model, stuck.id));
    std::int32_t said = -1;
    EXPECT_CODE(CALCULET_OK, run(CALCULET_PING, 0, other, {1}, &said));
    EXPECT_EQ(said, emulator::next_token(other.history));
    EXPECT_CODE(CALCULET_NOT_QUIET, calculet_model_unload(model));
    model = nullptr;
    EXPECT_CODE(CALCULET_NOT_QUIET, calculet_device_reset_configuration(device));
    ASSERT_CODE(CALCULET_OK, calculet_model_configure(calbin, roles.data(), 2, &model));
    auto fresh = allocate(0);
    EXPECT_CODE(CALCULET_OK, run(CALCULET_PING, 0, fresh, {1})) << "ping serves on, by a new model";
    close();
    EXPECT_CODE(CALCULET_WRONG_STATE, calculet_device_open(nullptr, &device)) << "the process is spoilt";
    EXPECT_TEXT("lost");
    device = nullptr;
}

TEST_F(Fault, AWaiterThatComesBackLateIsSeenAndNotUsed) {
    open();
    auto late = allocate(0);
    plan("late", CALCULET_PING, 0.5);
    EXPECT_CODE(CALCULET_TIMEOUT, run(CALCULET_PING, 0, late, {1}, nullptr, kShort_s));
    is_lost_expected = true;
    EXPECT_CODE(CALCULET_UNCONFIRMED, calculet_kv_release(model, late.id));
    const auto code = calculet_model_unload(model);  // the device still writes: the address sanitizer sees where
    model = nullptr;
    EXPECT_TRUE(code == CALCULET_NOT_QUIET || code == CALCULET_OK) << "OK if this took so long that it came back";
    while (status().engine[0].has_returned == 0) std::this_thread::yield();  // ctest bounds it
    EXPECT_CODE(CALCULET_OK, calculet_device_reset_configuration(device)) << "the device is quiet";
    ASSERT_CODE(CALCULET_OK, calculet_model_configure(calbin, roles.data(), 2, &model));
    auto fresh = allocate(0);
    EXPECT_CODE(CALCULET_ENGINE_LOST, prepare(CALCULET_PING, 0, fresh, {1}));
    EXPECT_CODE(CALCULET_OK, run(CALCULET_PONG, 0, fresh, {1}));
}

TEST_F(Fault, ABoundThatHoldsIsNoFault) {
    open();
    auto sequence = allocate(0);
    plan("late", CALCULET_PING, 0.05);
    EXPECT_CODE(CALCULET_OK, run(CALCULET_PING, 0, sequence, {1}));
    expect_happened();
}

TEST_F(Fault, CrossTalkShowsInTheTokenAlone) {
    open({{1, 2}, 4, 128, 300, 0, {5}});
    auto sequence = allocate(0);
    plan("cross_talk");
    std::int32_t said = -1;
    EXPECT_CODE(CALCULET_OK, run(CALCULET_PING, 0, sequence, {1, 2}, &said));
    expect_happened();
    EXPECT_NE(said, emulator::next_token(sequence.history));
}

TEST_F(Fault, ACounterAnomalyShowsInTheCounters) {
    open();
    auto sequence = allocate(0);
    plan("counter_anomaly");
    EXPECT_CODE(CALCULET_OK, run(CALCULET_PING, 0, sequence, {1}));
    expect_happened();
    EXPECT_EQ(status().queue_submitted, 1U);
    EXPECT_EQ(status().queue_completed, 2U);
}

TEST_F(Fault, KvAndStatusHaveTheirOwn) {
    open();
    auto sequence = allocate(0);
    plan("no_capacity");
    std::uint64_t id = 0;
    EXPECT_CODE(CALCULET_NO_CAPACITY, calculet_kv_allocate(model, 1, 10, &id));
    expect_happened();
    plan("unconfirmed");
    EXPECT_CODE(CALCULET_UNCONFIRMED, calculet_kv_release(model, sequence.id));
    expect_happened();
    plan("bad_status");
    EXPECT_EQ(status().ok, 0U);
    expect_happened();
    EXPECT_EQ(status().ok, 1U);
}

TEST_F(Fault, TheEnvironmentPlansThemToo) {
    setenv("CALRT_EMULATOR_FAULTS", "device_busy:pong:nth=2,ccu_fault:ping:nth=1:times=1:seconds=0,nonsense", 1);
    setenv("CALRT_EMULATOR_TIME", "0", 1);
    open({{1}, 4, 128, 300, 3'600'000'000'000, {5}});  // an hour, scaled to nothing
    auto first = allocate(0), second = allocate(1);
    EXPECT_CODE(CALCULET_OK, run(CALCULET_PONG, 0, second, {1}));
    EXPECT_CODE(CALCULET_DEVICE_BUSY, run(CALCULET_PONG, 1, second, {1}));
    EXPECT_CODE(CALCULET_CCU_FAULT, run(CALCULET_PING, 0, first, {1}));
    unsetenv("CALRT_EMULATOR_FAULTS");
    unsetenv("CALRT_EMULATOR_TIME");
}

#ifndef NDEBUG
TEST_F(Fault, TwoThreadsOnOneEngineEndTheProcess) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_DEATH(
        {
            open({{1}, 4, 128, 300, 0, {5}});
            auto sequence = allocate(0);
            calrt_emulator_plan("stuck_wait", CALCULET_PING, 1, 1, 0);
            prepare(CALCULET_PING, 0, sequence, {1});
            std::uint64_t ticket = 0;
            calculet_job_submit(model, CALCULET_PING, &ticket);
            std::thread waiting([&] {
                calculet_result result;
                calculet_job_wait(model, CALCULET_PING, ticket, test::kBound_s, &result);
            });
            for (;;) prepare(CALCULET_PING, 0, sequence, {1});  // until the two meet
        },
        "two threads use engine ping at once");
}
#endif

}  // namespace
