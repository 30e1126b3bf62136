// The process's one device: its lock, its board, its engines.
#pragma once

#include <calculet_calrt.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "device_lock.h"
#include "engine.h"
#include "pci_board.h"
#include "thread_rules.h"
#include "vendor.h"

struct calculet_device {
   public:
    explicit calculet_device(const calculet_open_options &options);

    calculet_device_info inspect() const;
    calculet_memory memory();
    calculet_status status();
    calculet_code reset_configuration();

    // Gives everything back, unless a job was lost.
    static calculet_code close(std::unique_ptr<calculet_device> device);

    calculet::Engine &engine(std::uint32_t index);
    bool has_job() const;
    bool is_stuck() const;  // a lost job's wait has not come back
    bool has_lost_engine() const;
    std::shared_ptr<calculet::vendor::Device> vendor;
    std::uint32_t engines = 0;
    std::mutex vendor_calls;  // KV calls and submissions, one after another: nobody says that the vendor's may overlap
    std::atomic<std::uint32_t> calbins{0}, models{0};
    calculet::OneUser control{"the control calls"};

   private:
    std::unique_ptr<calculet::DeviceLock> lock_;
    calculet::PciBoard board_;
    calculet_device_info info_{};
    std::uint64_t declared_memory_bytes_;
    std::array<std::optional<calculet::Engine>, CALCULET_ENGINES_MAX> engines_;
};
