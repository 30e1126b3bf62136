// The token that follows a KV history: calculet_trio/runtimes/emulated.py's extend() and next_token(), bit for bit.
#pragma once

#include <cstdint>

namespace emulator {

constexpr std::uint64_t kSeed = 0x9E3779B97F4A7C15ULL;
constexpr std::uint64_t kEndEvery = 4096;  // one token in so many is the end token
constexpr std::int32_t kEndToken = 258;

// The hash of a KV history after one more token (splitmix64).
constexpr std::uint64_t extend(std::uint64_t history, std::int32_t token) {
    history += kSeed + static_cast<std::uint64_t>(token) * 0xD1342543DE82EF95ULL;
    history = (history ^ (history >> 30)) * 0xBF58476D1CE4E5B9ULL;
    history = (history ^ (history >> 27)) * 0x94D049BB133111EBULL;
    return history ^ (history >> 31);
}

// What the emulated model says after such a history: a letter, a space, or seldom its end token.
constexpr std::int32_t next_token(std::uint64_t history) {
    if ((history >> 40) % kEndEvery == 0) return kEndToken;
    const auto letter = static_cast<std::int32_t>(history % 32);
    return letter < 26 ? 97 + letter : 32;
}

}  // namespace emulator
