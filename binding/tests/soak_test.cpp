// 1,000 jobs on two engines from two threads, with random prompts, cancels and faults, while a third looks on: every
// token that comes is the right one, nothing ends twice, nothing hangs.
#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include "rig.h"

namespace {

constexpr int kJobs = 1000;
constexpr int kJobsARound = 100;  // of one configuration and engine

using Random = std::mt19937;

class Soak : public test::Rig {
   protected:
    // One engine's work until its lanes are used up or the round is over. Returns the jobs that were submitted.
    int serve(std::uint32_t engine, unsigned seed);
    // A request from its prompt to its end, or to where the client leaves. False where its lane is lost.
    bool serve_request(std::uint32_t engine, std::uint32_t lane, Random &random, int &jobs);
    bool step(std::uint32_t engine, std::uint32_t role, test::Sequence &sequence, std::vector<std::int32_t> &tokens);
    void plan_something(std::uint32_t engine, Random &random);

    std::mutex kv_;  // the KV calls: one thread at a time
    std::atomic<int> ended_{0};
    std::atomic<bool> is_over_{false};
};

void Soak::plan_something(std::uint32_t engine, Random &random) {
    static const char *const kFaults[] = {"device_busy", "output_error", "late", "ccu_fault", "timeout", "pcie_error"};
    const auto fault = kFaults[std::discrete_distribution<std::size_t>{30, 20, 20, 1, 1, 1}(random)];
    if (random() % 4 == 0) calrt_emulator_plan(fault, static_cast<int>(engine), 1 + random() % 3, 1, 0.0005);
}

// One job, tried again while the device is busy or its output unusable; false where the KV is unknown.
bool Soak::step(
    std::uint32_t engine, std::uint32_t role, test::Sequence &sequence, std::vector<std::int32_t> &tokens) {
    for (;;) {
        std::int32_t said = -1;
        const auto code = run(engine, role, sequence, tokens, &said);
        if (code == CALCULET_DEVICE_BUSY) continue;
        ++ended_;
        if (code == CALCULET_OUTPUT_ERROR) continue;
        if (code != CALCULET_OK) return false;
        EXPECT_EQ(said, emulator::next_token(sequence.history));
        tokens = {said};
        return true;
    }
}

bool Soak::serve_request(std::uint32_t engine, std::uint32_t lane, Random &random, int &jobs) {
    test::Sequence sequence;
    {
        const std::lock_guard lock(kv_);
        sequence = allocate(lane);
    }
    std::vector<std::int32_t> tokens(1 + random() % 40);
    for (auto &token : tokens) token = static_cast<std::int32_t>(random() % 256);
    const int steps = 1 + static_cast<int>(random() % 12);  // the client may leave after any of them
    for (int index = 0; index < steps; ++index, ++jobs) {
        plan_something(engine, random);
        if (!step(engine, index == 0 ? 0 : 1, sequence, tokens)) {
            const std::lock_guard lock(kv_);
            EXPECT_CODE(CALCULET_UNCONFIRMED, calculet_kv_release(model, sequence.id));
            return false;
        }
    }
    const std::lock_guard lock(kv_);
    if (random() % 3 == 0) {
        const auto tail = static_cast<std::uint32_t>(random() % sequence.length);
        EXPECT_CODE(CALCULET_OK, calculet_kv_remove_tail(model, sequence.id, tail));
    }
    EXPECT_CODE(CALCULET_OK, calculet_kv_release(model, sequence.id));
    return true;
}

int Soak::serve(std::uint32_t engine, unsigned seed) {
    Random random(seed);
    int jobs = 0;
    std::vector<std::uint32_t> lanes{2 * engine, 2 * engine + 1};
    while (jobs < kJobsARound && !lanes.empty()) {
        const auto chosen = random() % lanes.size();
        if (!serve_request(engine, lanes[chosen], random, jobs))
            lanes.erase(lanes.begin() + static_cast<std::ptrdiff_t>(chosen));
    }
    return jobs;
}

TEST_F(Soak, AThousandJobsWithFaultsAndCancels) {
    open({{1}, 4, 128, 300, 20'000, {5}});
    std::thread looking_on([&] {
        calculet_status status;
        calculet_memory memory;
        while (!is_over_) {
            EXPECT_CODE(CALCULET_OK, calculet_device_status(device, &status));
            EXPECT_CODE(CALCULET_OK, calculet_device_memory(device, &memory));
            std::this_thread::yield();
        }
    });
    unsigned seed = 1;
    while (ended_ < kJobs) {
        std::thread pong([&, at = seed + 1] { serve(CALCULET_PONG, at); });
        serve(CALCULET_PING, seed);
        pong.join();
        seed += 2;
        calrt_emulator_clear();
        ASSERT_CODE(CALCULET_OK, calculet_model_unload(model));
        model = nullptr;
        ASSERT_CODE(CALCULET_OK, calculet_device_reset_configuration(device));
        ASSERT_CODE(CALCULET_OK, calculet_model_configure(calbin, roles.data(), 2, &model));
    }
    // At last pong never comes back, and ping serves on.
    ASSERT_EQ(calrt_emulator_plan("stuck_wait", CALCULET_PONG, 3, 1, 0), 0);
    is_lost_expected = true;
    auto on_pong = allocate(3);
    calculet_code code = CALCULET_OK;
    while (code == CALCULET_OK) code = run(CALCULET_PONG, 0, on_pong, {1}, nullptr, 0.5);
    EXPECT_CODE(CALCULET_TIMEOUT, code);
    Random random(seed);
    int jobs = 0;
    EXPECT_TRUE(serve_request(CALCULET_PING, 0, random, jobs));
    is_over_ = true;
    looking_on.join();
    calculet_status status;
    ASSERT_CODE(CALCULET_OK, calculet_device_status(device, &status));
    EXPECT_EQ(status.engine[0].submitted, status.engine[0].answered);
    EXPECT_EQ(status.engine[1].submitted, status.engine[1].answered + 1);
}

}  // namespace
