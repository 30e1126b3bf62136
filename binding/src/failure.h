// How a call fails inside the library, and how that becomes a code and a text at the boundary.
#pragma once

#include <calculet_calrt.h>

#include <exception>
#include <new>
#include <stdexcept>
#include <string>

namespace calculet {

class Failure : public std::runtime_error {
   public:
    Failure(calculet_code code, const std::string &text) : std::runtime_error(text), code_(code) {}
    calculet_code code() const noexcept { return code_; }

   private:
    calculet_code code_;
};

// Throws INVALID with `text` unless `holds`.
inline void require(bool holds, const char *text) {
    if (!holds) throw Failure(CALCULET_INVALID, text);
}

// Keeps the text for calculet_error_text() of this thread; allocates nothing. Returns the code.
calculet_code remember(calculet_code code, const char *text) noexcept;

// Runs one call's body; whatever it throws becomes a code.
template <typename Body>
calculet_code guard(Body &&body) noexcept {
    try {
        return body();
    } catch (const Failure &failure) {
        return remember(failure.code(), failure.what());
    } catch (const std::bad_alloc &) {
        return remember(CALCULET_NO_MEMORY, "the host has no memory left");
    } catch (const std::exception &error) {
        return remember(CALCULET_VENDOR_ERROR, error.what());
    } catch (...) {
        return remember(CALCULET_VENDOR_ERROR, "something was thrown that is no std::exception");
    }
}

// Copies text into a struct's field, cut to fit.
template <std::size_t Size>
void put(char (&field)[Size], const std::string &text) {
    const std::size_t bytes = text.copy(field, Size - 1);
    field[bytes] = '\0';
}

}  // namespace calculet
