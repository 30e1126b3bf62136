"""M4: models come, go and replace one another under traffic, and nothing is lost, mixed up or left over.

Source: S §19; SPEC section 13.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import attrs

from calculet_trio.conformance.gate import Criterion
from calculet_trio.conformance.load_cycles import CYCLES, cycle, cycle_criteria
from calculet_trio.conformance.switching import Traffic, errands_of, switch, switching_criteria
from calculet_trio.conformance.trial import LifeFailed
from calculet_trio.conformance.two_models import TwoModels

ASKS: Final = (
    "100 loads and unloads; switching between two models under traffic: no request lost or answered by the wrong "
    "generation, memory within 2 %, nothing left over; a rollback is one command"
)
ASSUMPTIONS: Final = (
    "greedy replies of eight tokens; clients and operator are inside of the process",
    "what a rollback goes back to is kept by the gate: the store and its record of what served are not touched",
)
_BOUND_SLACK_S: Final = 3600.0


@attrs.frozen(kw_only=True)
class Switching:
    """Where and how long models are switched under traffic.

    Args:
        models: the device and the two.
        traffic: who asks, and how often the model changes.
        hours: for so long.
        time: ``real`` or ``virtual``.
    """

    models: TwoModels
    traffic: Traffic
    hours: float
    time: str


def try_m4(
    models: TwoModels, switching: Switching, *, cycles: int = CYCLES, progress: Callable[[str], None]
) -> tuple[Criterion, ...]:
    """Try each criterion.

    Args:
        models: for loads, unloads and the rollback, in real time.
        switching: for the hours.
        cycles: how many loads and unloads.
        progress: told what is being done.
    """
    wanted = errands_of(models.sources)
    try:
        cycled = models.live(
            partial(cycle, wanted=wanted, cycles=cycles, progress=progress), bound_s=cycles * _BOUND_SLACK_S
        )
    except LifeFailed as failed:
        return (Criterion.of("load and unload", holds=False, seen=str(failed)),)
    seconds = 3600 * switching.hours
    try:
        switched = switching.models.live(
            partial(switch, wanted=wanted, traffic=switching.traffic, seconds=seconds, progress=progress),
            bound_s=seconds + _BOUND_SLACK_S,
        )
    except LifeFailed as failed:
        failure = Criterion.of("switching under traffic", holds=False, seen=str(failed))
        return (*cycle_criteria(cycled), failure)
    return (*cycle_criteria(cycled), *switching_criteria(switched, time=switching.time))
