"""A check: its name and group, why it is made, and the function that makes it."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import attrs

from calculet_trio.doctor.finding import Finding
from calculet_trio.doctor.surroundings import Surroundings


class Group(Enum):
    """What a check is about, in the order of a report."""

    HOST = "Host"
    PYTHON = "Python"
    PACKAGES = "Packages"
    CONFIGURATION = "Configuration"
    BOARD = "Board"
    SERVICE = "Service"


@attrs.frozen(kw_only=True)
class Check:
    """One thing to look at.

    Args:
        name: unique; what ``--only`` takes.
        group: its group.
        why: why it matters, in one sentence; shown with every finding that is not ✓.
        examine: looks, and may block; it is run in a thread of its own and given up when it takes too long.
        extra_s: what it may take beyond the bound of every check, since it waits for a process that has its own.
    """

    name: str
    group: Group
    why: str
    examine: Callable[[Surroundings], Finding]
    extra_s: float = 0.0
