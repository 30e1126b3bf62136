// One job engine: its state table, and the waiter that waits without a bound so that callers wait with one.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "failure.h"
#include "thread_rules.h"
#include "vendor.h"

namespace calculet {

enum class EngineState : std::uint8_t {
    kIdle = CALCULET_ENGINE_IDLE,
    kPrepared = CALCULET_ENGINE_PREPARED,
    kRunning = CALCULET_ENGINE_RUNNING,
    kAnswered = CALCULET_ENGINE_ANSWERED,
    kLost = CALCULET_ENGINE_LOST_FOR_GOOD,
};

enum class EngineEvent : std::uint8_t { kPrepare, kSubmit, kAnswer, kTake, kExpire, kDiscard };

// How a job ended, as its waiter saw it.
struct Answer {
    calculet_code code = CALCULET_OK;
    char text[CALCULET_TEXT_BYTES] = "";
    vendor::Account account;
    double total_s = 0;
};

class Engine {
   public:
    explicit Engine(std::uint32_t index);

    // Ends the waiter; a stuck one is left to itself, with everything that its job may touch.
    ~Engine();
    Engine(const Engine &) = delete;
    Engine &operator=(const Engine &) = delete;

    // Throw ENGINE_LOST, or WRONG_STATE where a job is in flight.
    void expect_free() const;
    void prepare(std::shared_ptr<vendor::Buffers> buffers);

    // Throws WRONG_STATE if nothing is prepared; what infer throws leaves the engine prepared.
    std::uint64_t submit();

    // Takes the answer, waiting for it up to `timeout_s`. Throws TIMEOUT, and then the engine is lost.
    Answer wait(std::uint64_t ticket, double timeout_s);

    // Forgets what was prepared and not submitted.
    void discard();

    calculet_engine_info inspect() const;
    bool is_lost() const { return inspect().state == CALCULET_ENGINE_LOST_FOR_GOOD; }
    bool is_stuck() const;  // lost, and its waiter has not come back
    bool has_job() const;   // submitted and not taken

    OneUser user;

   private:
    struct Desk;  // shared with the waiter, which may outlive the engine

    static void run_waiter(std::shared_ptr<Desk> desk);

    std::shared_ptr<Desk> desk_;
    std::thread waiter_;
};

}  // namespace calculet
