"""Gauges: the core's counts at the moment of a scrape. With `observe.metrics` all that knows prometheus_client.

Source: SPEC section 11 (S §16); API.md "Gauges an inference gateway reads".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from calculet_trio.core.device_reading import DeviceReading
from calculet_trio.core.events import FaultReason
from calculet_trio.core.fault_record import FaultMemory
from calculet_trio.core.generation import GenerationState
from calculet_trio.core.snapshot import CoreSnapshot

_STATUSES = ("ok", "loading", "draining", "recovering", "failed")
_ENGINE_MODES = ("single", "ping_pong", "degraded")


class Gauges(Collector):
    """Reads a snapshot and shows it.

    Args:
        snapshot: the core's counts, at once.
        clock: monotonic seconds, for ages.
    """

    def __init__(self, snapshot: Callable[[], CoreSnapshot], clock: Callable[[], float]) -> None:
        self._snapshot = snapshot
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        """All gauges, from one snapshot."""
        now = self._snapshot()
        total = now.kv_tokens_total
        plain = {
            "vllm:num_requests_waiting": ("Requests not admitted yet.", now.waiting_requests),
            "vllm:num_requests_running": ("Requests admitted and not ended.", now.running_requests),
            "vllm:kv_cache_usage_perc": ("Share of KV tokens in use, 0 to 1.", now.kv_tokens_used / max(1, total)),
            "calculet_waiting_prompt_tokens": ("Prompt tokens not admitted yet.", now.waiting_prompt_tokens),
            "calculet_kv_tokens_used": ("KV tokens committed.", now.kv_tokens_used),
            "calculet_kv_tokens_reserved": ("KV tokens promised.", now.kv_tokens_reserved),
            "calculet_jobs_in_flight": ("Jobs submitted and not ended.", now.jobs_in_flight),
            "calculet_jobs_unknown": ("Jobs whose fate nobody knows.", now.jobs_unknown),
            "calculet_buffers_unknown": (
                "Sets of job buffers that the device may have written to unseen; the process keeps them.",
                now.buffers_unknown,
            ),
            "calrt_kv_used_batches": ("KV sequences on the device.", now.lanes_in_use),
            "calculet_ready": ("Whether chat works.", int(now.status.word == "ok")),
        }
        for name, (text, value) in plain.items():
            yield GaugeMetricFamily(name, text, value)
        yield CounterMetricFamily("calculet_device_resets", "Resets of the device by this process.", now.resets)
        again = "Sequences written again after a reset, so that their streams go on."
        yield CounterMetricFamily("calculet_replays", again, now.replays)
        reuse = now.reuse
        hits = "Requests that went on from a KV lane that an earlier one had left."
        yield CounterMetricFamily("calculet_prefix_hits", hits, reuse.hits)
        saved = "Tokens of prompts and replies that were not prefilled again."
        yield CounterMetricFamily("calculet_prefix_cached_tokens", saved, reuse.tokens)
        given_up = "KV lanes that were kept for a next turn, and given up before it came."
        yield CounterMetricFamily("calculet_prefix_evictions", given_up, reuse.evictions)
        lanes = {state.value: count for state, count in now.lanes_by_state.items()}
        yield _by("calculet_kv_lanes", "KV lanes by state.", "state", lanes)
        depths = {kind.value: depth.requests for kind, depth in now.queues.items()}
        yield _by("calculet_queue_depth", "Requests that wait for an engine.", "kind", depths)
        ages = {
            kind.value: 0.0 if depth.oldest_s is None else max(0.0, self._clock() - depth.oldest_s)
            for kind, depth in now.queues.items()
        }
        yield _by("calculet_queue_oldest_seconds", "How long the first of them has waited.", "kind", ages)
        words = {word: int(word == now.status.word) for word in _STATUSES}
        yield _by("calculet_status", "The service's state: one of them is 1.", "status", words)
        modes = {word: int(word == now.engine_mode.word) for word in _ENGINE_MODES}
        yield _by("calculet_engine_mode", "How engines are used: one of them is 1.", "mode", modes)
        yield _generations(now)
        yield from self._tenants(now)

    def _tenants(self, now: CoreSnapshot) -> Iterable[Metric]:
        tenants = now.tenants.items()
        for name, text, values in (
            ("calculet_tenant_waiting", "Queued requests.", {n: t.waiting_requests for n, t in tenants}),
            (
                "calculet_tenant_waiting_tokens",
                "Prompt tokens not admitted yet.",
                {n: t.waiting_prompt_tokens for n, t in tenants},
            ),
            ("calculet_tenant_active", "Requests admitted and not ended.", {n: t.active_requests for n, t in tenants}),
            (
                "calculet_tenant_virtual_lag",
                "Weighted tokens behind the present (negative: ahead).",
                {n: t.virtual_lag for n, t in tenants},
            ),
        ):
            yield _by(name, text, "tenant", values)


def _generations(now: CoreSnapshot) -> Metric:
    text = "Generations of a model, by their state: while one takes another's place, there are two."
    family = GaugeMetricFamily("calculet_generations", text, labels=("alias", "state"))
    for alias, states in now.generations.items():
        for state in GenerationState:
            family.add_metric((alias, state.value), states[state])
    return family


class DeviceGauges(Collector):
    """What the device last said of itself, and what is remembered of its faults across restarts.

    Args:
        reading: None while the device was not asked yet.
        memory: see `calculet_trio.core.fault_record`.
        clock: monotonic seconds, for the reading's age.
    """

    def __init__(
        self,
        reading: Callable[[], DeviceReading | None],
        memory: Callable[[], FaultMemory],
        clock: Callable[[], float],
    ) -> None:
        self._reading = reading
        self._memory = memory
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        """The device's gauges where it was asked, and the memory's."""
        reading = self._reading()
        if reading is not None:
            yield from self._device(reading)
        memory = self._memory()
        yield CounterMetricFamily(
            "calculet_fault_restarts", "Processes that left because of a fault; kept across restarts.", memory.restarts
        )
        codes = dict.fromkeys((reason.value for reason in FaultReason), 0)
        for fault in memory.faults:
            codes[fault.reason.value] += 1
        yield _by("calculet_faults_remembered", "Faults on record, at most 256; kept across restarts.", "code", codes)
        outcomes = {True: "succeeded", False: "failed", None: "unknown"}
        resets = dict.fromkeys(outcomes.values(), 0)
        for reset in memory.resets:
            resets[outcomes[reset.succeeded]] += 1
        kept = "Resets on record, at most 128; kept across restarts."
        yield _by("calculet_resets_remembered", kept, "outcome", resets)
        took_s = [reset.took_s for reset in memory.resets if reset.took_s is not None]
        if took_s:
            last = "From the last reset's beginning until the device was ready again, or given up."
            yield GaugeMetricFamily("calculet_last_recovery_seconds", last, took_s[-1])

    def _device(self, reading: DeviceReading) -> Iterable[Metric]:
        yield GaugeMetricFamily("calrt_device_status", "Whether the device can be used.", int(reading.is_ok))
        used = "Device memory in use."
        yield GaugeMetricFamily("calrt_device_dram_used_bytes", used, reading.used_bytes)
        if reading.total_bytes is not None:
            yield GaugeMetricFamily("calrt_device_dram_total_bytes", "Device memory.", reading.total_bytes)
        if reading.jobs is not None:
            yield GaugeMetricFamily("calrt_device_jobs", "Jobs that the device has, by its own count.", reading.jobs)
        if reading.counters:
            yield _by("calrt_queue_counter", "The device's own counters, by queue.", "queue", reading.counters)
        age_s = max(0.0, self._clock() - reading.read_s)
        yield GaugeMetricFamily("calrt_device_reading_age_seconds", "Since the device was asked.", age_s)


def _by(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value_of, value in values.items():
        family.add_metric([value_of], value)
    return family
