// What a test tells the emulator: planned faults and times. One for the process, as the control API is.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace emulator {

// By the call that may have it: the table in controls.cpp.
enum class Fault : std::uint32_t {
    kDeviceBusy,
    kLate,
    kStuckWait,
    kTimeout,
    kCcuFault,
    kPcieError,
    kUnknownDma,
    kDeviceLost,
    kOutputError,
    kCrossTalk,
    kCounterAnomaly,
    kNoCapacity,
    kUnconfirmed,
    kBadStatus,
};
constexpr std::size_t kFaults = 14;

enum class Call : std::uint32_t { kInfer, kWait, kApply, kFree, kStatus };

struct Happening {
    Fault fault;
    double seconds;
};

struct Timing {
    double scale = 1.0;
    double h2d_s = 0.0;
    double d2h_row_s = 0.0;
    bool overlaps = false;
};

class Controls {
   public:
    static Controls &instance();

    // The environment's faults and times, once a device; what it says wrongly is written to stderr and left out.
    void read_environment();

    bool plan(const char *fault, int engine, std::uint64_t nth, std::uint64_t times, double seconds);
    std::optional<Happening> draw(Call call, int engine);
    std::uint64_t happened(const char *fault) const;
    void clear();

    bool set_timing(const Timing &timing);
    Timing timing() const;

    bool is_lost() const { return is_lost_.load(); }

    // A stuck wait ends with the next release, or when its board closes.
    std::uint64_t releases() const { return releases_.load(); }
    void wait_for_release(std::uint64_t releases, const std::atomic<bool> &is_closing);
    void release();
    void wake();

   private:
    struct Plan {
        Fault fault;
        int engine;
        std::uint64_t skip;  // calls before the first that has it
        std::uint64_t times;
        double seconds;
    };

    bool plan_by_words(const char *words);

    mutable std::mutex mutex_;
    std::vector<Plan> plans_;
    std::atomic<bool> has_plans_{false};  // so that a call without faults takes no lock
    std::atomic<bool> is_lost_{false};
    std::array<std::atomic<std::uint64_t>, kFaults> happened_{};
    Timing timing_;
    std::condition_variable released_;
    std::atomic<std::uint64_t> releases_{0};
};

}  // namespace emulator
