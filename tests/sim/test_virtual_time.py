"""The clock leaps, in order, and blocking calls last without blocking."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from math import inf

import trio

from calculet_trio.runtimes.pace import VirtualPace
from calculet_trio.sim.virtual_time import LeapClock, VirtualRunner

DAY_S = 86_400.0


def in_virtual_time(run: Callable[[LeapClock], Awaitable[None]]) -> None:
    clock = LeapClock()

    async def bounded() -> None:
        with trio.move_on_after(30 * DAY_S):
            await run(clock)

    trio.run(bounded, clock=clock)


def test_a_day_passes_at_once() -> None:
    async def run(clock: LeapClock) -> None:
        await trio.sleep(DAY_S)
        assert trio.current_time() == DAY_S
        await clock.sleep_until(2 * DAY_S)
        assert trio.current_time() == 2 * DAY_S

    in_virtual_time(run)


def test_both_kinds_of_sleep_wake_in_the_order_of_their_moments() -> None:
    woken: list[float] = []

    async def run(clock: LeapClock) -> None:
        async def sleeper(sleep: Callable[[float], Awaitable[None]], moment_s: float) -> None:
            await sleep(moment_s)
            assert trio.current_time() == moment_s
            woken.append(moment_s)

        async with trio.open_nursery() as nursery:
            for number, moment_s in enumerate((5.0, 1.0, 4.0, 2.0, 3.0, 6.0)):
                nursery.start_soon(sleeper, (clock.sleep_until, trio.sleep_until)[number % 2], moment_s)

    in_virtual_time(run)
    assert woken == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_a_sleep_that_is_cancelled_wakes_nobody_later() -> None:
    async def run(clock: LeapClock) -> None:
        with trio.move_on_after(1.0) as scope:
            await clock.sleep_until(100.0)
        assert scope.cancelled_caught
        assert trio.current_time() == 1.0
        await trio.sleep(500.0)
        assert trio.current_time() == 501.0

    in_virtual_time(run)


def test_time_never_goes_back() -> None:
    async def run(clock: LeapClock) -> None:
        await trio.sleep(10.0)
        await clock.sleep_until(3.0)
        assert trio.current_time() == 10.0

    in_virtual_time(run)


def test_a_blocking_call_lasts_and_its_limiter_is_taken_meanwhile() -> None:
    ended: list[float] = []

    async def run(clock: LeapClock) -> None:
        pace = VirtualPace(clock.current_time)
        runner, limiter = VirtualRunner(pace, clock), trio.CapacityLimiter(1)

        async def blocking() -> None:
            await runner.run(lambda: pace.pass_until(pace.now() + 2.0), limiter)
            ended.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(blocking)
        assert limiter.available_tokens == 1

    in_virtual_time(run)
    assert ended == [2.0, 4.0, 6.0]


def test_a_call_that_never_returns_is_left_at_its_bound() -> None:
    async def run(clock: LeapClock) -> None:
        pace = VirtualPace(clock.current_time)
        limiter = trio.CapacityLimiter(1)
        with trio.move_on_after(7.0) as scope:
            await VirtualRunner(pace, clock).run(partial(pace.pass_until, inf), limiter)
        assert scope.cancelled_caught
        assert trio.current_time() == 7.0
        assert limiter.available_tokens == 1

    in_virtual_time(run)
