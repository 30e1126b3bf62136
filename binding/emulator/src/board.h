// The board: its configuration, its engine threads, and the clock that says when a job is done.
#pragma once

#include <calrt/calrt.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "buffers.h"
#include "calbin_file.h"
#include "controls.h"
#include "kv_memory.h"

namespace emulator {

constexpr std::uint32_t kEngines = 2;

// Which tensor and which register of a submodel is what, found once when the calbin is made.
struct Ports {
    std::uint32_t tokens, positions, logits;
    std::optional<std::uint32_t> mask;
    std::uint32_t past_register, current_register;
    bool takes_many;  // a prompt's worth of tokens for one sequence
};

class LoadedCalbin final : public calrt::Calbin {
   public:
    explicit LoadedCalbin(CalbinFile file);
    const calrt::CalbinDesc &Describe() const override { return file.desc; }
    std::vector<calrt::Golden> GetGolden() const override;

    const CalbinFile file;
    std::vector<Ports> ports;  // by submodel
};

using Clock = std::chrono::steady_clock;

struct Job {
    InputBuffer *input = nullptr;
    OutputBuffer *output = nullptr;
    KvMemory *kv = nullptr;
    std::optional<Happening> fault;
    Clock::time_point done_at;
};

class Board final : public calrt::VirtualDevice {
   public:
    Board();
    ~Board() override;

    std::shared_ptr<calrt::Calbin> CreateCalbin(const std::vector<std::string> &shards) override;
    void Configure(const std::shared_ptr<calrt::Calbin> &calbin) override;
    void ResetConfiguration() override;
    std::pair<double, double> GetMemoryUsage() const override;
    calrt::DeviceStatus GetStatus() const override;
    std::string GetVersion() const override { return "0.7.6"; }
    std::string GetCalcoreVersion() const override { return "emulated"; }
    std::uint32_t Engines() const override { return kEngines; }

    void start(KvMemory &kv, InputBuffer &input, OutputBuffer &output, std::uint32_t engine);

   private:
    struct Engine {
        std::mutex mutex;
        std::condition_variable changed;
        bool has_job = false;
        Job job;
        std::atomic<std::uint64_t> submitted{0}, completed{0};
        std::atomic<std::int32_t> last_token{0};
        std::thread thread;
    };

    void run_engine(std::uint32_t index);
    Clock::time_point plan_times(const Job &job);
    void end(const Job &job, std::uint32_t engine);  // the engine's mutex is held
    std::optional<calrt::ErrorCode> perform(const Job &job, std::uint32_t engine);
    void answer(const Job &job, std::uint32_t engine, const Ports &ports);

    mutable std::mutex mutex_;  // the configuration, and when the compute units are free
    std::shared_ptr<calrt::Calbin> configured_;
    Clock::time_point compute_free_{};
    std::atomic<bool> is_closing_{false};
    std::array<Engine, kEngines> engines_;
};

}  // namespace emulator
