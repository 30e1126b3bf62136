// After warm-up a step allocates nothing in C++: every operator new of the process is counted.
#include <atomic>
#include <cstdlib>
#include <new>

#include "rig.h"

namespace {

std::atomic<std::uint64_t> allocations{0};

void *counted(std::size_t bytes) {
    ++allocations;
    if (void *memory = std::malloc(bytes)) return memory;
    throw std::bad_alloc();
}

}  // namespace

void *operator new(std::size_t bytes) { return counted(bytes); }
void *operator new[](std::size_t bytes) { return counted(bytes); }
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete[](void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void *memory, std::size_t) noexcept { std::free(memory); }

namespace {

using Allocation = test::Rig;

TEST_F(Allocation, AStepMakesNone) {
    open({{1, 4}, 4, 128, 300, 0, {5}});
    auto sequence = allocate(0);
    ASSERT_CODE(CALCULET_OK, run(CALCULET_PING, 0, sequence, {1, 2, 3}));
    const std::int32_t token = 9;
    const auto step = [&](std::uint32_t engine, std::uint32_t role) {
        const calculet_lane_work lane{sequence.id, &token, 1, sequence.length++, 0};
        const calculet_job job{&lane, nullptr, role, 1, 0, 1};
        std::uint64_t ticket = 0;
        calculet_result result;
        return calculet_job_start(model, engine, &job, &ticket) == CALCULET_OK &&
               calculet_job_wait(model, engine, ticket, test::kBound_s, &result) == CALCULET_OK;
    };
    for (const std::uint32_t engine : {CALCULET_PING, CALCULET_PONG})
        for (const std::uint32_t role : {1U, 2U}) ASSERT_TRUE(step(engine, role));  // warm
    const auto before = allocations.load();
    EXPECT_GT(before, 0U) << "the counter counts";
    bool is_well = true;
    for (std::uint32_t index = 0; index < 60; ++index) is_well &= step(index % 2, 1 + index / 2 % 2);
    const auto after = allocations.load();
    EXPECT_TRUE(is_well) << calculet_error_text();
    EXPECT_EQ(after - before, 0U);
}

}  // namespace
