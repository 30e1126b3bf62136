"""Metrics: what the daemon counts, in Prometheus' terms. The only room that knows prometheus_client.

Counters follow the core's effects, gauges read its snapshot at scrape time, so neither can drift from what
the core decided. Labels come from closed sets; request ids, prompts and tokens go nowhere.

Source: SPEC section 11 (S §16; A §6); API.md "Gauges an inference gateway reads".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from calculet_trio.core.effects import (
    Admit,
    Deliver,
    Drop,
    Effect,
    Fail,
    Finish,
    Place,
    Quarantined,
    Refuse,
    SubmitJob,
)
from calculet_trio.core.jobs import DecodeJob, Job
from calculet_trio.core.snapshot import CoreSnapshot
from calculet_trio.ids import RequestId

_MS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 240_000)
_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


@attrs.define
class _Life:
    """The moments of one live request, monotonic seconds."""

    arrived_s: float
    last_token_s: float | None = None


class ServiceMetrics:
    """Counters and histograms of one daemon, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._lives: dict[RequestId, _Life] = {}
        registry = self._registry
        self._requests = Counter(
            "calculet_requests", "Requests that ended, by outcome.", ["outcome"], registry=registry
        )
        for outcome in ("stop", "length", "refused", "failed", "cancelled"):
            self._requests.labels(outcome)
        self._refusals = Counter("calculet_refusals", "Requests refused, by reason.", ["code"], registry=registry)
        self._prompt_tokens = Counter("calculet_prompt_tokens", "Prompt tokens admitted.", registry=registry)
        self._generated_tokens = Counter("calculet_generated_tokens", "Tokens sampled.", registry=registry)
        self._errors = Counter("calrt_errors", "Faults, by reason code.", ["code"], registry=registry)
        self._infer_ms = Histogram("calrt_infer_ms", "Device time of a job.", ["phase"], buckets=_MS, registry=registry)
        self._framework_ms = Histogram(
            "calrt_framework_ms",
            "Time of a job from its engine's start to its outcome, less device time.",
            ["phase"],
            buckets=_MS,
            registry=registry,
        )
        self._active_lanes = Histogram(
            "calculet_batch_active_lanes",
            "Active lanes of decode jobs, by compiled batch.",
            ["compiled_batch"],
            buckets=(1, 2, 4, 8, 16, 32),
            registry=registry,
        )
        self._queue_s = _seconds("vllm:request_queue_time_seconds", "From arrival to admission.", registry)
        self._first_token_s = _seconds("vllm:time_to_first_token_seconds", "From arrival to first token.", registry)
        self._inter_token_s = _seconds("vllm:inter_token_latency_seconds", "Between two tokens.", registry)
        self._end_to_end_s = _seconds("vllm:e2e_request_latency_seconds", "From arrival to the last token.", registry)

    def watch(self, snapshot: Callable[[], CoreSnapshot]) -> None:
        """Read gauges from here whenever somebody scrapes."""
        self._registry.register(_Gauges(snapshot))

    def expose(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the format that an ``Accept`` header asks for, and its content type."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self._registry), content_type

    # ---- what the daemon tells ------------------------------------------------------------------

    def saw(self, effect: Effect, now: float) -> None:
        """The core decided this. Called in the loop; touches no more than one request."""
        match effect:
            case Place(request):
                self._lives[request] = _Life(now)
            case Admit(_, prompt_tokens, _, queued_s):
                self._prompt_tokens.inc(prompt_tokens)
                self._queue_s.observe(queued_s)
            case Deliver(request):
                self._token(self._lives[request], now)
            case Finish(request, reason):
                self._end_to_end_s.observe(now - self._lives[request].arrived_s)
                self._end(request, reason.value)
            case Refuse(request, refusal):
                self._refusals.labels(refusal.code).inc()
                self._end(request, "refused")
            case Fail(request, reason):
                self._errors.labels(reason.value).inc()
                self._end(request, "failed")
            case Drop(request):
                self._end(request, "cancelled")
            case Quarantined(_, reason):
                self._errors.labels(reason.value).inc()
            case SubmitJob(_, DecodeJob() as job):
                self._active_lanes.labels(job.profile.compiled_batch).observe(len(job.lanes))

    def job_finished(self, job: Job, device_s: float | None, taken_s: float) -> None:
        """A job's time on the device, and from its submission to its outcome. Called in an engine's thread."""
        if device_s is not None:
            self._infer_ms.labels(job.phase).observe(device_s * 1e3)
            self._framework_ms.labels(job.phase).observe(max(0.0, taken_s - device_s) * 1e3)

    def _token(self, life: _Life, now: float) -> None:
        self._generated_tokens.inc()
        if life.last_token_s is None:
            self._first_token_s.observe(now - life.arrived_s)
        else:
            self._inter_token_s.observe(now - life.last_token_s)
        life.last_token_s = now

    def _end(self, request: RequestId, outcome: str) -> None:
        self._requests.labels(outcome).inc()
        self._lives.pop(request, None)


class _Gauges(Collector):
    """The core's counts at the moment of a scrape."""

    def __init__(self, snapshot: Callable[[], CoreSnapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        now = self._snapshot()
        total = now.kv_tokens_total
        yield GaugeMetricFamily("vllm:num_requests_waiting", "Requests not admitted yet.", now.waiting_requests)
        yield GaugeMetricFamily("vllm:num_requests_running", "Requests admitted and not ended.", now.running_requests)
        yield GaugeMetricFamily(
            "vllm:kv_cache_usage_perc", "Share of KV tokens in use, 0 to 1.", now.kv_tokens_used / total if total else 0
        )
        yield GaugeMetricFamily(
            "calculet_waiting_prompt_tokens", "Prompt tokens not admitted yet.", now.waiting_prompt_tokens
        )
        yield GaugeMetricFamily("calculet_kv_tokens_used", "KV tokens committed.", now.kv_tokens_used)
        yield GaugeMetricFamily("calculet_kv_tokens_reserved", "KV tokens promised.", now.kv_tokens_reserved)
        yield GaugeMetricFamily("calculet_jobs_in_flight", "Jobs submitted and not ended.", now.jobs_in_flight)
        yield GaugeMetricFamily("calculet_jobs_unknown", "Jobs whose fate nobody knows.", now.jobs_unknown)
        lanes = GaugeMetricFamily("calculet_kv_lanes", "KV lanes by state.", labels=["state"])
        for state, count in now.lanes_by_state.items():
            lanes.add_metric([state.value], count)
        yield lanes
        yield GaugeMetricFamily("calrt_kv_used_batches", "KV sequences on the device.", now.lanes_in_use)
        yield GaugeMetricFamily("calculet_ready", "Whether chat works.", int(now.status.word == "ok"))


def _seconds(name: str, help_text: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(name, help_text, buckets=_SECONDS, registry=registry)
