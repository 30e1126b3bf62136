"""Pace: how an emulated device lets time pass, for real or in a simulation.

Source: ARCHITECTURE.md "Time".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol


class Pace(Protocol):
    """The device's clock."""

    def now(self) -> float:
        """Seconds, monotonic."""

    def pass_until(self, moment_s: float) -> None:
        """Return when it is ``moment_s``."""


class RealPace:
    """Blocks the calling thread."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    def now(self) -> float:
        return time.monotonic()

    def pass_until(self, moment_s: float) -> None:
        self._closed.wait(max(0.0, moment_s - time.monotonic()))

    def close(self) -> None:
        """Nobody waits any longer."""
        self._closed.set()


class VirtualPace:
    """Owes time instead of spending it: the virtual runner pays with a sleep after each call.

    A call's effects are there before its time has passed; nobody can see that, since the answer is not.

    Args:
        clock: the simulation's time.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until_s = 0.0

    def now(self) -> float:
        return max(self._clock(), self._until_s)

    def pass_until(self, moment_s: float) -> None:
        self._until_s = max(self._until_s, moment_s)

    def take_debt(self) -> float:
        """The moment until which the call just made still has to last; now, if it took no time."""
        until_s, self._until_s = self._until_s, 0.0
        return max(until_s, self._clock())
