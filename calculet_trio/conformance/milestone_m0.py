"""M0: one lane a job is stable: 24 h without abort, busy-wait, cross-talk or leak, and every error code visible.

Source: S §19; SPEC section 13.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from calculet_trio.conformance.blocks import in_flight, smallest_profile
from calculet_trio.conformance.clean_hours import CleanHours, clean_criterion, leak_criterion, serve_rounds
from calculet_trio.conformance.gate import Criterion
from calculet_trio.conformance.quiet_waiting import quiet_criterion
from calculet_trio.conformance.trial import LifeFailed, Trial
from calculet_trio.conformance.visible_codes import codes_criterion
from calculet_trio.core.policy import Policy

ASKS: Final = "B1 is stable: 24 h, no abort, no busy-wait, no cross-talk, no leak, every error code visible"
ASSUMPTIONS: Final = (
    "smallest decode profile, one job in flight; greedy",
    "faults are put between the daemon and the device, not made in the device",
)
LEAK_ROUNDS_S: Final = 4.0
"""In real time, at least six rounds; what an hour would leak shows in rounds."""


def try_m0(
    trial: Trial,
    policy: Policy,
    *,
    serve_hours: Callable[[Policy], CleanHours],
    progress: Callable[[str], None],
) -> tuple[Criterion, ...]:
    """Try each criterion.

    Args:
        trial: device and model.
        policy: as configured.
        serve_hours: serves under a policy for as long as was asked for.
        progress: told what is being done.
    """
    policy = in_flight(smallest_profile(trial, policy), 1, synchronous=False)
    criteria = [quiet_criterion(trial, policy), codes_criterion(trial, policy, progress=progress)]
    try:
        rounds = serve_rounds(trial, policy, seconds=LEAK_ROUNDS_S, progress=progress)
    except LifeFailed as failed:
        return (*criteria, Criterion.of("no leak", holds=False, seen=str(failed)))
    if rounds.objection is not None:
        criteria.append(Criterion.of("no cross-talk", holds=False, seen=rounds.objection))
    criteria.append(leak_criterion(rounds))
    return (*criteria, clean_criterion(serve_hours(policy)))
