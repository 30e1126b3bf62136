#include "calbin.h"

#include <algorithm>

using calculet::Failure;
using calculet::put;
using calculet::require;

calculet_calbin::calculet_calbin(calculet_device &of, const std::vector<std::string> &shards)
    : device(of), vendor(of.vendor->open_calbin(shards)) {
    const auto &description = vendor->describe();
    if (description.submodels.size() > CALCULET_SUBMODELS_MAX || description.lanes > CALCULET_LANES_MAX)
        throw Failure(CALCULET_BAD_CALBIN, "the calbin has more than 64 submodels or 1,024 lanes");
    for (const auto &each : description.submodels)
        if (each.tensors.size() > CALCULET_TENSORS_MAX || each.registers.size() > CALCULET_CSRS_MAX)
            throw Failure(CALCULET_BAD_CALBIN, "submodel " + each.name + " has more than 64 tensors or CSRs");
    ++device.calbins;
}

calculet_calbin::~calculet_calbin() { --device.calbins; }

calculet_calbin_info calculet_calbin::inspect() const {
    const auto &description = vendor->describe();
    calculet_calbin_info info{};
    put(info.schema_version, description.schema_version);
    info.max_batch_size = description.max_batch_size;
    info.max_seq_len = description.max_seq_len;
    info.lanes = description.lanes;
    info.submodels = static_cast<std::uint32_t>(description.submodels.size());
    info.chips = description.chips;
    info.vocab_size = description.vocab_size;
    info.kv_token_bytes = description.kv_token_bytes;
    return info;
}

const calculet::vendor::Submodel &calculet_calbin::submodel(std::uint32_t index) const {
    const auto &submodels = vendor->describe().submodels;
    if (index >= submodels.size())
        throw Failure(CALCULET_INVALID, "submodel: the calbin has " + std::to_string(submodels.size()));
    return submodels[index];
}

calculet_submodel_info calculet_calbin::inspect_submodel(std::uint32_t index) const {
    const auto &found = submodel(index);
    calculet_submodel_info info{};
    put(info.name, found.name);
    put(info.model_type, found.model_type);
    info.workload = found.workload;
    info.target_chips = found.target_chips;
    info.batch = found.batch;
    info.max_seq_len = vendor->describe().max_seq_len;
    info.tensors = static_cast<std::uint32_t>(found.tensors.size());
    info.csrs = static_cast<std::uint32_t>(found.registers.size());
    return info;
}

calculet_tensor_info calculet_calbin::inspect_tensor(std::uint32_t of, std::uint32_t index) const {
    const auto &tensors = submodel(of).tensors;
    require(index < tensors.size(), "tensor: the submodel has not so many");
    const auto &found = tensors[index];
    calculet_tensor_info info{};
    put(info.name, found.name);
    put(info.dtype, found.dtype);
    info.direction = found.is_output ? CALCULET_OUTPUT : CALCULET_INPUT;
    info.rank = static_cast<std::uint32_t>(std::min<std::size_t>(found.shape.size(), CALCULET_RANK_MAX));
    std::copy_n(found.shape.begin(), info.rank, info.shape);
    return info;
}

calculet_csr_info calculet_calbin::inspect_csr(std::uint32_t of, std::uint32_t index) const {
    const auto &registers = submodel(of).registers;
    require(index < registers.size(), "csr: the submodel has not so many");
    calculet_csr_info info{};
    put(info.name, registers[index].name);
    info.elements = registers[index].elements;
    return info;
}

namespace calculet {
namespace {

[[noreturn]] void refuse(const vendor::Submodel &submodel, const std::string &what) {
    throw Failure(CALCULET_BAD_CALBIN, "submodel " + submodel.name + " " + what);
}

// The index of an exact name: a substring decides nothing.
template <typename Named>
std::uint32_t find(const vendor::Submodel &submodel, const std::vector<Named> &all, const std::string &name) {
    for (std::uint32_t index = 0; index < all.size(); ++index)
        if (all[index].name == name) return index;
    refuse(submodel, "has nothing called " + name);
}

std::uint32_t find_input(const vendor::Submodel &submodel, const std::string &name, const char *dtype) {
    const auto index = find(submodel, submodel.tensors, name);
    const auto &tensor = submodel.tensors[index];
    if (tensor.is_output || tensor.dtype != dtype || tensor.shape.empty() || tensor.shape[0] != submodel.batch)
        refuse(submodel, name + " is not an input of " + dtype + " with a row for each of the batch");
    return index;
}

std::uint32_t find_length(const vendor::Submodel &submodel, const std::string &name) {
    const auto index = find(submodel, submodel.registers, name);
    if (submodel.registers[index].elements < submodel.batch) refuse(submodel, name + " has fewer elements than rows");
    return index;
}

std::string given(const char *name, const char *otherwise) { return name != nullptr ? name : otherwise; }

}  // namespace

Role find_role(const calculet_calbin &calbin, const calculet_role &asked) {
    require(asked.role == CALCULET_PREFILL || asked.role == CALCULET_DECODE, "roles.role: neither prefill nor decode");
    require(asked.submodel != nullptr, "roles.submodel: not given");
    const auto &description = calbin.vendor->describe();
    const auto named = std::find_if(description.submodels.begin(), description.submodels.end(), [&](const auto &each) {
        return each.name == asked.submodel;
    });
    if (named == description.submodels.end())
        throw Failure(CALCULET_BAD_CALBIN, std::string("the calbin has no submodel called ") + asked.submodel);
    const auto &submodel = *named;
    if (submodel.batch == 0 || submodel.batch > CALCULET_BATCH_MAX) refuse(submodel, "has no batch from 1 to 64");
    if (asked.role == CALCULET_PREFILL && submodel.batch != 1) refuse(submodel, "is a prefill of more than one row");

    Role role{};
    role.role = asked.role;
    role.submodel = static_cast<std::uint32_t>(named - description.submodels.begin());
    role.batch = submodel.batch;
    role.tokens = find_input(submodel, given(asked.tokens, "inputs[0]"), "int32");
    role.positions = find_input(submodel, given(asked.positions, "inputs[1]"), "int32");
    if (asked.lane_mask != nullptr) role.mask = find_input(submodel, asked.lane_mask, "uint8");
    role.past_register = find_length(submodel, given(asked.past_length_csr, "past_kv_cur_seq_len"));
    role.current_register = find_length(submodel, given(asked.current_length_csr, "cur_seq_len"));

    const auto &tokens = submodel.tensors[role.tokens].shape;
    if (tokens.size() != 2 || submodel.tensors[role.positions].shape != tokens)
        refuse(submodel, "has tokens and positions of other shapes than (batch, tokens)");
    const bool is_free = tokens[1] == CALCULET_DYNAMIC;
    if (!is_free && (tokens[1] < 1 || tokens[1] > description.max_seq_len)) refuse(submodel, "takes too many tokens");
    if (is_free && role.role == CALCULET_DECODE) refuse(submodel, "is called a decode and takes a whole prompt");
    role.row_tokens = is_free ? description.max_seq_len : static_cast<std::uint32_t>(tokens[1]);

    const auto logits = given(asked.logits, "outputs[0]");
    role.logits = find(submodel, submodel.tensors, logits);
    const auto &output = submodel.tensors[role.logits];
    role.is_bfloat16 = output.dtype == "bfloat16";
    if (!output.is_output || (!role.is_bfloat16 && output.dtype != "float32") || output.shape.size() != 2 ||
        output.shape[1] < 1 || output.shape[1] > (1 << 24))
        refuse(submodel, logits + " is not an output of bfloat16 or float32 with a row of logits each");
    role.vocab_size = static_cast<std::uint32_t>(output.shape[1]);
    return role;
}

}  // namespace calculet
