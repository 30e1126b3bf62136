// The library's own books of the KV sequences, so that a caller's mistake is refused here and never overwrites KV.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace calculet {

// What a job does to one sequence.
struct Hold {
    std::uint64_t sequence;
    std::uint32_t position, tokens;
};

class Sequences {
   public:
    explicit Sequences(std::uint32_t lanes) : taken_(lanes) {}

    bool is_taken(std::uint32_t lane) const;
    std::uint32_t free_lane() const;  // Throws NO_CAPACITY
    void add(std::uint64_t sequence, std::uint32_t lane, std::uint32_t tokens_max);
    void remove(std::uint64_t sequence);
    void shorten(std::uint64_t sequence, std::uint32_t tokens);
    std::uint32_t count() const;

    // Throws INVALID where the sequence is unknown, in a job, or has another length; NO_CAPACITY where it has no room.
    void check(const Hold &hold) const;

    // Throws INVALID where there is no such sequence.
    bool is_in_job(std::uint64_t sequence) const;
    std::uint32_t length(std::uint64_t sequence) const;

    // A job takes its sequences, all or (throwing) none; `settle` gives them back. A lost job's stay taken.
    void hold(const Hold *holds, std::uint32_t count);
    void settle(const Hold *holds, std::uint32_t count, bool is_committed);

   private:
    struct Resident {
        std::uint32_t lane, tokens_max;
        std::uint32_t length = 0;
        bool is_in_job = false;
    };

    const Resident &find(std::uint64_t sequence) const;
    void check_held(const Hold &hold) const;

    mutable std::mutex mutex_;
    std::unordered_map<std::uint64_t, Resident> residents_;
    std::vector<bool> taken_;  // by lane
};

}  // namespace calculet
