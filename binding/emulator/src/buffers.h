// InputBuf and OutputBuf: which memory of the host belongs to which tensor, and what a job left in it.
#pragma once

#include <calrt/calrt.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace emulator {

class LoadedCalbin;

struct Mapping {
    void *memory = nullptr;
    std::size_t bytes = 0;
    std::uint32_t begin = 0;  // of the sliced axis
    std::uint32_t count = 0;  // 0: not sliced
};

class InputBuffer final : public calrt::InputBuf {
   public:
    InputBuffer(std::shared_ptr<LoadedCalbin> calbin, std::uint32_t submodel);

    void MapBuf(std::uint32_t tensor, void *memory, std::size_t bytes) override;
    void SliceTensor(std::uint32_t tensor, std::uint32_t axis, std::uint32_t begin, std::uint32_t count) override;
    void SetHyperParam(std::uint32_t hyper_param, std::uint32_t element, std::int64_t value) override;
    void SetKvSeq(std::uint32_t row, calrt::KvSeqId sequence) override;
    void ClearKvSeqs() override;

    const std::shared_ptr<LoadedCalbin> calbin;
    const std::uint32_t submodel;
    std::vector<Mapping> tensors;
    std::vector<std::vector<std::int64_t>> registers;
    std::vector<calrt::KvSeqId> sequences;  // by row; 0 for none
};

class OutputBuffer final : public calrt::OutputBuf {
   public:
    OutputBuffer(std::shared_ptr<LoadedCalbin> calbin, std::uint32_t submodel);

    void MapBuf(std::uint32_t tensor, void *memory, std::size_t bytes) override;
    void SliceTensor(std::uint32_t tensor, std::uint32_t axis, std::uint32_t begin, std::uint32_t count) override;
    void Wait() override;
    double GetWaitTime() const override { return infer_ms; }
    double GetInputTransferTime() const override { return h2d_ms; }
    double GetOutputTransferTime() const override { return d2h_ms; }
    std::uint32_t GetStatus() const override { return error ? static_cast<std::uint32_t>(*error) : 0; }
    std::uint64_t GetQueueSubmitted() const override { return queue_submitted; }
    std::uint64_t GetQueueCompleted() const override { return queue_completed; }

    // An engine took, or finished, this buffer's job.
    void begin();
    void finish(std::optional<calrt::ErrorCode> code);

    // Row `row` says `token`: bfloat16, all zero but for the token's 100. Copying costs the host's CPU nothing, as a
    // transfer by the device does not: only what the row said before is taken back.
    void say(std::uint32_t row, std::int32_t token);

    const std::shared_ptr<LoadedCalbin> calbin;
    const std::uint32_t submodel;
    std::vector<Mapping> tensors;
    double infer_ms = 0, h2d_ms = 0, d2h_ms = 0;
    std::uint64_t queue_submitted = 0, queue_completed = 0;
    std::optional<calrt::ErrorCode> error;

   private:
    std::mutex mutex_;
    std::condition_variable done_;
    bool is_running_ = false;
    std::vector<std::uint32_t> said_;  // by row
};

}  // namespace emulator
