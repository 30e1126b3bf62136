#include "emulated_calbin.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace test {
namespace {

template <typename Whole>
std::string little_endian(Whole value) {
    return std::string(reinterpret_cast<const char *>(&value), sizeof value);
}

void write_submodel(std::ostream &out, const Shape &shape, const std::string &name, std::uint32_t batch, bool is_many) {
    const std::string extent = is_many ? " -1" : " 1";
    out << "submodel " << name << "\nmodel_type llm_decode\nbatch " << batch << "\nworkload 0\ntarget_chips\n"
        << "tensor input inputs[0] int32 " << batch << extent << "\ntensor input inputs[1] int32 " << batch << extent
        << "\n";
    if (batch > 1) out << "tensor input lane_valid uint8 " << batch << "\n";
    out << "tensor output outputs[0] bfloat16 " << (is_many ? std::string("-1") : std::to_string(batch)) << " "
        << shape.vocab_size << "\ncsr past_kv_cur_seq_len " << batch << "\ncsr cur_seq_len " << batch
        << "\ncsr spare 2\ntime " << shape.base_ns << " 0 0\n";
}

}  // namespace

std::uint32_t crc32_of(const std::string &bytes) {
    std::uint32_t crc = ~0U;
    for (const char byte : bytes) {
        crc ^= static_cast<unsigned char>(byte);
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xEDB88320U & (0U - (crc & 1U)));
    }
    return ~crc;
}

std::string metadata_of(const Shape &shape) {
    std::ostringstream out;
    out << "name tested\ncompiler tests 1\ncalcore_rt abc123\nchip_mode MCHIP\nchips 2\nmax_batch_size "
        << shape.batches.back() << "\nmax_seq_len " << shape.max_seq_len << "\nlanes " << shape.lanes << "\nvocab_size "
        << shape.vocab_size << "\nkv_bytes_per_token 98304\n";
    write_submodel(out, shape, "prefill", 1, true);
    for (const auto batch : shape.batches)
        write_submodel(out, shape, batch == 1 ? "decode" : "decode_b" + std::to_string(batch), batch, false);
    out << "end\n";
    return out.str();
}

CalbinDirectory::CalbinDirectory(const Shape &shape)
    : CalbinDirectory(metadata_of(shape), shape.parameter_bytes, [](std::string &) {}) {}

CalbinDirectory::CalbinDirectory(
    const std::string &metadata, const std::vector<std::uint64_t> &parameter_bytes, const Spoil &spoil) {
    char name[] = "/tmp/calculet-binding-XXXXXX";
    if (mkdtemp(name) == nullptr) throw std::runtime_error("no directory for the test");
    directory_ = name;
    for (std::size_t index = 0; index < parameter_bytes.size(); ++index) {
        const std::string held = index == 0 ? metadata : "";
        std::string bytes = "CALBINEM" + little_endian<std::uint16_t>(0) + little_endian<std::uint16_t>(1) +
                            little_endian(static_cast<std::uint16_t>(index)) +
                            little_endian(static_cast<std::uint16_t>(parameter_bytes.size())) +
                            little_endian<std::uint64_t>(held.size()) + little_endian(parameter_bytes[index]) +
                            std::string(16, 'i') + little_endian(crc32_of(metadata));
        bytes += little_endian(crc32_of(bytes)) + std::string(8, '\0') + held;
        bytes += std::string(parameter_bytes[index], 'p');
        if (index == 0) spoil(bytes);
        shards_.push_back(path("shard" + std::to_string(index) + ".calbin"));
        std::ofstream(shards_.back(), std::ios::binary) << bytes;
    }
}

CalbinDirectory::~CalbinDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
}

}  // namespace test
