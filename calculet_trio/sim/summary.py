"""Summary: a world's outcome in figures, the same for the terminal, the page and JSON.

Source: SPEC section 11.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs
import numpy as np

from calculet_trio.sim.record import Reply
from calculet_trio.sim.world import Outcome


@attrs.frozen
class Percentiles:
    """Of one quantity over all whole replies, in seconds; None where there was no reply."""

    p50_s: float | None
    p99_s: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> Percentiles:
        ordered = np.fromiter(values, np.float64)
        if not ordered.size:
            return cls(None, None)
        p50_s, p99_s = np.percentile(ordered, (50, 99)).tolist()
        return cls(p50_s, p99_s)


def ttft_s(reply: Reply) -> float:
    """From arrival to the first token."""
    return reply.timings.queue_s + reply.timings.prompt_s


def tpot_s(reply: Reply) -> float:
    """Mean time between two of its tokens; 0 for a reply of one."""
    return reply.timings.predicted_s / max(1, reply.timings.predicted_tokens - 1)


LATENCIES: dict[str, Callable[[Reply], float]] = {
    "queue": lambda reply: reply.timings.queue_s,
    "TTFT": ttft_s,
    "TPOT": tpot_s,
    "whole reply": lambda reply: ttft_s(reply) + reply.timings.predicted_s,
}


@attrs.frozen(kw_only=True)
class Summary:
    """The figures of an outcome that passed; all times are virtual."""

    board: str
    seed: int
    virtual_s: float
    lives: int
    losses: int
    steps: int
    endings: dict[str, int]
    faults: dict[str, int]
    latencies: dict[str, Percentiles]
    tokens_per_s: float
    busy_share: dict[str, float]
    tenants: dict[str, int]
    fairness_comparisons: int
    assumed: tuple[str, ...]


def summarize(outcome: Outcome) -> Summary:
    """The figures of an outcome."""
    record = outcome.record
    tenants: dict[str, int] = {}
    for reply in record.replies:
        tenants[reply.tenant] = tenants.get(reply.tenant, 0) + reply.timings.predicted_tokens
    span_s = max(outcome.ended_s, 1e-9)
    return Summary(
        board=outcome.spec.device.name,
        seed=outcome.spec.seed,
        virtual_s=outcome.ended_s,
        lives=outcome.lives,
        losses=outcome.losses,
        steps=outcome.steps,
        endings=dict(sorted(outcome.clients.items(), key=lambda item: -item[1])),
        faults={fault.value: times for fault, times in outcome.faults.most_common()},
        latencies={name: Percentiles.of(map(value, record.replies)) for name, value in LATENCIES.items()},
        tokens_per_s=sum(tenants.values()) / span_s,
        busy_share={engine: busy_s / span_s for engine, busy_s in sorted(record.busy_s.items())},
        tenants=tenants,
        fairness_comparisons=outcome.compared,
        assumed=outcome.spec.device.assumed,
    )


def as_object(summary: Summary, *, command: str) -> dict[str, Any]:
    """For ``--json``."""
    return {
        "schema": "calculet-simulation/v1",
        "verdict": "PASS",
        "runtime": "emulated",
        "replay": command,
        **attrs.asdict(summary),
    }
