#include "calbin_file.h"

#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

namespace emulator {
namespace {

constexpr std::size_t kHeaderBytes = 64;
constexpr std::uint64_t kMetadataBytesMax = 1 << 20;
constexpr std::uint64_t kParameterBytesMax = 1ULL << 50;
constexpr std::size_t kShardsMax = 64;
constexpr std::size_t kSubmodelsMax = 64;
constexpr std::size_t kTensorsMax = 64;
constexpr std::size_t kRegistersMax = 64;
constexpr std::size_t kNameMax = 128;

[[noreturn]] void refuse(const std::string &what) { throw calrt::Error(calrt::ErrorCode::kBadCalbin, what); }

std::uint32_t crc32(const char *data, std::size_t bytes) {
    std::uint32_t crc = ~0U;
    for (std::size_t index = 0; index < bytes; ++index) {
        crc ^= static_cast<unsigned char>(data[index]);
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xEDB88320U & (0U - (crc & 1U)));
    }
    return ~crc;
}

template <typename Whole>
Whole take(const char *header, std::size_t offset) {
    Whole value;  // little-endian, as every machine is that a board is plugged into
    std::memcpy(&value, header + offset, sizeof value);
    return value;
}

struct Header {
    std::uint16_t index;
    std::uint16_t count;
    std::uint64_t metadata_bytes;
    std::uint64_t parameter_bytes;
    std::string set;  // set_id and the metadata's checksum
};

Header read_header(std::ifstream &file, const std::string &path) {
    char bytes[kHeaderBytes];
    if (!file.read(bytes, kHeaderBytes)) refuse(path + " is shorter than its header of 64 bytes");
    if (std::memcmp(bytes, "CALBINEM", 8) != 0) refuse(path + " is not an emulated calbin: its magic is another");
    if (take<std::uint32_t>(bytes, 52) != crc32(bytes, 52)) refuse(path + ": the header's checksum does not hold");
    if (take<std::uint16_t>(bytes, 8) != 0 || take<std::uint16_t>(bytes, 10) != 1)
        refuse(path + " has another version than 0.1");
    if (take<std::uint64_t>(bytes, 56) != 0) refuse(path + ": bytes 56 to 63 are not zero");
    Header header{take<std::uint16_t>(bytes, 12), take<std::uint16_t>(bytes, 14), take<std::uint64_t>(bytes, 16),
                  take<std::uint64_t>(bytes, 24), std::string(bytes + 32, 20)};
    if (header.metadata_bytes > kMetadataBytesMax || (header.index == 0) != (header.metadata_bytes > 0))
        refuse(path + ": metadata_bytes is out of range for its shard_index");
    if (header.parameter_bytes > kParameterBytesMax) refuse(path + ": parameter_bytes is above 2^50");
    file.seekg(0, std::ios::end);
    const auto size = static_cast<std::uint64_t>(file.tellg());
    if (size != kHeaderBytes + header.metadata_bytes + header.parameter_bytes)
        refuse(path + " is longer or shorter than its header says");
    return header;
}

// The metadata, line by line, with the words of each.
class Lines {
   public:
    explicit Lines(const std::string &text) : text_(text) {
        if (text.empty() || text.back() != '\n') refuse("the metadata's last line has no end");
        advance();
    }

    const std::vector<std::string> &words() const { return words_; }
    bool starts(const char *key) const { return !words_.empty() && words_[0] == key; }

    // The words after `key`, which must begin this line; goes on to the next.
    std::vector<std::string> take(const char *key, std::size_t least, std::size_t most) {
        if (!starts(key)) fail(std::string("should begin with ") + key);
        const std::vector<std::string> rest(words_.begin() + 1, words_.end());
        if (rest.size() < least || rest.size() > most) fail(std::string("has too few or too many words for ") + key);
        advance();
        return rest;
    }

    std::uint64_t whole(const char *key, std::uint64_t least, std::uint64_t most) {
        const std::string word = take(key, 1, 1)[0];
        return whole_of(word, least, most);
    }

    std::uint64_t whole_of(const std::string &word, std::uint64_t least, std::uint64_t most) const {
        if (word.empty() || word.size() > 18 || word.find_first_not_of("0123456789") != std::string::npos)
            fail(word + " is not a whole number");
        const std::uint64_t value = std::stoull(word);
        if (value < least || value > most)
            fail(word + " is not from " + std::to_string(least) + " to " + std::to_string(most));
        return value;
    }

    [[noreturn]] void fail(const std::string &what) const {
        refuse("metadata line " + std::to_string(number_ - 1) + " " + what);
    }

    bool is_over() const { return words_.empty() && begin_ >= text_.size(); }

   private:
    void advance() {
        words_.clear();
        ++number_;
        if (begin_ >= text_.size()) return;
        const auto end = text_.find('\n', begin_);
        std::istringstream line(text_.substr(begin_, end - begin_));
        begin_ = end + 1;
        for (std::string word; std::getline(line, word, ' ');) {
            if (word.empty() || word.size() > kNameMax) fail("has an empty word, or one above 128 characters");
            for (const char letter : word)
                if (letter < 0x21 || letter > 0x7e) fail("has an invisible character");
            words_.push_back(word);
        }
    }

    const std::string &text_;
    std::size_t begin_ = 0;
    int number_ = 1;
    std::vector<std::string> words_;
};

calrt::TensorDesc read_tensor(Lines &lines) {
    const auto words = lines.take("tensor", 4, 3 + 8);
    if (words[0] != "input" && words[0] != "output") lines.fail("says neither input nor output");
    calrt::TensorDesc tensor{words[1], words[2], words[0] == "output", {}};
    for (std::size_t index = 3; index < words.size(); ++index)
        tensor.shape.push_back(
            words[index] == "-1" ? -1 : static_cast<std::int64_t>(lines.whole_of(words[index], 1, 1ULL << 40)));
    return tensor;
}

calrt::SubmodelDesc read_submodel(Lines &lines, const calrt::CalbinDesc &calbin, JobTime &time) {
    calrt::SubmodelDesc submodel;
    submodel.name = lines.take("submodel", 1, 1)[0];
    submodel.model_type = lines.take("model_type", 1, 1)[0];
    submodel.batch = static_cast<std::uint32_t>(lines.whole("batch", 1, calbin.max_batch_size));
    submodel.workload = static_cast<std::uint32_t>(lines.whole("workload", 0, UINT32_MAX));
    for (const auto &word : lines.take("target_chips", 0, 16))
        submodel.tar_chip_n.push_back(static_cast<std::uint32_t>(lines.whole_of(word, 0, 15)));
    while (lines.starts("tensor")) submodel.tensors.push_back(read_tensor(lines));
    if (submodel.tensors.empty() || submodel.tensors.size() > kTensorsMax) lines.fail("ends none, or above 64 tensors");
    while (lines.starts("csr")) {
        const auto words = lines.take("csr", 2, 2);
        submodel.hyper_params.push_back({words[0], static_cast<std::uint32_t>(lines.whole_of(words[1], 1, 65536))});
    }
    if (submodel.hyper_params.size() > kRegistersMax) lines.fail("ends more than 64 registers");
    const auto words = lines.take("time", 3, 3);
    constexpr std::uint64_t kTimeMax = 1'000'000'000'000'000ULL;
    time = {lines.whole_of(words[0], 0, kTimeMax), lines.whole_of(words[1], 0, kTimeMax),
            lines.whole_of(words[2], 0, kTimeMax)};
    return submodel;
}

void read_metadata(const std::string &text, CalbinFile &calbin) {
    Lines lines(text);
    auto &desc = calbin.desc;
    desc.version = "v0.1";
    lines.take("name", 1, 1);
    lines.take("compiler", 2, 2);
    calbin.calcore_commit = lines.take("calcore_rt", 1, 1)[0];
    lines.take("chip_mode", 1, 1);
    desc.chips = static_cast<std::uint32_t>(lines.whole("chips", 1, 16));
    desc.max_batch_size = static_cast<std::uint32_t>(lines.whole("max_batch_size", 1, 1024));
    desc.max_seq_len = static_cast<std::uint32_t>(lines.whole("max_seq_len", 1, 1 << 24));
    desc.lanes = static_cast<std::uint32_t>(lines.whole("lanes", 1, 1024));
    desc.vocab_size = static_cast<std::uint32_t>(lines.whole("vocab_size", 1, 1 << 24));
    desc.kv_bytes_per_token = lines.whole("kv_bytes_per_token", 0, 1ULL << 50);
    std::set<std::string> names;
    while (lines.starts("submodel")) {
        calbin.times.emplace_back();
        desc.submodels.push_back(read_submodel(lines, desc, calbin.times.back()));
        if (!names.insert(desc.submodels.back().name).second) lines.fail("ends a submodel whose name is there already");
        if (names.size() > kSubmodelsMax) lines.fail("ends more than 64 submodels");
    }
    if (names.empty()) lines.fail("should begin the first submodel");
    lines.take("end", 0, 0);
    if (!lines.is_over()) refuse("the metadata goes on after end");
}

}  // namespace

CalbinFile read_calbin(const std::vector<std::string> &shards) {
    if (shards.empty() || shards.size() > kShardsMax) refuse("a calbin has 1 to 64 shards");
    CalbinFile calbin;
    std::string metadata, set;
    std::set<std::uint16_t> seen;
    for (const auto &path : shards) {
        std::ifstream file(path, std::ios::binary);
        if (!file) throw calrt::Error(calrt::ErrorCode::kNoFile, path + " cannot be opened");
        const Header header = read_header(file, path);
        if (set.empty()) set = header.set;
        if (header.set != set) refuse(path + " belongs to another set");
        if (header.count != shards.size() || header.index >= header.count || !seen.insert(header.index).second)
            refuse(path + ": a shard is missing, doubled or superfluous");
        calbin.parameter_bytes += header.parameter_bytes;
        if (header.index == 0) {
            metadata.resize(header.metadata_bytes);
            file.seekg(kHeaderBytes);
            if (!file.read(metadata.data(), static_cast<std::streamsize>(metadata.size())))
                refuse(path + ": the metadata cannot be read");
        }
    }
    if (crc32(metadata.data(), metadata.size()) != take<std::uint32_t>(set.data(), 16))
        refuse("the metadata's checksum does not hold");
    read_metadata(metadata, calbin);
    return calbin;
}

}  // namespace emulator
