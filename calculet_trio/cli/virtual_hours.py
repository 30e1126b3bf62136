"""Hours of an emulated board in virtual time, for gates: the simulator serves them, conformance hears of it.

The two rooms do not know each other; here they meet.

Source: S §19; ARCHITECTURE.md "Time".
"""

from __future__ import annotations

from typing import Final

import attrs

from calculet_trio.conformance.clean_hours import CleanHours
from calculet_trio.core.policy import Policy
from calculet_trio.sim.failure import failure_of
from calculet_trio.sim.scenario import Scenario
from calculet_trio.sim.world import run_world

_CHECKED: Final = "every reply its prompt's own; lanes, jobs, tasks and requests accounted for to the last"


def serve_virtual_hours(scenario: Scenario, policy: Policy) -> CleanHours:
    """The scenario's board and clients under ``policy``; whatever is wrong in that world is the objection."""
    hours = scenario.seconds / 3600
    spec = attrs.evolve(
        attrs.evolve(scenario, profiles=policy.batch.profiles).spec(), policy=attrs.evolve(policy, tenants={})
    )
    try:
        outcome = run_world(spec)
    except Exception as error:  # noqa: BLE001 - any error of a simulated daemon is the finding
        message = failure_of(scenario, error).message
        return CleanHours(hours=hours, is_virtual=True, requests=0, objection=message, checked=_CHECKED)
    objection = None if outcome.lives == 1 else f"the daemon was started {outcome.lives} times"
    requests = sum(outcome.clients.values())
    return CleanHours(hours=hours, is_virtual=True, requests=requests, objection=objection, checked=_CHECKED)
