"""Virtual time: a clock that leaps, and a runner whose blocking calls last without blocking.

Source: ARCHITECTURE.md "Time".
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, TypeVar

import trio
from trio.abc import Clock

from calculet_trio.runtimes.pace import VirtualPace
from calculet_trio.shell.blocking import Line

T = TypeVar("T")


class LeapClock(Clock):
    """Whenever nobody can run, it is at once the moment that somebody waits for.

    Cheaper than `trio.testing.MockClock` with autojump, which sleeps for real to find that out. A world must hold
    one deadline of its own at all times: with none, trio would wait for the real world.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: list[tuple[float, int, trio.lowlevel.Task]] = []
        self._asleep: set[int] = set()
        self._number = 0

    def start_clock(self) -> None:
        """Nothing to start."""

    def current_time(self) -> float:
        """Seconds since the world began."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Leap to ``deadline``, or to the first sleeper that is due before it; nobody sleeps for real."""
        sleepers = self._sleepers
        while sleepers and sleepers[0][1] not in self._asleep:
            heappop(sleepers)
        if sleepers and sleepers[0][0] <= deadline:
            due_s, number, task = heappop(sleepers)
            self._now = max(self._now, due_s)
            self._asleep.remove(number)
            trio.lowlevel.reschedule(task)
        else:
            self._now = max(self._now, deadline)
        return 0.0

    async def sleep_until(self, moment_s: float) -> None:
        """Sleep without a deadline of trio's: a scope, and an exception that ends it, cost three times as much.

        **Cancellation**: at once.
        """
        self._number += 1
        number = self._number
        self._asleep.add(number)
        heappush(self._sleepers, (moment_s, number, trio.lowlevel.current_task()))

        def abort(_raise_cancel: Any) -> trio.lowlevel.Abort:
            self._asleep.remove(number)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)


class VirtualRunner:
    """Runs a blocking call in place and then sleeps for as long as it would have blocked.

    Args:
        pace: the device's clock, to which its calls owe their time.
        clock: of this world.
    """

    def __init__(self, pace: VirtualPace, clock: LeapClock) -> None:
        self._pace = pace
        self._clock = clock

    async def run(self, call: Callable[[], T], limiter: trio.CapacityLimiter) -> T:
        """See `calculet_trio.shell.blocking.BlockingRunner.run`."""
        if limiter.available_tokens < 1:
            async with limiter:
                return await self.run_now(call)
        limiter.acquire_nowait()  # a free limiter is taken without a checkpoint: the sleep is one
        try:
            return await self.run_now(call)
        finally:
            limiter.release()

    async def run_now(self, call: Callable[[], T]) -> T:
        """``run`` for whoever has the place already."""
        answer = call()
        await self._clock.sleep_until(self._pace.take_debt())
        return answer

    async def run_whole(self, call: Callable[[], T], limiter: trio.CapacityLimiter) -> T:
        """See `calculet_trio.shell.blocking.BlockingRunner.run_whole`."""
        return await self.run(call, limiter)

    def line(self) -> Line:
        """See `calculet_trio.shell.blocking.BlockingRunner.line`."""
        return _VirtualLine(self)


class _VirtualLine:
    """Calls in place, each followed by the sleep that it owes."""

    def __init__(self, runner: VirtualRunner) -> None:
        self._runner = runner
        self._send, self._receive = trio.open_memory_channel[Callable[[], Any]](1)
        self._is_closed = False

    def put(self, call: Callable[[], Any]) -> None:
        if not self._is_closed:
            self._send.send_nowait(call)

    def close(self) -> None:
        self._is_closed = True
        self._send.close()

    async def run(self, deliver: Callable[[Any], None]) -> None:
        async for call in self._receive:
            deliver(await self._runner.run_now(call))
