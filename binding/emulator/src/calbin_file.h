// Reads the container of CALBIN.md.
#pragma once

#include <calrt/calrt.h>

#include <cstdint>
#include <string>
#include <vector>

namespace emulator {

// What a job of a submodel takes: CALBIN.md, `time`.
struct JobTime {
    std::uint64_t base_ns = 0;
    std::uint64_t unit_ns = 0;
    std::uint64_t pair_ps = 0;
};

struct CalbinFile {
    calrt::CalbinDesc desc;
    std::vector<JobTime> times;  // by submodel
    std::uint64_t parameter_bytes = 0;
    std::string calcore_commit;
};

// Throws calrt::Error: kNoFile, or kBadCalbin with the line and what is wrong with it.
CalbinFile read_calbin(const std::vector<std::string> &shards);

}  // namespace emulator
