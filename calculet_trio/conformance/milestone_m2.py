"""M2: ping/pong serves at least 10 % more in all, P99 ≤ 5 % slower, and hours without an error.

Source: S §14, §19; SPEC section 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from calculet_trio.conformance.blocks import (
    Block,
    BlockSize,
    in_flight,
    measure_blocks,
    same_behaviour,
    smallest_profile,
)
from calculet_trio.conformance.clean_hours import CleanHours, clean_criterion
from calculet_trio.conformance.comparison import at_least, at_most, interval
from calculet_trio.conformance.gate import Criterion
from calculet_trio.conformance.trial import LifeFailed, Trial
from calculet_trio.core.policy import Policy
from calculet_trio.errors import ConfigurationRefused

ASKS: Final = "ping/pong: aggregate throughput at least +10 %, P99 <= 5 % slower, 24 h without an error"
AGGREGATE_AT_LEAST: Final = 1.10
P99_SLOWER_AT_MOST: Final = 1.05
ASSUMPTIONS: Final = (
    "latency is the time between two tokens of a reply, as a client inside the process sees it",
    "baseline: one job in flight; candidate: two, on ping and pong; smallest decode profile; greedy",
)


def arms(policy: Policy) -> dict[str, Policy]:
    """The two policies that are compared; everything else is as given."""
    return {"baseline": in_flight(policy, 1, synchronous=False), "candidate": in_flight(policy, 2, synchronous=False)}


def try_m2(
    trial: Trial,
    policy: Policy,
    size: BlockSize,
    *,
    serve_hours: Callable[[Policy], CleanHours],
    progress: Callable[[str], None],
) -> tuple[Criterion, ...]:
    """Measure, and judge each criterion.

    Args:
        trial: device and model.
        policy: as configured.
        size: how much is measured.
        serve_hours: serves under a policy for as long as was asked for.
        progress: told what is being done.

    Raises:
        calculet_trio.errors.ConfigurationRefused: the device has one engine.
    """
    engines = trial.device().engines
    if len(engines) < 2:
        raise ConfigurationRefused(
            f"m2 is about two engines; this device has {len(engines)} ({', '.join(e.value for e in engines)})"
        )
    policies = arms(smallest_profile(trial, policy))
    try:
        found = measure_blocks(trial, policies, size, progress=progress)
    except LifeFailed as failed:
        return (Criterion.of("no abort", holds=False, seen=str(failed)),)
    behaviour = same_behaviour(found)
    if any(not block.gaps_s for each in found for block in (*each.baseline, *each.candidate)):
        return (behaviour,)
    return (
        behaviour,
        _both_engines(block for each in found for block in each.candidate),
        at_least("aggregate", interval(found, lambda block: block.tokens_per_s), AGGREGATE_AT_LEAST),
        at_most("P99", interval(found, lambda block: block.gap_s(99)), P99_SLOWER_AT_MOST),
        clean_criterion(serve_hours(policies["candidate"])),
    )


def _both_engines(candidates: Iterable[Block]) -> Criterion:
    """What was measured is ping/pong, and not the one engine that a doubt leaves."""
    blocks = list(candidates)
    doubts = [block.doubt for block in blocks if block.doubt is not None]
    seen = f"{len(blocks)} blocks with two jobs in flight"
    if doubts:
        seen += f", {len(doubts)} of them ended on one engine: {', '.join(sorted(set(doubts)))}"
    return Criterion.of("both engines", holds=not doubts, seen=seen)
