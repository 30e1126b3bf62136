"""Virtual time: a clock that leaps, and a runner whose blocking calls last without blocking.

Source: ARCHITECTURE.md "Time".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio
from trio.abc import Clock

from calculet_trio.runtimes.pace import VirtualPace

T = TypeVar("T")


class LeapClock(Clock):
    """Whenever nobody can run, it is at once the moment that somebody waits for.

    Cheaper than `trio.testing.MockClock` with autojump, which sleeps for real to find that out. A world must hold
    one deadline of its own at all times: with none, trio would wait for the real world.
    """

    def __init__(self) -> None:
        self._now = 0.0

    def start_clock(self) -> None:
        """Nothing to start."""

    def current_time(self) -> float:
        """Seconds since the world began."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Leap to ``deadline``; nobody sleeps."""
        self._now = max(self._now, deadline)
        return 0.0


class VirtualRunner:
    """Runs a blocking call in place and then sleeps for as long as it would have blocked.

    Args:
        pace: the device's clock, to which its calls owe their time.
    """

    def __init__(self, pace: VirtualPace) -> None:
        self._pace = pace

    async def run(self, call: Callable[[], T], limiter: trio.CapacityLimiter) -> T:
        """See `calculet_trio.shell.blocking.BlockingRunner.run`."""
        async with limiter:
            answer = call()
            await trio.sleep_until(self._pace.take_debt())
        return answer
