// The vendor's entry points, and what a calbin must have for the emulated board to run it.
#include <calrt/calrt.h>

#include <cstring>

#include "board.h"

namespace emulator {
namespace {

[[noreturn]] void refuse(const std::string &submodel, const char *what) {
    throw calrt::Error(calrt::ErrorCode::kBadCalbin, "submodel " + submodel + " " + what);
}

std::uint32_t find_register(const calrt::SubmodelDesc &submodel, const char *name) {
    for (std::uint32_t index = 0; index < submodel.hyper_params.size(); ++index) {
        const auto &hyper_param = submodel.hyper_params[index];
        if (hyper_param.name != name) continue;
        if (hyper_param.elements < submodel.batch) refuse(submodel.name, "has a length register below its batch");
        return index;
    }
    refuse(submodel.name, "has no register past_kv_cur_seq_len, or no cur_seq_len");
}

// Tokens are the first int32 input and positions the second, a mask is a uint8 input, logits the one output.
Ports find_ports(const calrt::SubmodelDesc &submodel) {
    constexpr std::uint32_t kNone = ~0U;
    Ports ports{kNone, kNone, kNone, {}, 0, 0, false};
    for (std::uint32_t index = 0; index < submodel.tensors.size(); ++index) {
        const auto &tensor = submodel.tensors[index];
        if (tensor.is_output && tensor.dtype == "bfloat16" && ports.logits == kNone)
            ports.logits = index;
        else if (!tensor.is_output && tensor.dtype == "int32" && tensor.shape.size() == 2 && ports.tokens == kNone)
            ports.tokens = index;
        else if (!tensor.is_output && tensor.dtype == "int32" && tensor.shape.size() == 2 && ports.positions == kNone)
            ports.positions = index;
        else if (!tensor.is_output && tensor.dtype == "uint8" && !ports.mask)
            ports.mask = index;
        else
            refuse(submodel.name, "has a tensor that the emulated board has no use for");
    }
    if (ports.tokens == kNone || ports.positions == kNone || ports.logits == kNone)
        refuse(submodel.name, "lacks tokens, positions or logits");
    ports.takes_many = submodel.tensors[ports.tokens].shape[1] == -1;
    if (ports.takes_many && submodel.batch != 1) refuse(submodel.name, "takes many tokens of more than one sequence");
    if (submodel.batch > 1 && !ports.mask) refuse(submodel.name, "has a batch and no mask contract");
    ports.past_register = find_register(submodel, "past_kv_cur_seq_len");
    ports.current_register = find_register(submodel, "cur_seq_len");
    return ports;
}

}  // namespace

LoadedCalbin::LoadedCalbin(CalbinFile read) : file(std::move(read)) {
    if (file.desc.vocab_size <= kEndToken)
        throw calrt::Error(calrt::ErrorCode::kBadCalbin, "vocab_size is below 259: the emulated model speaks in bytes");
    for (const auto &submodel : file.desc.submodels) ports.push_back(find_ports(submodel));
}

std::vector<calrt::Golden> LoadedCalbin::GetGolden() const {
    std::vector<calrt::Golden> golden;
    for (std::uint32_t index = 0; index < ports.size(); ++index) {
        if (!ports[index].takes_many) continue;
        golden.push_back({index, {1, 2, 3}, std::vector<float>(file.desc.vocab_size, 0.0F)});
        std::uint64_t history = 0;
        for (const std::int32_t token : golden.back().tokens) history = extend(history, token);
        golden.back().logits[static_cast<std::size_t>(next_token(history))] = 100.0F;
    }
    return golden;
}

}  // namespace emulator

namespace calrt {

std::shared_ptr<VirtualDevice> VirtualDevice::Create() { return std::make_shared<emulator::Board>(); }

std::unique_ptr<KvManager> KvManager::Create(
    const std::shared_ptr<VirtualDevice> & /*device*/, const std::shared_ptr<Calbin> &calbin) {
    const auto &desc = calbin->Describe();
    return std::make_unique<emulator::KvMemory>(desc.lanes, desc.max_seq_len);
}

std::unique_ptr<InputBuf> InputBuf::Create(const std::shared_ptr<Calbin> &calbin, std::uint32_t submodel) {
    return std::make_unique<emulator::InputBuffer>(std::static_pointer_cast<emulator::LoadedCalbin>(calbin), submodel);
}

std::unique_ptr<OutputBuf> OutputBuf::Create(const std::shared_ptr<Calbin> &calbin, std::uint32_t submodel) {
    return std::make_unique<emulator::OutputBuffer>(std::static_pointer_cast<emulator::LoadedCalbin>(calbin), submodel);
}

void infer(VirtualDevice &device, KvManager &kv, InputBuf &input, OutputBuf &output, Engine engine) {
    static_cast<emulator::Board &>(device).start(
        static_cast<emulator::KvMemory &>(kv), static_cast<emulator::InputBuffer &>(input),
        static_cast<emulator::OutputBuffer &>(output), static_cast<std::uint32_t>(engine));
}

}  // namespace calrt
