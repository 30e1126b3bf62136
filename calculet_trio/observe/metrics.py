"""Metrics: what the daemon counts, in Prometheus' terms. The only room that knows prometheus_client.

Counters follow the core's events and effects, gauges (`observe.metrics_gauges`) read its snapshot at scrape time, so
neither can drift from what the core decided. Labels come from closed sets: outcomes, reasons, states, and the
tenants that the configuration names. Request ids, prompts and tokens go nowhere.

Source: SPEC section 11 (S §16; A §6); API.md "Gauges an inference gateway reads".
"""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import choose_encoder

from calculet_trio.core.device_reading import DeviceReading
from calculet_trio.core.effects import (
    Admit,
    AllocateSequence,
    ContinueSequence,
    Deliver,
    Drop,
    Effect,
    Fail,
    Finish,
    PairDegraded,
    Place,
    Quarantined,
    Refuse,
    ReleaseSequence,
    SubmitJob,
    Vacated,
)
from calculet_trio.core.events import (
    Doubt,
    Event,
    FaultReason,
    JobFailed,
    JobFinished,
    JobNotSubmitted,
    JobTimes,
    JobUnknown,
    SequenceAllocated,
    SequenceRefused,
    SequenceReleased,
)
from calculet_trio.core.fault_record import FaultMemory
from calculet_trio.core.fault_sightings import seen_in_effect, seen_in_event
from calculet_trio.core.jobs import DecodeJob, Job
from calculet_trio.core.snapshot import CoreSnapshot
from calculet_trio.ids import GenerationId, JobId, LaneId, RequestId
from calculet_trio.observe.metrics_gauges import DeviceGauges, Gauges

_MS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 240_000)
_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_LOAD_S = (0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600)
_OUTCOMES = ("stop", "length", "refused", "failed", "cancelled")
_HOW_ENDED = {JobFailed: "failed", JobNotSubmitted: "not_submitted", JobUnknown: "unknown"}


@attrs.define
class _Life:
    """One live request: its tenant, and its moments (monotonic seconds)."""

    tenant: str
    arrived_s: float
    last_token_s: float | None = None


class ServiceMetrics:
    """Counters and histograms of one daemon, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._clock: Callable[[], float] = time.monotonic
        self._lives: dict[RequestId, _Life] = {}
        self._jobs: dict[JobId, SubmitJob] = {}
        self._releases: dict[tuple[GenerationId, LaneId], float] = {}
        self._asked: dict[RequestId, float] = {}
        self._make_request_series()
        self._make_device_series()

    def _make_request_series(self) -> None:
        self._requests = self._counter("calculet_requests", "Requests that ended, by outcome.", "outcome")
        for outcome in _OUTCOMES:
            self._requests.labels(outcome)
        self._refusals = self._counter("calculet_refusals", "Requests refused, by reason.", "code")
        self._prompt_tokens = self._counter("calculet_prompt_tokens", "Prompt tokens admitted.")
        self._generated_tokens = self._counter("calculet_generated_tokens", "Tokens sampled.")
        self._tenant_tokens = self._counter(
            "calculet_tenant_service_tokens", "Tokens served, by tenant and kind.", "tenant", "kind"
        )
        self._starved = self._counter(
            "calculet_starvation_events", "Requests whose deadline passed while they waited.", "tenant"
        )
        self._forecast_error_s = self._histogram(
            "calculet_forecast_error_seconds", "Difference of forecast and real wait.", _SECONDS
        )
        self._queue_s = self._histogram("vllm:request_queue_time_seconds", "From arrival to admission.", _SECONDS)
        self._first_token_s = self._histogram(
            "vllm:time_to_first_token_seconds", "From arrival to first token.", _SECONDS
        )
        self._inter_token_s = self._histogram("vllm:inter_token_latency_seconds", "Between two tokens.", _SECONDS)
        self._end_to_end_s = self._histogram(
            "vllm:e2e_request_latency_seconds", "From arrival to the last token.", _SECONDS
        )

    def _make_device_series(self) -> None:
        self._errors = self._counter("calrt_errors", "Faults, by reason code.", "code")
        for reason in FaultReason:
            self._errors.labels(reason.value)
        self._job_outcomes = self._counter(
            "calculet_jobs", "Jobs, by engine, phase and how they ended.", "engine", "phase", "outcome"
        )
        self._infer_ms = self._histogram("calrt_infer_ms", "Device time of a job.", _MS, "phase")
        self._h2d_ms = self._histogram("calrt_h2d_ms", "Copying a job's inputs to the device.", _MS, "phase")
        self._d2h_ms = self._histogram("calrt_d2h_ms", "Copying a job's outputs back.", _MS, "phase")
        self._framework_ms = self._histogram(
            "calrt_framework_ms",
            "Time from a job's submission to its outcome, less device time and copies.",
            _MS,
            "phase",
        )
        self._active_lanes = self._histogram(
            "calculet_batch_active_lanes", "Active lanes of decode jobs.", (1, 2, 4, 8, 16, 32), "compiled_batch"
        )
        self._wasted_lanes = self._counter("calculet_batch_wasted_lanes", "Lanes of decode jobs without a sequence.")
        self._free_s = self._histogram(
            "calculet_kv_free_seconds", "From a lane's release to its confirmation.", _SECONDS
        )
        self._allocation_ms = self._histogram(
            "calrt_kv_allocation_wait_ms", "From a request's first asking for a KV sequence until it has one.", _MS
        )
        self._refused_allocations = self._counter("calculet_kv_allocations_refused", "Allocations refused.", "code")
        self._degradations = self._counter(
            "calculet_ping_pong_degradations", "Times that new jobs were sent to one engine, by doubt.", "doubt"
        )
        for doubt in Doubt:
            self._degradations.labels(doubt.value)
        self._load_step_s = self._histogram(
            "calculet_model_load_step_seconds", "Steps of loading and unloading a model.", _LOAD_S, "step"
        )
        self._quarantines = self._counter("calculet_quarantined_jobs", "Jobs whose fate is unknown.", "reason")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self._registry)

    def watch(self, snapshot: Callable[[], CoreSnapshot], clock: Callable[[], float]) -> None:
        """Read gauges from here whenever somebody scrapes; ages are taken from ``clock``."""
        self._clock = clock
        self._registry.register(Gauges(snapshot, clock))

    def watch_device(self, reading: Callable[[], DeviceReading | None], memory: Callable[[], FaultMemory]) -> None:
        """Read the device's gauges from here whenever somebody scrapes."""
        self._registry.register(DeviceGauges(reading, memory, self._clock))

    def expose(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the format that an ``Accept`` header asks for, and its content type."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self._registry), content_type

    def load_step(self, step: str, taken_s: float) -> None:
        """A step of a model's load, or of its unload, has ended."""
        self._load_step_s.labels(step).observe(taken_s)

    # ---- what the daemon tells ------------------------------------------------------------------

    def heard(self, event: Event, now: float) -> None:
        """The core was told this. Called in the loop; touches one job or one lane."""
        for reason, _ in seen_in_event(event):
            self._errors.labels(reason.value).inc()
        match event:
            case JobFinished():
                self._job_finished(event)
            case JobFailed(job) | JobNotSubmitted(job) | JobUnknown(job):
                self._job_ended(job, _HOW_ENDED[type(event)])
            case SequenceRefused(reason=reason):
                self._refused_allocations.labels(reason.value).inc()
            case SequenceAllocated(request=request):
                asked_s = self._asked.pop(request, None)
                if asked_s is not None:
                    self._allocation_ms.observe((now - asked_s) * 1e3)
            case SequenceReleased(generation, lane, confirmed=confirmed):
                since_s = self._releases.pop((generation, lane), None)
                if confirmed and since_s is not None:
                    self._free_s.observe(now - since_s)

    def saw(self, effect: Effect, now: float) -> None:
        """The core decided this. Called in the loop; touches no more than one request."""
        match effect:
            case Place(request, _, tenant):
                self._lives[request] = _Life(tenant, now)
            case Admit(request, prompt_tokens, _, queued_s, expected_wait_s):
                self._prompt_tokens.inc(prompt_tokens)
                self._tenant_tokens.labels(self._lives[request].tenant, "prompt").inc(prompt_tokens)
                self._queue_s.observe(queued_s)
                if expected_wait_s is not None:
                    self._forecast_error_s.observe(abs(queued_s - expected_wait_s))
            case Deliver(request):
                self._token(self._lives[request], now)
            case SubmitJob(_, job):
                self._job_began(effect, job)
            case AllocateSequence(request=request) | ContinueSequence(request=request):
                self._asked.setdefault(request, now)  # refused, it is asked for again
            case ReleaseSequence(generation, lane):
                self._releases[generation, lane] = now
            case PairDegraded(doubt):
                self._degradations.labels(doubt.value).inc()
            case Quarantined(_, reason):
                self._quarantines.labels(reason.value).inc()
            case Vacated():
                self._count_faults(effect)
            case Finish() | Refuse() | Fail() | Drop():
                self._ended(effect, now)

    def _count_faults(self, effect: Effect) -> None:
        for reason, _ in seen_in_effect(effect):
            self._errors.labels(reason.value).inc()

    # ---- inside ---------------------------------------------------------------------------------

    def _job_began(self, effect: SubmitJob, job: Job) -> None:
        self._jobs[job.job] = effect
        if isinstance(job, DecodeJob):
            batch = job.profile.compiled_batch
            self._active_lanes.labels(batch).observe(len(job.lanes))
            self._wasted_lanes.inc(batch - len(job.lanes))

    def _job_finished(self, event: JobFinished) -> None:
        submitted = self._job_ended(event.job, "finished")
        if submitted is not None and event.times is not None:
            self._took(submitted.job.phase, event.times)

    def _job_ended(self, job: JobId, outcome: str) -> SubmitJob | None:
        submitted = self._jobs.pop(job, None)
        if submitted is not None:
            self._job_outcomes.labels(submitted.engine.value, submitted.job.phase, outcome).inc()
        return submitted

    def _took(self, phase: str, times: JobTimes) -> None:
        told = ((self._infer_ms, times.device_s), (self._h2d_ms, times.h2d_s), (self._d2h_ms, times.d2h_s))
        for series, spent_s in told:
            if spent_s is not None:
                series.labels(phase).observe(spent_s * 1e3)
        if times.device_s is not None:
            rest_s = times.taken_s - sum(spent_s or 0.0 for _, spent_s in told)
            self._framework_ms.labels(phase).observe(max(0.0, rest_s) * 1e3)

    def _token(self, life: _Life, now: float) -> None:
        self._generated_tokens.inc()
        self._tenant_tokens.labels(life.tenant, "generated").inc()
        if life.last_token_s is None:
            self._first_token_s.observe(now - life.arrived_s)
        else:
            self._inter_token_s.observe(now - life.last_token_s)
        life.last_token_s = now

    def _ended(self, effect: Finish | Refuse | Fail | Drop, now: float) -> None:
        life = self._lives.pop(effect.request, None)
        self._asked.pop(effect.request, None)
        match effect:
            case Finish(_, reason):
                self._requests.labels(reason.value).inc()
                if life is not None:
                    self._end_to_end_s.observe(now - life.arrived_s)
            case Refuse(_, refusal):
                self._requests.labels("refused").inc()
                self._refusals.labels(refusal.code).inc()
                if life is not None and refusal.code == "deadline_exceeded":
                    self._starved.labels(life.tenant).inc()
            case Fail():
                self._requests.labels("failed").inc()
                self._count_faults(effect)
            case Drop():
                self._requests.labels("cancelled").inc()
