#include "sequences.h"

#include <algorithm>
#include <string>

#include "failure.h"

namespace calculet {

const Sequences::Resident &Sequences::find(std::uint64_t sequence) const {
    const auto found = residents_.find(sequence);
    if (found == residents_.end())
        throw Failure(CALCULET_INVALID, "sequence: there is no " + std::to_string(sequence));
    return found->second;
}

bool Sequences::is_taken(std::uint32_t lane) const {
    const std::lock_guard lock(mutex_);
    return taken_.at(lane);
}

std::uint32_t Sequences::free_lane() const {
    const std::lock_guard lock(mutex_);
    const auto free = std::find(taken_.begin(), taken_.end(), false);
    if (free == taken_.end()) throw Failure(CALCULET_NO_CAPACITY, "no lane is free");
    return static_cast<std::uint32_t>(free - taken_.begin());
}

void Sequences::add(std::uint64_t sequence, std::uint32_t lane, std::uint32_t tokens_max) {
    const std::lock_guard lock(mutex_);
    residents_.emplace(sequence, Resident{lane, tokens_max});
    taken_.at(lane) = true;
}

void Sequences::remove(std::uint64_t sequence) {
    const std::lock_guard lock(mutex_);
    taken_.at(find(sequence).lane) = false;
    residents_.erase(sequence);
}

void Sequences::shorten(std::uint64_t sequence, std::uint32_t tokens) {
    const std::lock_guard lock(mutex_);
    find(sequence);
    residents_.at(sequence).length -= tokens;
}

std::uint32_t Sequences::count() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::uint32_t>(residents_.size());
}

bool Sequences::is_in_job(std::uint64_t sequence) const {
    const std::lock_guard lock(mutex_);
    return find(sequence).is_in_job;
}

std::uint32_t Sequences::length(std::uint64_t sequence) const {
    const std::lock_guard lock(mutex_);
    return find(sequence).length;
}

void Sequences::check(const Hold &hold) const {
    const std::lock_guard lock(mutex_);
    check_held(hold);
}

void Sequences::check_held(const Hold &hold) const {
    const auto &resident = find(hold.sequence);
    const auto refuse = [&](calculet_code code, const std::string &what) {
        throw Failure(code, "sequence " + std::to_string(hold.sequence) + what);
    };
    if (resident.is_in_job) refuse(CALCULET_INVALID, " is in a job, or was in one that was lost");
    if (resident.length != hold.position)
        refuse(CALCULET_INVALID, ": its position is " + std::to_string(resident.length) + ", its committed length");
    if (hold.tokens > resident.tokens_max - resident.length)
        refuse(CALCULET_NO_CAPACITY, " has room for " + std::to_string(resident.tokens_max) + " tokens");
}

void Sequences::hold(const Hold *holds, std::uint32_t count) {
    const std::lock_guard lock(mutex_);
    for (std::uint32_t index = 0; index < count; ++index) check_held(holds[index]);
    for (std::uint32_t index = 0; index < count; ++index) residents_.at(holds[index].sequence).is_in_job = true;
}

void Sequences::settle(const Hold *holds, std::uint32_t count, bool is_committed) {
    const std::lock_guard lock(mutex_);
    for (std::uint32_t index = 0; index < count; ++index) {
        auto &resident = residents_.at(holds[index].sequence);
        resident.is_in_job = false;
        if (is_committed) resident.length += holds[index].tokens;
    }
}

}  // namespace calculet
