#include "controls.h"

#include <calrt/emulator.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

extern "C" const char calrt_emulator_marker[] = "calrt-emulator";

namespace emulator {
namespace {

struct Row {
    const char *name;
    Call call;
};

// By Fault.
constexpr std::array<Row, kFaults> kTable{{
    {"device_busy", Call::kInfer},
    {"late", Call::kWait},
    {"stuck_wait", Call::kWait},
    {"timeout", Call::kWait},
    {"ccu_fault", Call::kWait},
    {"pcie_error", Call::kWait},
    {"unknown_dma", Call::kWait},
    {"device_lost", Call::kWait},
    {"output_error", Call::kWait},
    {"cross_talk", Call::kWait},
    {"counter_anomaly", Call::kWait},
    {"no_capacity", Call::kApply},
    {"unconfirmed", Call::kFree},
    {"bad_status", Call::kStatus},
}};

constexpr double kSecondsMax = 86400.0;

std::optional<Fault> find(const char *name) {
    for (std::size_t index = 0; name != nullptr && index < kFaults; ++index)
        if (std::strcmp(kTable[index].name, name) == 0) return static_cast<Fault>(index);
    return std::nullopt;
}

// All of `word` as a number from 0; -1 for anything else.
double number(const std::string &word) {
    char *end = nullptr;
    const double value = std::strtod(word.c_str(), &end);
    return word.empty() || *end != '\0' || !(value >= 0) ? -1.0 : value;
}

}  // namespace

Controls &Controls::instance() {
    static Controls &controls = *new Controls;  // never destroyed: engine threads may outlive main()
    return controls;
}

bool Controls::plan(const char *fault, int engine, std::uint64_t nth, std::uint64_t times, double seconds) {
    const auto found = find(fault);
    if (!found || engine < CALRT_EMULATOR_ANY_ENGINE || engine > 1 || nth == 0 || times == 0) return false;
    if (!(seconds >= 0 && seconds <= kSecondsMax)) return false;
    const std::lock_guard lock(mutex_);
    if (plans_.size() >= CALRT_EMULATOR_PLANS_MAX) return false;
    plans_.push_back({*found, engine, nth - 1, times, seconds});
    has_plans_ = true;
    return true;
}

std::optional<Happening> Controls::draw(Call call, int engine) {
    if (!has_plans_) return std::nullopt;
    const std::lock_guard lock(mutex_);
    std::optional<Happening> drawn;
    for (auto &plan : plans_) {
        const auto index = static_cast<std::size_t>(plan.fault);
        const bool fits = engine < 0 || plan.engine == CALRT_EMULATOR_ANY_ENGINE || plan.engine == engine;
        if (kTable[index].call != call || !fits) continue;
        if (plan.skip > 0) {
            --plan.skip;
        } else if (!drawn) {
            --plan.times;
            drawn = Happening{plan.fault, plan.seconds};
            ++happened_[index];
            if (plan.fault == Fault::kDeviceLost) is_lost_ = true;
        }
    }
    plans_.erase(
        std::remove_if(plans_.begin(), plans_.end(), [](const Plan &plan) { return plan.times == 0; }), plans_.end());
    has_plans_ = !plans_.empty();
    return drawn;
}

std::uint64_t Controls::happened(const char *fault) const {
    const auto found = find(fault);
    return found ? happened_[static_cast<std::size_t>(*found)].load() : 0;
}

void Controls::clear() {
    const std::lock_guard lock(mutex_);
    plans_.clear();
    has_plans_ = false;
    is_lost_ = false;
}

void Controls::wait_for_release(std::uint64_t releases, const std::atomic<bool> &is_closing) {
    std::unique_lock lock(mutex_);
    released_.wait(lock, [&] { return releases_ != releases || is_closing; });
}

void Controls::release() {
    const std::lock_guard lock(mutex_);
    ++releases_;
    released_.notify_all();
}

void Controls::wake() {
    const std::lock_guard lock(mutex_);
    released_.notify_all();
}

bool Controls::set_timing(const Timing &timing) {
    for (const double value : {timing.scale, timing.h2d_s, timing.d2h_row_s})
        if (!(value >= 0 && value <= kSecondsMax)) return false;
    const std::lock_guard lock(mutex_);
    timing_ = timing;
    return true;
}

Timing Controls::timing() const {
    const std::lock_guard lock(mutex_);
    return timing_;
}

void Controls::read_environment() {
    if (const char *scale = std::getenv("CALRT_EMULATOR_TIME")) {
        Timing changed = timing();
        changed.scale = number(scale);
        if (!set_timing(changed))
            std::fprintf(stderr, "calrt emulator: CALRT_EMULATOR_TIME=%s is not a number from 0\n", scale);
    }
    const char *faults = std::getenv("CALRT_EMULATOR_FAULTS");
    std::istringstream list(faults == nullptr ? "" : faults);
    for (std::string words; std::getline(list, words, ',');)
        if (!plan_by_words(words.c_str()))
            std::fprintf(stderr, "calrt emulator: CALRT_EMULATOR_FAULTS: %s is no fault\n", words.c_str());
}

// FAULT[:ping|:pong][:nth=N][:times=N][:seconds=S]
bool Controls::plan_by_words(const char *words) {
    std::istringstream parts(words);
    std::string fault;
    std::getline(parts, fault, ':');
    int engine = CALRT_EMULATOR_ANY_ENGINE;
    double nth = 1, times = 1, seconds = 0;
    for (std::string word; std::getline(parts, word, ':');) {
        const auto equals = word.find('=');
        const std::string key = word.substr(0, equals);
        const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
        if (word == "ping" || word == "pong")
            engine = word == "pong";
        else if (key == "nth")
            nth = number(value);
        else if (key == "times")
            times = number(value);
        else if (key == "seconds")
            seconds = number(value);
        else
            return false;
    }
    constexpr double kCountMax = 1e15;
    if (!(nth >= 1 && nth <= kCountMax && times >= 1 && times <= kCountMax)) return false;
    return plan(
        fault.c_str(), engine, static_cast<std::uint64_t>(nth), static_cast<std::uint64_t>(times), seconds);
}

}  // namespace emulator

using emulator::Controls;

extern "C" int calrt_emulator_plan(
    const char *fault, int engine, std::uint64_t nth, std::uint64_t times, double seconds) {
    return Controls::instance().plan(fault, engine, nth, times, seconds) ? 0 : 1;
}

extern "C" std::uint64_t calrt_emulator_happened(const char *fault) { return Controls::instance().happened(fault); }

extern "C" void calrt_emulator_clear(void) { Controls::instance().clear(); }

extern "C" void calrt_emulator_release(void) { Controls::instance().release(); }

extern "C" int calrt_emulator_timing(double scale, double h2d_s, double d2h_row_s, int overlaps) {
    return Controls::instance().set_timing({scale, h2d_s, d2h_row_s, overlaps != 0}) ? 0 : 1;
}
