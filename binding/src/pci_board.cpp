#include "pci_board.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

namespace calculet {
namespace {

namespace fs = std::filesystem;

struct Known {
    const char *id;
    std::uint64_t memory_bytes;
};

constexpr Known kKnown[] = {{"20f5:c001", 32768ULL << 20}};  // A 2: 32768 MiB of DRAM
constexpr std::size_t kDevicesMax = 4096;

std::string first_line(const fs::path &path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

// "0x20f5" and "0xc001" as "20f5:c001".
std::string id_of(const fs::path &device) {
    const std::string vendor = first_line(device / "vendor"), model = first_line(device / "device");
    return vendor.size() > 2 && model.size() > 2 ? vendor.substr(2) + ":" + model.substr(2) : "";
}

}  // namespace

PciBoard find_board(const std::string &root) {
    std::error_code error;
    std::vector<fs::path> devices;
    for (fs::directory_iterator entry(root, error), end; !error && entry != end && devices.size() < kDevicesMax;
         entry.increment(error))
        devices.push_back(entry->path());
    std::sort(devices.begin(), devices.end());
    for (const auto &device : devices) {
        const std::string id = id_of(device);
        for (const auto &known : kKnown) {
            if (id != known.id) continue;
            const fs::path driver = fs::read_symlink(device / "driver", error);
            return {device.filename().string(), id, driver.filename().string(),
                    first_line(device / "driver" / "module" / "version"), known.memory_bytes};
        }
    }
    return {};
}

}  // namespace calculet
