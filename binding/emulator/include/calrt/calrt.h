// calrt/calrt.h: what we believe the C++ API of CalRT 0.7.6 looks like. Not the vendor's file: no SDK is public.
//
// Names that A and S mention are KNOWN; everything else, every signature, unit and rule, is a GUESS and marked so. The
// emulator implements this header, binding/src/vendor_calrt.cpp calls it, and binding/README.md says what somebody who
// has the SDK is to compare, call by call. With the SDK (-DCALRT_INSTALL_DIR) its own header is taken instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#define CALRT_EXPORT __attribute__((visibility("default")))

namespace calrt {

using KvSeqId = std::uint64_t;  // KNOWN (S 2); its width is a GUESS

enum class Engine : std::uint32_t { kPing = 0, kPong = 1 };  // GUESS: ping and pong are hinted at, shown nowhere

enum class ErrorCode : std::uint32_t {  // GUESS: A 5 knows only that errors come as exceptions
    kInvalid = 1,
    kNoDevice,
    kNoFile,
    kBadCalbin,
    kDeviceBusy,
    kTimeout,
    kCcuFault,
    kPcieError,
    kUnknownDma,
    kDeviceLost,
    kOutputError,
};

class CALRT_EXPORT Error : public std::runtime_error {  // GUESS
   public:
    Error(ErrorCode code, const std::string &what) : std::runtime_error(what), code_(code) {}
    ErrorCode Code() const noexcept { return code_; }

   private:
    ErrorCode code_;
};

struct TensorDesc {  // GUESS
    std::string name;
    std::string dtype;
    bool is_output;
    std::vector<std::int64_t> shape;  // -1: decided by the job
};

struct HyperParamDesc {  // GUESS; A 5 calls the CSRs hyperparameters
    std::string name;
    std::uint32_t elements;
};

struct SubmodelDesc {  // fields KNOWN from A 4 (modelType, workload, tarChipN), their form is a GUESS
    std::string name;
    std::string model_type;
    std::uint32_t workload;
    std::vector<std::uint32_t> tar_chip_n;
    std::uint32_t batch;
    std::vector<TensorDesc> tensors;
    std::vector<HyperParamDesc> hyper_params;
};

struct CalbinDesc {  // KNOWN: version, max_batch_size, max_seq_len; the rest is a GUESS
    std::string version;
    std::uint32_t max_batch_size;
    std::uint32_t max_seq_len;
    std::uint32_t lanes;
    std::uint32_t chips;
    std::uint32_t vocab_size;
    std::uint64_t kv_bytes_per_token;
    std::vector<SubmodelDesc> submodels;
};

struct Golden {  // GUESS; A 9D knows "GetGolden*"
    std::uint32_t submodel;
    std::vector<std::int32_t> tokens;
    std::vector<float> logits;  // of the last token
};

struct DeviceStatus {  // GUESS; A 10 knows that a status can be read
    std::uint32_t word;  // 0: well
    std::string text;
    std::uint64_t queue_submitted;
    std::uint64_t queue_completed;
};

class CALRT_EXPORT Calbin {
   public:
    virtual ~Calbin() = default;
    virtual const CalbinDesc &Describe() const = 0;            // GUESS
    virtual std::vector<Golden> GetGolden() const = 0;         // KNOWN name
};

class CALRT_EXPORT VirtualDevice {  // KNOWN: one a process, PCIe
   public:
    static std::shared_ptr<VirtualDevice> Create();  // GUESS
    virtual ~VirtualDevice() = default;
    virtual std::shared_ptr<Calbin> CreateCalbin(const std::vector<std::string> &shards) = 0;  // KNOWN name
    virtual void Configure(const std::shared_ptr<Calbin> &calbin) = 0;                         // GUESS
    virtual void ResetConfiguration() = 0;                                                     // KNOWN name
    virtual std::pair<double, double> GetMemoryUsage() const = 0;  // KNOWN: a pair in MiB, whose second is 3.05e-05
    virtual DeviceStatus GetStatus() const = 0;                    // GUESS
    virtual std::string GetVersion() const = 0;                    // GUESS
    virtual std::string GetCalcoreVersion() const = 0;  // GUESS; today's server reads two registers for it (A 5)
    virtual std::uint32_t Engines() const = 0;          // GUESS
};

class CALRT_EXPORT KvManager {  // KNOWN class
   public:
    static std::unique_ptr<KvManager> Create(
        const std::shared_ptr<VirtualDevice> &device, const std::shared_ptr<Calbin> &calbin);  // GUESS
    virtual ~KvManager() = default;
    virtual bool canAllocate(std::uint32_t sequences) const = 0;                            // KNOWN name (S 5.1)
    virtual bool Apply(std::uint32_t lane, std::uint32_t tokens, KvSeqId *sequence) = 0;    // KNOWN name (A 6)
    virtual bool Free(KvSeqId sequence) = 0;                                                // GUESS
    virtual bool RemoveTokensAtEnd(KvSeqId sequence, std::uint32_t tokens) = 0;             // KNOWN name (S 9.3)
};

class CALRT_EXPORT InputBuf {  // KNOWN class
   public:
    static std::unique_ptr<InputBuf> Create(const std::shared_ptr<Calbin> &calbin, std::uint32_t submodel);  // GUESS
    virtual ~InputBuf() = default;
    virtual void MapBuf(std::uint32_t tensor, void *memory, std::size_t bytes) = 0;               // KNOWN name
    virtual void SliceTensor(
        std::uint32_t tensor, std::uint32_t axis, std::uint32_t begin, std::uint32_t count) = 0;  // KNOWN name
    virtual void SetHyperParam(std::uint32_t hyper_param, std::uint32_t element, std::int64_t value) = 0;  // GUESS
    virtual void SetKvSeq(std::uint32_t row, KvSeqId sequence) = 0;                               // GUESS
    virtual void ClearKvSeqs() = 0;                                                               // GUESS
};

class CALRT_EXPORT OutputBuf {  // KNOWN class
   public:
    static std::unique_ptr<OutputBuf> Create(const std::shared_ptr<Calbin> &calbin, std::uint32_t submodel);  // GUESS
    virtual ~OutputBuf() = default;
    virtual void MapBuf(std::uint32_t tensor, void *memory, std::size_t bytes) = 0;               // KNOWN name
    virtual void SliceTensor(
        std::uint32_t tensor, std::uint32_t axis, std::uint32_t begin, std::uint32_t count) = 0;  // KNOWN name
    virtual void Wait() = 0;                            // KNOWN; blocks, and no bound is known
    virtual double GetWaitTime() const = 0;             // KNOWN name; that it is milliseconds is a GUESS
    virtual double GetInputTransferTime() const = 0;    // KNOWN name; unit as above
    virtual double GetOutputTransferTime() const = 0;   // KNOWN name; unit as above
    virtual std::uint32_t GetStatus() const = 0;        // GUESS
    virtual std::uint64_t GetQueueSubmitted() const = 0;  // GUESS: S 16 asks for queue counters
    virtual std::uint64_t GetQueueCompleted() const = 0;  // GUESS
};

// Starts a job and returns: what Wait() waits for. KNOWN name; arguments, and that it does not block, are GUESSES.
CALRT_EXPORT void infer(VirtualDevice &device, KvManager &kv, InputBuf &input, OutputBuf &output, Engine engine);

}  // namespace calrt
