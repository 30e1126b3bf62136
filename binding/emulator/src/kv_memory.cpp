#include "kv_memory.h"

#include <atomic>

#include "controls.h"

namespace emulator {
namespace {

constexpr int kNoEngine = -1;
constexpr std::uint64_t kSpoilt = 0xBADBADBADBADBAD1ULL;
std::atomic<calrt::KvSeqId> next_sequence{1};  // a number is never used twice in a process

}  // namespace

bool KvMemory::canAllocate(std::uint32_t sequences) const {
    const std::lock_guard lock(mutex_);
    std::uint32_t free = 0;
    for (const auto &lane : lanes_) free += lane.sequence == 0;
    return sequences <= free;
}

bool KvMemory::Apply(std::uint32_t lane, std::uint32_t tokens, calrt::KvSeqId *sequence) {
    auto &controls = Controls::instance();
    if (controls.is_lost() || controls.draw(Call::kApply, kNoEngine)) return false;
    const std::lock_guard lock(mutex_);
    if (lane >= lanes_.size() || lanes_[lane].sequence != 0 || tokens == 0 || tokens > max_seq_) return false;
    auto &taken = lanes_[lane];
    taken.history.reserve(tokens + 1U);  // nothing is allocated for a job
    taken.history.assign(1, 0);
    taken.tokens_max = tokens;
    *sequence = taken.sequence = next_sequence++;
    return true;
}

bool KvMemory::Free(calrt::KvSeqId sequence) {
    auto &controls = Controls::instance();
    if (controls.is_lost() || controls.draw(Call::kFree, kNoEngine)) return false;
    const std::lock_guard lock(mutex_);
    Lane *lane = find(sequence);
    if (lane == nullptr) return false;
    lane->sequence = 0;
    return true;
}

bool KvMemory::RemoveTokensAtEnd(calrt::KvSeqId sequence, std::uint32_t tokens) {
    const std::lock_guard lock(mutex_);
    Lane *lane = find(sequence);
    if (lane == nullptr || Controls::instance().is_lost() || tokens >= lane->history.size()) return false;
    lane->history.resize(lane->history.size() - tokens);
    return true;
}

bool KvMemory::append(
    calrt::KvSeqId sequence, std::int64_t past, const std::int32_t *tokens, const std::int32_t *positions,
    std::uint32_t count) {
    const std::lock_guard lock(mutex_);
    Lane *lane = find(sequence);
    if (lane == nullptr || past < 0 || past + count > lane->tokens_max) return false;
    auto &history = lane->history;
    const auto begin = static_cast<std::size_t>(past) + 1;
    while (history.size() < begin) history.push_back(history.back() ^ kSpoilt);  // tokens that nobody wrote
    history.resize(begin);
    for (std::uint32_t index = 0; index < count; ++index) {
        const std::uint64_t next = extend(history.back(), tokens[index]);
        history.push_back(positions[index] == past + index ? next : next ^ kSpoilt);
    }
    return true;
}

std::int32_t KvMemory::next_after(calrt::KvSeqId sequence, std::int64_t length) const {
    const std::lock_guard lock(mutex_);
    const Lane *lane = const_cast<KvMemory *>(this)->find(sequence);
    return lane == nullptr ? kEndToken : next_token(lane->history.at(static_cast<std::size_t>(length)));
}

void KvMemory::spoil(calrt::KvSeqId sequence) {
    const std::lock_guard lock(mutex_);
    if (Lane *lane = find(sequence)) lane->history.back() ^= kSpoilt;
}

KvMemory::Lane *KvMemory::find(calrt::KvSeqId sequence) {
    for (auto &lane : lanes_)
        if (sequence != 0 && lane.sequence == sequence) return &lane;
    return nullptr;
}

}  // namespace emulator
