// What the PCI bus and the driver say of the board: the only things that decide what kind it is.
#pragma once

#include <cstdint>
#include <string>

namespace calculet {

struct PciBoard {
    std::string address, id, driver, driver_version;
    std::uint64_t memory_bytes = 0;  // that boards of this id have; not read from the device

    bool is_calculet() const { return !id.empty() && driver == "calculet_pci"; }
};

// The first board whose id we know, by address; all fields empty where there is none. Reads sysfs below `root`.
PciBoard find_board(const std::string &root);

}  // namespace calculet
