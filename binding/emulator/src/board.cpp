#include "board.h"

#include <algorithm>
#include <string>

namespace emulator {
namespace {

constexpr int kNoEngine = -1;
constexpr double kMib = 1048576.0;
constexpr double kTotalReported = 32.0 / kMib;  // the known fault: 3.05e-05 MiB, as if 32 GiB were 32 bytes

[[noreturn]] void refuse(calrt::ErrorCode code, const std::string &what) { throw calrt::Error(code, what); }

void check_life() {
    if (Controls::instance().is_lost()) refuse(calrt::ErrorCode::kDeviceLost, "the emulated device is lost");
}

Clock::duration seconds(double value) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value));
}

// The error with which a faulty job's Wait() ends; none for those that let it end well.
std::optional<calrt::ErrorCode> error_of(Fault fault) {
    switch (fault) {
        case Fault::kStuckWait:
        case Fault::kTimeout: return calrt::ErrorCode::kTimeout;
        case Fault::kCcuFault: return calrt::ErrorCode::kCcuFault;
        case Fault::kPcieError: return calrt::ErrorCode::kPcieError;
        case Fault::kUnknownDma: return calrt::ErrorCode::kUnknownDma;
        case Fault::kDeviceLost: return calrt::ErrorCode::kDeviceLost;
        case Fault::kOutputError: return calrt::ErrorCode::kOutputError;
        default: return std::nullopt;
    }
}

bool is(const Job &job, Fault fault) { return job.fault && job.fault->fault == fault; }

}  // namespace

Board::Board() {
    Controls::instance().read_environment();
    for (std::uint32_t index = 0; index < kEngines; ++index)
        engines_[index].thread = std::thread([this, index] { run_engine(index); });
}

Board::~Board() {
    is_closing_ = true;
    Controls::instance().wake();
    for (auto &engine : engines_) {
        {
            const std::lock_guard lock(engine.mutex);
            engine.changed.notify_all();
        }
        engine.thread.join();  // a stuck job ends with the board
    }
}

std::shared_ptr<calrt::Calbin> Board::CreateCalbin(const std::vector<std::string> &shards) {
    check_life();
    return std::make_shared<LoadedCalbin>(read_calbin(shards));
}

void Board::Configure(const std::shared_ptr<calrt::Calbin> &calbin) {
    check_life();
    const std::lock_guard lock(mutex_);
    if (configured_) refuse(calrt::ErrorCode::kDeviceBusy, "the board is configured already: it holds one model");
    configured_ = calbin;
}

void Board::ResetConfiguration() {
    check_life();
    const std::lock_guard lock(mutex_);
    configured_.reset();
}

std::pair<double, double> Board::GetMemoryUsage() const {
    check_life();
    const std::lock_guard lock(mutex_);
    if (!configured_) return {0.0, kTotalReported};
    const auto &calbin = static_cast<const LoadedCalbin &>(*configured_);
    const auto &desc = calbin.Describe();
    const double kv = 1.0 * desc.lanes * desc.max_seq_len * static_cast<double>(desc.kv_bytes_per_token);
    return {(static_cast<double>(calbin.file.parameter_bytes) + kv) / kMib, kTotalReported};
}

calrt::DeviceStatus Board::GetStatus() const {
    auto &controls = Controls::instance();
    calrt::DeviceStatus status{0, "emulated", 0, 0};
    for (const auto &engine : engines_) {
        status.queue_submitted += engine.submitted;
        status.queue_completed += engine.completed;
    }
    if (controls.is_lost()) {
        status.word = static_cast<std::uint32_t>(calrt::ErrorCode::kDeviceLost);
        status.text = "lost";
    } else if (controls.draw(Call::kStatus, kNoEngine)) {
        status.word = ~0U;
        status.text = "counters disagree";
    }
    return status;
}

void Board::start(KvMemory &kv, InputBuffer &input, OutputBuffer &output, std::uint32_t index) {
    check_life();
    if (index >= kEngines) refuse(calrt::ErrorCode::kInvalid, "no engine " + std::to_string(index));
    auto &controls = Controls::instance();
    auto &engine = engines_[index];
    const std::lock_guard lock(engine.mutex);
    if (engine.has_job || controls.draw(Call::kInfer, static_cast<int>(index)))
        refuse(calrt::ErrorCode::kDeviceBusy, "the engine is busy");
    {
        const std::lock_guard configuration(mutex_);
        if (configured_ != input.calbin || configured_ != output.calbin || input.submodel != output.submodel)
            refuse(calrt::ErrorCode::kInvalid, "the buffers are not of the configured calbin, or of two submodels");
    }
    engine.job = {&input, &output, &kv, controls.draw(Call::kWait, static_cast<int>(index)), {}};
    engine.job.done_at = plan_times(engine.job);
    output.queue_submitted = ++engine.submitted;
    output.begin();
    if (!engine.job.fault && engine.job.done_at <= Clock::now()) {
        end(engine.job, index);  // a board that takes no time is done before infer returns
    } else {
        engine.has_job = true;
        engine.changed.notify_all();
    }
}

// Copied in, computed in its turn, copied back: the formulas of CALBIN.md.
Clock::time_point Board::plan_times(const Job &job) {
    const auto &ports = job.input->calbin->ports[job.input->submodel];
    const auto &time = job.input->calbin->file.times[job.input->submodel];
    const auto &past = job.input->registers[ports.past_register];
    const auto &current = job.input->registers[ports.current_register];
    double units = 0, pairs = 0, rows = 0;
    for (std::size_t row = 0; row < job.input->sequences.size(); ++row) {
        if (job.input->sequences[row] == 0) continue;
        const auto position = static_cast<double>(past[row]), tokens = static_cast<double>(current[row]);
        units += tokens;
        pairs += ports.takes_many ? tokens * (position + tokens / 2) : position;
        rows += 1;
    }
    const Timing timing = Controls::instance().timing();
    const double compute_s = timing.scale * 1e-9 *
                             (static_cast<double>(time.base_ns) + units * static_cast<double>(time.unit_ns) +
                              pairs * static_cast<double>(time.pair_ps) / 1000);
    const double h2d_s = timing.scale * timing.h2d_s, d2h_s = timing.scale * timing.d2h_row_s * rows;
    job.output->infer_ms = compute_s * 1e3;
    job.output->h2d_ms = h2d_s * 1e3;
    job.output->d2h_ms = d2h_s * 1e3;
    const std::lock_guard lock(mutex_);
    auto begin = Clock::now() + seconds(h2d_s);
    if (!timing.overlaps) begin = std::max(begin, compute_free_);
    compute_free_ = begin + seconds(compute_s);
    return compute_free_ + seconds(d2h_s) + seconds(is(job, Fault::kLate) ? job.fault->seconds : 0.0);
}

void Board::run_engine(std::uint32_t index) {
    auto &engine = engines_[index];
    auto &controls = Controls::instance();
    std::unique_lock lock(engine.mutex);
    for (;;) {
        engine.changed.wait(lock, [&] { return engine.has_job || is_closing_; });
        if (!engine.has_job) return;
        const Job job = engine.job;
        const auto releases = controls.releases();
        if (is(job, Fault::kStuckWait)) {
            lock.unlock();
            controls.wait_for_release(releases, is_closing_);
            lock.lock();
        }
        if (job.done_at > Clock::now())
            engine.changed.wait_until(lock, job.done_at, [&] { return is_closing_.load(); });
        engine.has_job = false;
        end(job, index);
    }
}

void Board::end(const Job &job, std::uint32_t index) {
    const auto error = is_closing_ ? calrt::ErrorCode::kDeviceLost : perform(job, index);
    auto &completed = engines_[index].completed;
    completed += is(job, Fault::kCounterAnomaly) ? 2 : 1;
    job.output->queue_completed = completed;
    job.output->finish(error);
}

std::optional<calrt::ErrorCode> Board::perform(const Job &job, std::uint32_t index) {
    const auto &ports = job.input->calbin->ports[job.input->submodel];
    const auto error = job.fault ? error_of(job.fault->fault) : std::nullopt;
    if (error && *error != calrt::ErrorCode::kOutputError) {
        for (const auto sequence : job.input->sequences) job.kv->spoil(sequence);
        return error;
    }
    const auto *tokens = static_cast<const std::int32_t *>(job.input->tensors[ports.tokens].memory);
    const auto *positions = static_cast<const std::int32_t *>(job.input->tensors[ports.positions].memory);
    const auto *mask =
        ports.mask ? static_cast<const std::uint8_t *>(job.input->tensors[*ports.mask].memory) : nullptr;
    const auto stride = job.input->tensors[ports.tokens].bytes / sizeof(std::int32_t) / job.input->sequences.size();
    for (std::size_t row = 0; row < job.input->sequences.size(); ++row) {
        const bool is_active = mask == nullptr || mask[row] != 0;
        if (is_active != (job.input->sequences[row] != 0)) return calrt::ErrorCode::kCcuFault;  // mask and KV disagree
        if (!is_active) continue;
        const auto count = static_cast<std::uint32_t>(job.input->registers[ports.current_register][row]);
        const auto past = job.input->registers[ports.past_register][row];
        if (count == 0 || count > stride || (ports.takes_many && job.input->tensors[ports.tokens].count != count) ||
            !job.kv->append(
                job.input->sequences[row], past, tokens + row * stride, positions + row * stride, count))
            return calrt::ErrorCode::kCcuFault;
    }
    answer(job, index, ports);
    return error;
}

void Board::answer(const Job &job, std::uint32_t index, const Ports &ports) {
    const auto &sequences = job.input->sequences;
    const auto &slice = job.output->tensors[ports.logits];
    const auto next = [&](std::size_t row, std::int64_t tokens) {
        return job.kv->next_after(sequences[row], job.input->registers[ports.past_register][row] + tokens);
    };
    if (slice.memory == nullptr) return;
    if (ports.takes_many) {
        for (std::uint32_t row = 0; row < slice.count; ++row) job.output->say(row, next(0, slice.begin + row + 1));
    } else {
        for (std::uint32_t row = 0; row < sequences.size(); ++row)
            if (sequences[row] != 0) job.output->say(row, next(row, 1));
    }
    std::vector<std::uint32_t>::size_type first = 0;
    while (first + 1 < sequences.size() && sequences[first] == 0) ++first;
    std::int32_t token = ports.takes_many ? next(0, slice.begin + slice.count) : next(first, 1);
    if (is(job, Fault::kCrossTalk)) {  // what the other engine said last, or else the wrong letter
        const std::int32_t other = engines_[1 - index].last_token;
        token = other != 0 && other != token ? other : token + 1;
        job.output->say(ports.takes_many ? slice.count - 1 : static_cast<std::uint32_t>(first), token);
    }
    engines_[index].last_token = token;
}

}  // namespace emulator
