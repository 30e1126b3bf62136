// The device's KV memory: for each lane a hash after every token, so that whatever is mixed up changes what follows.
#pragma once

#include <calrt/calrt.h>

#include <cstdint>
#include <mutex>
#include <vector>

#include "history.h"

namespace emulator {

class KvMemory final : public calrt::KvManager {
   public:
    KvMemory(std::uint32_t lanes, std::uint32_t max_seq) : lanes_(lanes), max_seq_(max_seq) {}

    bool canAllocate(std::uint32_t sequences) const override;
    bool Apply(std::uint32_t lane, std::uint32_t tokens, calrt::KvSeqId *sequence) override;
    bool Free(calrt::KvSeqId sequence) override;
    bool RemoveTokensAtEnd(calrt::KvSeqId sequence, std::uint32_t tokens) override;

    // Writes `count` tokens behind the first `past`, as a device does: what stood there is gone, and where the host is
    // wrong about `past` or a position the history is spoilt. False where nothing is in the lane or it has no room.
    bool append(
        calrt::KvSeqId sequence, std::int64_t past, const std::int32_t *tokens, const std::int32_t *positions,
        std::uint32_t count);

    // What the model says after the first `length` tokens; the history itself must hold so many.
    std::int32_t next_after(calrt::KvSeqId sequence, std::int64_t length) const;

    // What a job leaves that ended in a fault: nobody may go on from it.
    void spoil(calrt::KvSeqId sequence);

   private:
    struct Lane {
        calrt::KvSeqId sequence = 0;  // 0: empty
        std::uint32_t tokens_max = 0;
        std::vector<std::uint64_t> history;  // [0] before the first token
    };

    Lane *find(calrt::KvSeqId sequence);

    mutable std::mutex mutex_;
    std::vector<Lane> lanes_;
    std::uint32_t max_seq_;
};

}  // namespace emulator
