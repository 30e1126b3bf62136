#include "device.h"

#include <algorithm>
#include <utility>

using calculet::Failure;

namespace {

constexpr const char *kLockPath = "/run/lock/calculet0.lock";
constexpr const char *kPciRoot = "/sys/bus/pci/devices";
constexpr double kMib = 1048576.0;

// Whether this process has a device open, or had one that never came to rest.
enum class Slot { kFree, kTaken, kSpoilt };
std::atomic<Slot> process_slot{Slot::kFree};
calculet::DeviceLock *kept_lock = nullptr;  // of a process that lost a job: nobody else may take the board yet

// The process's place, given back unless the device was made.
class Place {
   public:
    Place() {
        auto expected = Slot::kFree;
        if (process_slot.compare_exchange_strong(expected, Slot::kTaken)) return;
        throw Failure(
            CALCULET_WRONG_STATE, expected == Slot::kTaken
                                      ? "this process has the device open already"
                                      : "a job of this process's device was lost: it cannot open another");
    }
    ~Place() {
        if (!is_kept_) process_slot = Slot::kFree;
    }
    void keep() { is_kept_ = true; }

   private:
    bool is_kept_ = false;
};

const char *kind_of(const calculet::PciBoard &board, bool is_emulator) {
    if (is_emulator) return "calrt-emulator";
    return board.is_calculet() ? "calculet" : "unknown";
}

}  // namespace

calculet_device::calculet_device(const calculet_open_options &options)
    : declared_memory_bytes_(options.declared_memory_bytes) {
    Place place;
    lock_ = std::make_unique<calculet::DeviceLock>(options.lock_path != nullptr ? options.lock_path : kLockPath);
    board_ = calculet::find_board(options.pci_root != nullptr ? options.pci_root : kPciRoot);
    vendor = calculet::vendor::open_device();
    engines = std::min<std::uint32_t>(vendor->engines(), CALCULET_ENGINES_MAX);
    for (std::uint32_t index = 0; index < engines; ++index) engines_[index].emplace(index);
    info_.is_emulator = calculet::vendor::is_emulator();
    info_.engines = engines;
    calculet::put(info_.kind, kind_of(board_, info_.is_emulator != 0));
    calculet::put(info_.pci_address, board_.address);
    calculet::put(info_.pci_id, board_.id);
    calculet::put(info_.driver, board_.driver);
    calculet::put(info_.driver_version, board_.driver_version);
    calculet::put(info_.calrt_version, vendor->version());
    calculet::put(info_.calcore_version, vendor->calcore_version());
    calculet::put(info_.library_path, calculet::vendor::library_path());
    place.keep();
}

calculet_device_info calculet_device::inspect() const { return info_; }

calculet_memory calculet_device::memory() {
    const auto [used_mib, total_mib] = vendor->memory_mib();
    calculet_memory memory{};
    memory.used_mib = used_mib;
    memory.total_mib = total_mib;
    memory.used_bytes = used_mib >= 0 ? static_cast<std::uint64_t>(used_mib * kMib) : 0;
    memory.total_is_nonsense = !(total_mib >= 1.0 && total_mib >= used_mib);
    if (declared_memory_bytes_ != 0) {
        memory.size_bytes = declared_memory_bytes_;
        memory.size_source = CALCULET_SIZE_DECLARED;
    } else if (board_.memory_bytes != 0) {
        memory.size_bytes = board_.memory_bytes;
        memory.size_source = CALCULET_SIZE_PCI;
    }
    return memory;
}

calculet_status calculet_device::status() {
    const auto word = vendor->status();
    calculet_status status{};
    status.ok = word.word == 0;
    status.word = word.word;
    calculet::put(status.text, word.text);
    status.queue_submitted = word.queue_submitted;
    status.queue_completed = word.queue_completed;
    status.engines = engines;
    for (std::uint32_t index = 0; index < engines; ++index) status.engine[index] = engines_[index]->inspect();
    return status;
}

calculet_code calculet_device::reset_configuration() {
    if (models != 0) throw Failure(CALCULET_WRONG_STATE, "a model is configured: unload it first");
    vendor->reset_configuration();
    if (!is_stuck()) return CALCULET_OK;
    return calculet::remember(CALCULET_NOT_QUIET, "the configuration is cleared, but a lost job may still write");
}

calculet_code calculet_device::close(std::unique_ptr<calculet_device> device) {
    if (device->models != 0 || device->calbins != 0) {
        static_cast<void>(device.release());
        throw Failure(CALCULET_WRONG_STATE, "a model or a calbin is open: unload and close them first");
    }
    if (!device->has_lost_engine()) {
        device.reset();
        process_slot = Slot::kFree;
        return CALCULET_OK;
    }
    process_slot = Slot::kSpoilt;
    kept_lock = device->lock_.release();
    return calculet::remember(CALCULET_NOT_QUIET, "a job was lost: device and lock are kept until the process ends");
}

calculet::Engine &calculet_device::engine(std::uint32_t index) {
    if (index >= engines) throw Failure(CALCULET_INVALID, "engine: the device has " + std::to_string(engines));
    return *engines_[index];
}

bool calculet_device::has_job() const {
    return std::any_of(engines_.begin(), engines_.end(), [](const auto &each) { return each && each->has_job(); });
}

bool calculet_device::is_stuck() const {
    return std::any_of(engines_.begin(), engines_.end(), [](const auto &each) { return each && each->is_stuck(); });
}

bool calculet_device::has_lost_engine() const {
    return std::any_of(engines_.begin(), engines_.end(), [](const auto &each) { return each && each->is_lost(); });
}
