"""M1: async with one job in flight behaves as the synchronous baseline, P50 ≤ 3 % and P99 ≤ 5 % slower.

Source: S §19; SPEC section 13.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from calculet_trio.conformance.blocks import BlockSize, in_flight, measure_blocks, same_behaviour, smallest_profile
from calculet_trio.conformance.comparison import at_most, interval
from calculet_trio.conformance.gate import Criterion
from calculet_trio.conformance.trial import LifeFailed, Trial
from calculet_trio.core.policy import Policy

ASKS: Final = "async with one job in flight equals the synchronous baseline: P50 <= 3 %, P99 <= 5 % slower"
P50_SLOWER_AT_MOST: Final = 1.03
P99_SLOWER_AT_MOST: Final = 1.05
ASSUMPTIONS: Final = (
    "latency is the time between two tokens of a reply, as a client inside the process sees it",
    "baseline: executor.mode sync; candidate: async, one job in flight; smallest decode profile; greedy",
)


def arms(policy: Policy) -> dict[str, Policy]:
    """The two policies that are compared; everything else is as given."""
    return {
        "baseline": in_flight(policy, 1, synchronous=True),
        "candidate": in_flight(policy, 1, synchronous=False),
    }


def try_m1(trial: Trial, policy: Policy, size: BlockSize, *, progress: Callable[[str], None]) -> tuple[Criterion, ...]:
    """Measure, and judge each criterion."""
    try:
        found = measure_blocks(trial, arms(smallest_profile(trial, policy)), size, progress=progress)
    except LifeFailed as failed:
        return (Criterion.of("no abort", holds=False, seen=str(failed)),)
    behaviour = same_behaviour(found)
    if any(not block.gaps_s for each in found for block in (*each.baseline, *each.candidate)):
        return (behaviour,)  # nothing to measure: nobody got two tokens
    return (
        behaviour,
        at_most("P50", interval(found, lambda block: block.gap_s(50)), P50_SLOWER_AT_MOST),
        at_most("P99", interval(found, lambda block: block.gap_s(99)), P99_SLOWER_AT_MOST),
    )
