"""Failure: what a world that went wrong says of itself.

Source: SPEC section 11.
"""

from __future__ import annotations

import re
import traceback

import attrs

from calculet_trio.errors import ConfigurationRefused
from calculet_trio.sim.checkers.violation import Violated
from calculet_trio.sim.scenario import Scenario
from calculet_trio.sim.world import Outcome, run_world


@attrs.frozen
class Failure:
    """Why a world failed.

    Args:
        scenario: run it again with ``scenario.command()``.
        kind: the error without its numbers: equal for the same defect in another world.
        message: the error.
        where: the end of its traceback, for developers.
    """

    scenario: Scenario
    kind: str
    message: str
    where: str


def try_scenario(scenario: Scenario) -> Outcome | Failure:
    """Run one world; whatever is wrong with it is a value. A scenario that makes no world still raises.

    Raises:
        calculet_trio.errors.ConfigurationRefused: of `Scenario.spec`, or of its trace.
    """
    spec = scenario.spec()
    try:
        return run_world(spec)
    except Exception as error:  # noqa: BLE001 - any error of a simulated daemon is a finding, not ours
        return failure_of(scenario, error)


def failure_of(scenario: Scenario, error: BaseException) -> Failure:
    """What an error that a world ended with, perhaps in groups, comes to.

    Raises:
        calculet_trio.errors.ConfigurationRefused: that was the error: a trace that turned out to be none.
    """
    cause = _telling(error)
    if isinstance(cause, ConfigurationRefused):
        raise cause from None
    message = f"{type(cause).__name__}: {cause}"
    frames = traceback.extract_tb(cause.__traceback__)[-3:]
    where = " < ".join(
        f"{frame.name} ({frame.filename.rpartition('calculet_trio')[2]}:{frame.lineno})" for frame in frames[::-1]
    )
    return Failure(scenario, re.sub(r"'[^']*'|\d+(\.\d+)?", "N", message), message, where)


def _telling(error: BaseException) -> BaseException:
    """Of an error in groups, the one that says most: a checker's, else the first of the others."""
    leaves = _leaves(error)
    return next((leaf for leaf in leaves if isinstance(leaf, Violated)), leaves[0])


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]
