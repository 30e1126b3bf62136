// What the binding costs: start and wait of one decode on a device without time.
//
//   build/binding/tests/bench_submit_wait [STEPS]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "rig.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::uint32_t kContext = 1U << 16;

class Bench : public test::Rig {
   public:
    void TestBody() override {}
    using Rig::close;

    void print(const char *name, std::uint32_t vocab_size, std::uint32_t steps) {
        open({{1}, 4, kContext, vocab_size, 0, {5}});
        auto sequence = allocate(0, kContext);
        std::vector<double> took_us(steps);
        const std::int32_t token = 9;
        for (auto &step_us : took_us) {
            const calculet_lane_work lane{sequence.id, &token, 1, sequence.length++, 0};
            const calculet_job job{&lane, nullptr, 1, 1, 0, 1};
            std::uint64_t ticket = 0;
            calculet_result result;
            const auto begin = Clock::now();
            const bool is_well = calculet_job_start(model, CALCULET_PING, &job, &ticket) == CALCULET_OK &&
                                 calculet_job_wait(model, CALCULET_PING, ticket, 10.0, &result) == CALCULET_OK;
            step_us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
            if (!is_well) std::printf("failed: %s\n", calculet_error_text());
        }
        std::sort(took_us.begin(), took_us.end());
        std::printf("%-28s P50 %6.1f us   P99 %6.1f us   of %u steps\n", name, took_us[steps / 2],
                    took_us[steps * 99 / 100], steps);
        close();
    }
};

}  // namespace

int main(int count, char **arguments) {
    const long asked = count > 1 ? std::strtol(arguments[1], nullptr, 10) : 20000;
    const auto steps = static_cast<std::uint32_t>(std::clamp(asked, 100L, static_cast<long>(kContext) - 1));
    Bench().print("vocabulary 300, batch 1", 300, steps);
    Bench().print("vocabulary 151936, batch 1", 151936, steps);
    return ::testing::Test::HasFailure() ? 1 : 0;
}
