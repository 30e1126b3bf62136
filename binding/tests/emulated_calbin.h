// Writes the container of emulator/CALBIN.md into a directory of its own, right or spoilt on purpose.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace test {

struct Shape {
    std::vector<std::uint32_t> batches{1};
    std::uint32_t lanes = 4;
    std::uint32_t max_seq_len = 128;
    std::uint32_t vocab_size = 300;
    std::uint64_t base_ns = 0;  // of every job
    std::vector<std::uint64_t> parameter_bytes{5, 7};
};

// The metadata of a calbin with today's faults: both submodels typed llm_decode, workload 0, no chips.
std::string metadata_of(const Shape &shape);

using Spoil = std::function<void(std::string &bytes)>;  // a shard's whole file, before it is written

class CalbinDirectory {
   public:
    explicit CalbinDirectory(const Shape &shape = {});
    // `metadata` as it is; `spoil` changes the first shard's bytes.
    CalbinDirectory(const std::string &metadata, const std::vector<std::uint64_t> &parameter_bytes, const Spoil &spoil);
    ~CalbinDirectory();
    CalbinDirectory(const CalbinDirectory &) = delete;
    CalbinDirectory &operator=(const CalbinDirectory &) = delete;

    std::string path(const std::string &name) const { return (directory_ / name).string(); }
    const std::vector<std::string> &shards() const { return shards_; }

   private:
    std::filesystem::path directory_;
    std::vector<std::string> shards_;
};

std::uint32_t crc32_of(const std::string &bytes);

}  // namespace test
