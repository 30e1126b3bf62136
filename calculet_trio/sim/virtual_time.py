"""Virtual time: a clock that leaps, and a runner whose blocking calls last without blocking.

Source: ARCHITECTURE.md "Time".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import Any, NoReturn, TypeVar

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
        nap = Nap(self)
        nap.end_at(moment_s)
        await nap.sleep()

    def wake_at(self, moment_s: float, task: trio.lowlevel.Task) -> int:
        """Reschedule a parked task then; the number calls it off."""
        self._number += 1
        self._asleep.add(self._number)
        heappush(self._sleepers, (moment_s, self._number, task))
        return self._number

    def call_off(self, number: int) -> None:
        """The task of that number is woken in another way."""
        self._asleep.discard(number)


class Nap:
    """A sleep whose end somebody else says, before it begins or while it lasts; for one task, again and again.

    Args:
        clock: of this world.
    """

    def __init__(self, clock: LeapClock) -> None:
        self._clock = clock
        self._end_s: float | None = None
        self._task: trio.lowlevel.Task | None = None
        self._number = 0

    def end_at(self, moment_s: float) -> None:
        """Say when; it is said once for each sleep."""
        self._end_s = moment_s
        if self._task is not None:
            self._number = self._clock.wake_at(moment_s, self._task)

    async def sleep(self) -> None:
        """Sleep until the moment that was said, or is.

        **Cancellation**: at once.
        """
        self._task = trio.lowlevel.current_task()
        if self._end_s is not None:
            self._number = self._clock.wake_at(self._end_s, self._task)
        try:
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        finally:
            self._end_s = self._task = None

    def _abort(self, _raise_cancel: Any) -> trio.lowlevel.Abort:
        self._clock.call_off(self._number)
        return trio.lowlevel.Abort.SUCCEEDED


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
        return _VirtualLine(self._pace, self._clock)


class _VirtualLine:
    """Calls in place, in the moment in which they are put; each answer is handed on when its time has passed."""

    def __init__(self, pace: VirtualPace, clock: LeapClock) -> None:
        self._pace = pace
        self._nap = Nap(clock)
        self._answer: Callable[[], Any] | None = None
        self._is_closed = False

    def put(self, call: Callable[[], Any]) -> None:
        if self._is_closed:
            return
        assert self._answer is None, "one call at a time"
        self._answer = _answered(call)
        self._nap.end_at(self._pace.take_debt())

    def close(self) -> None:
        self._is_closed = True
        if self._answer is None:
            self._nap.end_at(0.0)

    async def run(self, deliver: Callable[[Any], None]) -> None:
        while self._answer is not None or not self._is_closed:
            await self._nap.sleep()
            answer, self._answer = self._answer, None
            if answer is not None:
                deliver(answer())


def _answered(call: Callable[[], T]) -> Callable[[], T]:
    """Make the call now; whoever asks for its answer gets it, or what it raised."""
    try:
        answer = call()
    except Exception as error:  # noqa: BLE001 - it is raised where the answer is asked for
        return partial(_raise, error)
    return lambda: answer


def _raise(error: Exception) -> NoReturn:
    raise error
