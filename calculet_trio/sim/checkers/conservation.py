"""Conservation, from the clients' side: what they heard is what the daemons said, over all their lives.

Source: SPEC section 3 (S §4): offered = completed + cancelled + failed + refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum

from calculet_trio.sim.checkers.violation import require


class Heard(Enum):
    """How a client's visit ended, as the client knows it."""

    UNREACHABLE = "unreachable"
    """No daemon was there."""
    LEFT = "left"
    """The client left before it heard an end."""
    REFUSED = "Refuse"
    FINISHED = "Finish"
    FAILED = "Fail"
    DROPPED = "Drop"
    """The daemon gave it up: its reader was too slow."""


def check_conservation(*, came: int, heard: Mapping[Heard, int], arrived: int, said: Counter[str]) -> None:
    """Hold the clients' books against the daemons'.

    Args:
        came: clients.
        heard: how their visits ended, for them.
        arrived: requests that the daemons took in, over all lives.
        said: how the daemons ended them.

    Raises:
        Violated: a visit or an end is lost or doubled.
    """
    require(sum(heard.values()) == came, f"{came} clients came, {sum(heard.values())} went")
    unreachable, left = heard.get(Heard.UNREACHABLE, 0), heard.get(Heard.LEFT, 0)
    require(came == unreachable + arrived, f"{came - unreachable} clients asked, {arrived} requests arrived")
    unheard = 0
    for kind in (Heard.REFUSED, Heard.FINISHED, Heard.FAILED, Heard.DROPPED):
        spoken, received = said[kind.value], heard.get(kind, 0)
        require(received <= spoken, f"{received} clients heard {kind.value}, which was said {spoken} times")
        unheard += spoken - received
    require(unheard == left, f"{unheard} ends were heard by nobody, and {left} clients had left")
