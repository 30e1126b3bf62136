"""Gauges: the core's counts at the moment of a scrape. With `observe.metrics` all that knows prometheus_client.

Source: SPEC section 11 (S §16); API.md "Gauges an inference gateway reads".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

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
            "calrt_kv_used_batches": ("KV sequences on the device.", now.lanes_in_use),
            "calculet_ready": ("Whether chat works.", int(now.status.word == "ok")),
        }
        for name, (text, value) in plain.items():
            yield GaugeMetricFamily(name, text, value)
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


def _by(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value_of, value in values.items():
        family.add_metric([value_of], value)
    return family
