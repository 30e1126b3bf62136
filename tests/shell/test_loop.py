"""The loop: who has news of an engine takes a turn at the core; what else follows is performed in order, at home."""

from __future__ import annotations

import threading

import pytest
import trio

from calculet_trio.core.effects import Drop, SubmitJob
from calculet_trio.core.events import Cancelled, CancelReason, TimePassed
from calculet_trio.core.jobs import EngineId
from calculet_trio.ids import RequestId
from calculet_trio.shell.loop import CoreLoop
from tests.shell.house import until


class Echo:
    """A core that answers each event with a drop of the same request, and with a job for the engine."""

    def __init__(self) -> None:
        self.heard = []
        self.inside = threading.Lock()
        self.moments = []

    def handle(self, event, now):
        assert self.inside.acquire(blocking=False), "one at a time"
        try:
            self.moments.append(now)
            if isinstance(event, TimePassed):
                return []
            self.heard.append(event.request)
            return [Drop(event.request), SubmitJob(EngineId.PING, event.request)]
        finally:
            self.inside.release()

    def next_wakeup(self):
        return None


class Rooms:
    """The loop between a core and who performs."""

    def __init__(self) -> None:
        self.core = Echo()
        self.begun, self.performed, self.threads = [], [], set()
        self.loop = CoreLoop(self.core, begin=self._begin, perform=self._perform)

    def _begin(self, effect, now):
        self.begun.append((effect.job, threading.get_ident()))

    def _perform(self, event, effects, now):
        self.threads.add(threading.get_ident())
        self.performed += [effect.request for effect in effects if isinstance(effect, Drop)]


def gone(number):
    return Cancelled(RequestId(number), CancelReason.CLIENT_GONE)


async def test_a_job_is_begun_where_it_is_decided_and_the_rest_is_performed_at_home():
    rooms = Rooms()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rooms.loop.run)
        worker = await trio.to_thread.run_sync(lambda: (rooms.loop.decide(gone(1)), threading.get_ident())[1])
        assert rooms.begun == [(1, worker)]
        assert rooms.performed == []
        await trio.to_thread.run_sync(rooms.loop.announce)
        await until(lambda: rooms.performed == [1])
        assert rooms.threads == {threading.get_ident()}
        nursery.cancel_scope.cancel()


async def test_what_was_posted_before_is_decided_before():
    rooms = Rooms()
    rooms.loop.post(gone(1))
    rooms.loop.post(gone(2))
    await trio.to_thread.run_sync(rooms.loop.decide, gone(3))
    assert rooms.core.heard == [1, 2, 3]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rooms.loop.run)
        await until(lambda: rooms.performed == [1, 2, 3])
        nursery.cancel_scope.cancel()
    assert [job for job, _ in rooms.begun] == [1, 2, 3]


async def test_where_there_is_nothing_to_perform_nobody_is_woken():
    rooms = Rooms()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rooms.loop.run)
        await until(lambda: rooms.loop.rounds)
        rounds = rooms.loop.rounds
        await trio.to_thread.run_sync(rooms.loop.announce)
        await trio.sleep(0.01)
        assert rooms.loop.rounds == rounds
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("threads", [2, 4])
async def test_threads_and_the_loop_take_turns_and_every_effect_is_performed_once_and_in_order(threads):
    rooms = Rooms()
    each = 300

    def tell(first):
        for number in range(first, first + each):
            rooms.loop.decide(gone(number))
            rooms.loop.announce()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(rooms.loop.run)
        async with trio.open_nursery() as tellers:
            for number in range(threads):
                tellers.start_soon(trio.to_thread.run_sync, tell, number * each)
            for number in range(each):
                rooms.loop.post(gone(threads * each + number))
                await trio.lowlevel.checkpoint()
        await until(lambda: len(rooms.performed) == (threads + 1) * each)
        nursery.cancel_scope.cancel()
    assert rooms.performed == rooms.core.heard
    assert sorted(rooms.core.heard) == list(range((threads + 1) * each))
    assert rooms.core.moments == sorted(rooms.core.moments)


class Clock:
    """Stands still until it is moved."""

    now = 0.0

    def current_time(self):
        return self.now


async def test_a_loop_that_comes_late_decides_itself_until_it_is_in_time_again():
    rooms = Rooms()
    rooms.loop._clock = clock = Clock()

    def tell(number):
        rooms.loop.decide(gone(number))
        rooms.loop.announce()
        return threading.get_ident()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(rooms.loop.run)
        first = await trio.to_thread.run_sync(tell, 1)
        await until(lambda: rooms.performed == [1])

        other = threading.Thread(target=tell, args=(2,))
        other.start()
        other.join()  # the trio thread does something else
        clock.now += 0.1
        await until(lambda: rooms.performed == [1, 2])

        await trio.to_thread.run_sync(tell, 3)
        await until(lambda: rooms.performed == [1, 2, 3])
        last = await trio.to_thread.run_sync(tell, 4)
        await until(lambda: rooms.performed == [1, 2, 3, 4])
        assert rooms.begun == [(1, first), (2, other.ident), (3, threading.get_ident()), (4, last)]
        nursery.cancel_scope.cancel()


async def test_a_loop_that_hears_of_nothing_is_not_run_away_from_either():
    rooms = Rooms()
    rooms.loop._clock = clock = Clock()

    def tell():
        for number in range(10):
            rooms.loop.decide(gone(number))
            rooms.loop.announce()
            clock.now += 0.003

    async with trio.open_nursery() as nursery:
        nursery.start_soon(rooms.loop.run)
        await until(lambda: rooms.loop.rounds)
        other = threading.Thread(target=tell)
        other.start()
        other.join()  # the trio thread does something else all the time
        assert [job for job, _ in rooms.begun] == [0, 1]
        await until(lambda: rooms.performed == list(range(10)))
        nursery.cancel_scope.cancel()


async def test_what_comes_while_a_round_performs_is_the_next_rounds():
    rooms = Rooms()
    told = iter(range(2, 50))
    perform = rooms.loop._perform

    def performing(*decided):
        perform(*decided)
        if (number := next(told, None)) is not None:
            other = threading.Thread(target=rooms.loop.decide, args=(gone(number),))
            other.start()
            other.join()

    rooms.loop._perform = performing
    rooms.loop.post(gone(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rooms.loop.run)
        await until(lambda: rooms.performed == list(range(1, 50)))
        nursery.cancel_scope.cancel()
    assert rooms.loop.rounds >= 49
