#include "engine.h"

#include <array>
#include <chrono>
#include <optional>
#include <vector>

namespace calculet {
namespace {

using Clock = std::chrono::steady_clock;
using State = EngineState;
using Event = EngineEvent;

struct Step {
    State from;
    Event event;
    State to;
};

// Every step that there is.
constexpr std::array<Step, 10> kTable{{
    {State::kIdle, Event::kPrepare, State::kPrepared},
    {State::kPrepared, Event::kPrepare, State::kPrepared},
    {State::kPrepared, Event::kSubmit, State::kRunning},
    {State::kPrepared, Event::kDiscard, State::kIdle},
    {State::kIdle, Event::kDiscard, State::kIdle},
    {State::kRunning, Event::kAnswer, State::kAnswered},
    {State::kAnswered, Event::kTake, State::kIdle},
    {State::kRunning, Event::kExpire, State::kLost},
    {State::kLost, Event::kAnswer, State::kLost},  // late: counted, and nothing else
    {State::kLost, Event::kDiscard, State::kLost},
}};

constexpr std::optional<State> after(State state, Event event) {
    for (const auto &step : kTable)
        if (step.from == state && step.event == event) return step.to;
    return std::nullopt;
}

// What a lost job may touch, for as long as the process lives; never destroyed, so that its end waits for nobody.
void keep_for_ever(std::shared_ptr<vendor::Buffers> buffers) {
    static auto &kept = *new std::vector<std::shared_ptr<vendor::Buffers>>;
    static auto &mutex = *new std::mutex;
    const std::lock_guard lock(mutex);
    kept.push_back(std::move(buffers));
}

// What the vendor's wait came to; nothing may leave the waiter's thread.
Answer wait_for(vendor::Buffers &buffers) noexcept {
    Answer answer;
    answer.code = guard([&] {
        buffers.wait();
        return CALCULET_OK;
    });
    if (answer.code != CALCULET_OK) put(answer.text, calculet_error_text());
    guard([&] {
        answer.account = buffers.account();
        return CALCULET_OK;
    });
    return answer;
}

}  // namespace

struct Engine::Desk {
    mutable std::mutex mutex;
    std::condition_variable changed;   // for the waiter: a job, or the end
    std::condition_variable answered;  // for the caller
    std::shared_ptr<vendor::Buffers> buffers;
    std::uint64_t submitted = 0, returned = 0;
    bool is_ending = false;
    Clock::time_point submitted_at{};
    Answer answer;

    State state() const { return state_; }

    // The one place that writes the state. Throws where the table has no such step.
    void advance(Event event) {
        const auto next = after(state_, event);
        if (!next) refuse();
        state_ = *next;
    }
    [[noreturn]] void refuse() const {
        switch (state_) {
            case State::kLost:
                throw Failure(CALCULET_ENGINE_LOST, "a job of this engine never came back: it is used no more");
            case State::kIdle: throw Failure(CALCULET_WRONG_STATE, "the engine has no prepared job and none in flight");
            case State::kPrepared: throw Failure(CALCULET_WRONG_STATE, "the engine's job is prepared, not submitted");
            default: throw Failure(CALCULET_WRONG_STATE, "the engine has a job in flight: wait for it first");
        }
    }

   private:
    State state_ = State::kIdle;
};

Engine::Engine(std::uint32_t index)
    : user(index == CALCULET_PONG ? "engine pong" : "engine ping"),
      desk_(std::make_shared<Desk>()),
      waiter_(run_waiter, desk_) {}

Engine::~Engine() {
    bool may_end;
    {
        const std::lock_guard lock(desk_->mutex);
        desk_->is_ending = true;
        may_end = desk_->returned == desk_->submitted;
        desk_->changed.notify_all();
    }
    if (may_end)
        waiter_.join();
    else
        waiter_.detach();
}

void Engine::run_waiter(std::shared_ptr<Desk> desk) {
    std::unique_lock lock(desk->mutex);
    for (;;) {
        desk->changed.wait(lock, [&] { return desk->is_ending || desk->returned < desk->submitted; });
        if (desk->returned == desk->submitted) return;
        vendor::Buffers &buffers = *desk->buffers;  // the desk keeps them: a lost engine's are never replaced
        lock.unlock();
        Answer answer = wait_for(buffers);
        lock.lock();
        answer.total_s = std::chrono::duration<double>(Clock::now() - desk->submitted_at).count();
        desk->answer = answer;
        ++desk->returned;
        desk->advance(Event::kAnswer);
        lock.unlock();
        desk->answered.notify_one();
        lock.lock();
    }
}

void Engine::expect_free() const {
    const std::lock_guard lock(desk_->mutex);
    if (!after(desk_->state(), Event::kPrepare)) desk_->refuse();
}

void Engine::prepare(std::shared_ptr<vendor::Buffers> buffers) {
    const std::lock_guard lock(desk_->mutex);
    desk_->advance(Event::kPrepare);
    desk_->buffers.swap(buffers);
}

std::uint64_t Engine::submit() {
    std::unique_lock lock(desk_->mutex);
    if (desk_->state() != State::kPrepared) desk_->refuse();
    lock.unlock();
    const auto now = Clock::now();
    desk_->buffers->infer();
    lock.lock();
    desk_->submitted_at = now;
    desk_->advance(Event::kSubmit);
    const auto ticket = ++desk_->submitted;
    lock.unlock();
    desk_->changed.notify_one();  // as the answer's: who is woken under the lock wakes only to wait for it
    return ticket;
}

Answer Engine::wait(std::uint64_t ticket, double timeout_s) {
    std::unique_lock lock(desk_->mutex);
    if (desk_->state() != State::kRunning && desk_->state() != State::kAnswered) desk_->refuse();
    if (ticket != desk_->submitted) throw Failure(CALCULET_INVALID, "ticket: it is not this engine's job in flight");
    const auto bound = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s));
    const auto is_answered = [&] { return desk_->state() == State::kAnswered; };
    if (!desk_->answered.wait_until(lock, Clock::now() + bound, is_answered)) {
        desk_->advance(Event::kExpire);
        keep_for_ever(desk_->buffers);
        throw Failure(CALCULET_TIMEOUT, "the job did not end in time: its engine, buffers and sequences are lost");
    }
    desk_->advance(Event::kTake);
    return desk_->answer;
}

void Engine::discard() {
    const std::lock_guard lock(desk_->mutex);
    desk_->advance(Event::kDiscard);
    if (desk_->state() != State::kLost) desk_->buffers.reset();
}

calculet_engine_info Engine::inspect() const {
    const std::lock_guard lock(desk_->mutex);
    const bool is_lost = desk_->state() == State::kLost;
    return {static_cast<std::uint32_t>(desk_->state()), is_lost && desk_->returned == desk_->submitted,
            desk_->submitted, desk_->returned};
}

bool Engine::is_stuck() const {
    const auto info = inspect();
    return info.state == CALCULET_ENGINE_LOST_FOR_GOOD && info.has_returned == 0;
}

bool Engine::has_job() const {
    const auto state = inspect().state;
    return state == CALCULET_ENGINE_RUNNING || state == CALCULET_ENGINE_ANSWERED;
}

}  // namespace calculet
