// What the rest of the library knows of the vendor's: plain interfaces, whose failures are calculet::Failure. Only
// vendor_calrt.cpp stands behind them, so that a call guessed wrongly is mended in one file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace calculet::vendor {

struct Tensor {
    std::string name, dtype;
    bool is_output;
    std::vector<std::int64_t> shape;  // -1: decided by the job
};

struct Register {
    std::string name;
    std::uint32_t elements;
};

struct Submodel {
    std::string name, model_type;
    std::uint32_t workload, target_chips, batch;
    std::vector<Tensor> tensors;
    std::vector<Register> registers;
};

struct Description {
    std::string schema_version;
    std::uint32_t max_batch_size, max_seq_len, lanes, chips, vocab_size;
    std::uint64_t kv_token_bytes;
    std::vector<Submodel> submodels;
};

struct Golden {
    std::uint32_t submodel;
    std::vector<std::int32_t> tokens;
    std::vector<float> logits;
};

struct Status {
    std::uint32_t word;  // 0: well
    std::string text;
    std::uint64_t queue_submitted, queue_completed;
};

// What a job's wait came to, beside its output.
struct Account {
    std::uint32_t status = 0;
    std::uint64_t queue_submitted = 0, queue_completed = 0;
    double infer_s = 0, h2d_s = 0, d2h_s = 0;
};

class Kv {
   public:
    virtual ~Kv() = default;
    virtual bool can_allocate(std::uint32_t sequences) = 0;
    virtual bool allocate(std::uint32_t lane, std::uint32_t tokens, std::uint64_t &sequence) = 0;
    virtual bool release(std::uint64_t sequence) = 0;
    virtual bool remove_tail(std::uint64_t sequence, std::uint32_t tokens) = 0;
};

// The input and output buffers of one submodel on one engine. Nothing here allocates after the mapping.
class Buffers {
   public:
    virtual ~Buffers() = default;
    virtual void map_input(std::uint32_t tensor, void *memory, std::size_t bytes) = 0;
    virtual void map_output(std::uint32_t tensor, void *memory, std::size_t bytes) = 0;
    virtual void slice_input(std::uint32_t tensor, std::uint32_t axis, std::uint32_t begin, std::uint32_t count) = 0;
    virtual void slice_output(std::uint32_t tensor, std::uint32_t axis, std::uint32_t begin, std::uint32_t count) = 0;
    virtual void set_register(std::uint32_t index, std::uint32_t element, std::int64_t value) = 0;
    virtual void clear_sequences() = 0;
    virtual void set_sequence(std::uint32_t row, std::uint64_t sequence) = 0;
    virtual void infer() = 0;
    virtual void wait() = 0;  // without a bound: a waiter's thread alone may call it
    virtual Account account() = 0;
};

class Calbin {
   public:
    virtual ~Calbin() = default;
    virtual const Description &describe() const = 0;
    virtual std::vector<Golden> golden() = 0;
    virtual void configure() = 0;
    virtual std::shared_ptr<Kv> make_kv() = 0;
    virtual std::shared_ptr<Buffers> make_buffers(
        const std::shared_ptr<Kv> &kv, std::uint32_t submodel, std::uint32_t engine) = 0;
};

class Device {
   public:
    virtual ~Device() = default;
    virtual std::shared_ptr<Calbin> open_calbin(const std::vector<std::string> &shards) = 0;
    virtual void reset_configuration() = 0;
    virtual std::pair<double, double> memory_mib() = 0;  // used and total, as they are read
    virtual Status status() = 0;
    virtual std::string version() = 0;
    virtual std::string calcore_version() = 0;
    virtual std::uint32_t engines() = 0;
};

std::shared_ptr<Device> open_device();

// Where the vendor's library was loaded from, and whether it carries the emulator's marker.
std::string library_path();
bool is_emulator();

}  // namespace calculet::vendor
