#include "failure.h"

#include <array>
#include <cstring>

namespace calculet {
namespace {

thread_local char text_of_thread[2 * CALCULET_TEXT_BYTES] = "";

constexpr std::array<const char *, CALCULET_VENDOR_ERROR + 1> kNames{
    "ok",          "invalid",     "wrong_state", "locked",      "no_device",   "no_file",     "bad_calbin",
    "no_capacity", "no_memory",   "device_busy", "timeout",     "engine_lost", "output_error", "ccu_fault",
    "pcie_error",  "unknown_dma", "device_lost", "unconfirmed", "not_quiet",   "unsupported", "vendor_error"};

}  // namespace

calculet_code remember(calculet_code code, const char *text) noexcept {
    const std::size_t bytes = strnlen(text, sizeof text_of_thread - 1);
    std::memcpy(text_of_thread, text, bytes);
    text_of_thread[bytes] = '\0';
    return code;
}

}  // namespace calculet

extern "C" const char *calculet_code_name(calculet_code code) {
    return code < 0 || code > CALCULET_VENDOR_ERROR ? "?" : calculet::kNames[static_cast<std::size_t>(code)];
}

extern "C" const char *calculet_error_text(void) { return calculet::text_of_thread; }

extern "C" uint32_t calculet_abi_version(void) { return CALCULET_CALRT_ABI; }
