"""Shrinking: a smaller world that still fails, and in the same way.

Greedy, by halves: fewer clients, less time, fewer kinds of faults, fewer happenings. A change is kept if the
failure is of the same kind; each is tried again as long as anything has become smaller.

Source: Zeller, Hildebrandt, 2002 (delta debugging); Hypothesis for the manner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import attrs

from calculet_trio.sim.failure import Failure, try_scenario
from calculet_trio.sim.scenario import HAPPENINGS, Scenario, rates_of

TRIES_MAX: Final = 80
"""Worlds that a shrink may run; each is no larger than the one that failed."""
_SECONDS_MIN: Final = 0.01


def _ignore(_tries: int, _scenario: Scenario) -> None:
    """Nobody watches."""


@attrs.frozen
class Shrunk:
    """The smallest failure found, and how many worlds were tried for it."""

    failure: Failure
    tries: int


def shrink(
    failure: Failure, *, tries_max: int = TRIES_MAX, on_smaller: Callable[[int, Scenario], None] = _ignore
) -> Shrunk:
    """Look for a smaller world with the same kind of failure.

    Args:
        failure: the one found.
        tries_max: worlds to run at most.
        on_smaller: told of each that fails, and of how many were tried until then.
    """
    tried: set[Scenario] = {failure.scenario}
    progressed = True
    while progressed:
        progressed = False
        for candidate in _smaller(failure.scenario):
            if candidate in tried:
                continue
            if len(tried) > tries_max:
                return Shrunk(failure, tries_max)
            tried.add(candidate)
            found = try_scenario(candidate)
            if isinstance(found, Failure) and found.kind == failure.kind:
                failure, progressed = found, True
                on_smaller(len(tried) - 1, candidate)
                break
    return Shrunk(failure, len(tried) - 1)


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Neighbours that are smaller, the boldest first."""
    if scenario.faults != "none":
        yield attrs.evolve(scenario, faults="none")
    for name in HAPPENINGS if scenario.varied else ():
        if name not in scenario.without:
            yield attrs.evolve(scenario, without=(*scenario.without, name))
    for share in (0.1, 0.5, 0.8):
        shorter_s = round(scenario.seconds * share, 2)
        if shorter_s >= _SECONDS_MIN:
            yield attrs.evolve(scenario, seconds=shorter_s)
    if scenario.visits_max is None:
        yield attrs.evolve(scenario, visits_max=64)
    else:
        most = scenario.visits_max
        fewer = {most // 8, most // 2, most * 7 // 8, most - 1}
        for visits in sorted(fewer - {0, most}):
            yield attrs.evolve(scenario, visits_max=visits)
    kinds = [fault.value for fault in rates_of(scenario.faults)]
    if len(kinds) > 1:
        for kind in kinds:
            yield attrs.evolve(scenario, faults=",".join(other for other in kinds if other != kind))
