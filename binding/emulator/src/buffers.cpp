#include "buffers.h"

#include <cstring>

#include "board.h"

namespace emulator {
namespace {

constexpr std::uint16_t kChosenLogit = 0x42C8;  // bfloat16 of 100, as calculet_trio/runtimes/emulated.py chooses
constexpr std::uint32_t kNothingSaid = ~0U;

[[noreturn]] void refuse(const std::string &what) { throw calrt::Error(calrt::ErrorCode::kInvalid, what); }

const calrt::TensorDesc &tensor_of(const LoadedCalbin &calbin, std::uint32_t submodel, std::uint32_t tensor) {
    const auto &tensors = calbin.Describe().submodels.at(submodel).tensors;
    if (tensor >= tensors.size()) refuse("no tensor " + std::to_string(tensor));
    return tensors[tensor];
}

}  // namespace

InputBuffer::InputBuffer(std::shared_ptr<LoadedCalbin> of, std::uint32_t index)
    : calbin(std::move(of)), submodel(index) {
    const auto &desc = calbin->Describe().submodels.at(index);
    tensors.resize(desc.tensors.size());
    for (const auto &hyper_param : desc.hyper_params) registers.emplace_back(hyper_param.elements);
    sequences.resize(desc.batch);
}

void InputBuffer::MapBuf(std::uint32_t tensor, void *memory, std::size_t bytes) {
    if (tensor_of(*calbin, submodel, tensor).is_output) refuse("an output is mapped as an input");
    tensors[tensor] = {memory, bytes, 0, 0};
}

void InputBuffer::SliceTensor(std::uint32_t tensor, std::uint32_t axis, std::uint32_t begin, std::uint32_t count) {
    if (tensor >= tensors.size() || axis != 1) refuse("an input is sliced along its axis 1");
    tensors[tensor].begin = begin;
    tensors[tensor].count = count;
}

void InputBuffer::SetHyperParam(std::uint32_t hyper_param, std::uint32_t element, std::int64_t value) {
    if (hyper_param >= registers.size() || element >= registers[hyper_param].size()) refuse("no such register");
    registers[hyper_param][element] = value;
}

void InputBuffer::SetKvSeq(std::uint32_t row, calrt::KvSeqId sequence) {
    if (row >= sequences.size()) refuse("a batch has no row " + std::to_string(row));
    sequences[row] = sequence;
}

void InputBuffer::ClearKvSeqs() { sequences.assign(sequences.size(), 0); }

OutputBuffer::OutputBuffer(std::shared_ptr<LoadedCalbin> of, std::uint32_t index)
    : calbin(std::move(of)), submodel(index) {
    tensors.resize(calbin->Describe().submodels.at(index).tensors.size());
}

void OutputBuffer::MapBuf(std::uint32_t tensor, void *memory, std::size_t bytes) {
    if (!tensor_of(*calbin, submodel, tensor).is_output) refuse("an input is mapped as an output");
    tensors[tensor] = {memory, bytes, 0, 0};
    std::memset(memory, 0, bytes);
    const std::size_t row_bytes = std::size_t{2} * calbin->Describe().vocab_size;
    said_.assign(bytes / row_bytes, kNothingSaid);
}

void OutputBuffer::SliceTensor(std::uint32_t tensor, std::uint32_t axis, std::uint32_t begin, std::uint32_t count) {
    if (tensor >= tensors.size() || axis != 0) refuse("an output is sliced along its axis 0");
    tensors[tensor].begin = begin;
    tensors[tensor].count = count;
}

void OutputBuffer::say(std::uint32_t row, std::int32_t token) {
    const std::size_t vocab = calbin->Describe().vocab_size;
    if (row >= said_.size()) refuse("the mapped output has no row " + std::to_string(row));
    auto *logits = static_cast<std::uint16_t *>(tensors[calbin->ports.at(submodel).logits].memory) + row * vocab;
    if (said_[row] != kNothingSaid) logits[said_[row]] = 0;
    said_[row] = static_cast<std::uint32_t>(token);
    logits[said_[row]] = kChosenLogit;
}

void OutputBuffer::begin() {
    const std::lock_guard lock(mutex_);
    is_running_ = true;
    error.reset();
}

void OutputBuffer::finish(std::optional<calrt::ErrorCode> code) {
    const std::lock_guard lock(mutex_);
    error = code;
    is_running_ = false;
    done_.notify_all();  // under the lock: the buffer may be gone right after it
}

void OutputBuffer::Wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return !is_running_; });
    if (error) throw calrt::Error(*error, "the job ended with the emulated error " + std::to_string(GetStatus()));
}

}  // namespace emulator
