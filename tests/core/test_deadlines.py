"""Deadlines: earliest first, each told once, and a heap that follows the living."""

from __future__ import annotations

import pytest

from calculet_trio.core.deadlines import Deadlines
from calculet_trio.core.registry import RequestRegistry
from calculet_trio.core.request import Request, RequestEvent
from calculet_trio.core.tenants import Tenants
from calculet_trio.ids import RequestId
from tests.core.shapes import ALIAS, GENERATION


class Watch:
    """A registry with its deadlines."""

    def __init__(self) -> None:
        self.registry = RequestRegistry(Tenants({}))
        self.deadlines = Deadlines(self.registry)

    def add(self, number: int, deadline_s: float) -> Request:
        request = self.registry.create(
            RequestId(number),
            tenant="a",
            alias=ALIAS,
            generation=GENERATION,
            arrived_s=0.0,
            deadline_s=deadline_s,
            order_deadline_s=1000.0,
        )
        self.deadlines.watch(request)
        return request

    def end(self, request: Request) -> None:
        self.registry.move(request, RequestEvent.CANCEL)


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_nothing_is_due_where_nobody_is(watch: Watch) -> None:
    assert watch.deadlines.next_s() is None
    assert watch.deadlines.pop_expired(1e9) is None


def test_the_earliest_comes_first_and_each_comes_once(watch: Watch) -> None:
    late, early, middle = watch.add(1, 30.0), watch.add(2, 10.0), watch.add(3, 20.0)
    assert watch.deadlines.next_s() == 10.0
    assert watch.deadlines.pop_expired(9.999) is None
    assert watch.deadlines.pop_expired(10.0) is early, "a deadline has passed when its moment has come"
    assert watch.deadlines.pop_expired(10.0) is None
    assert [watch.deadlines.pop_expired(50.0) for _ in range(3)] == [middle, late, None]
    assert watch.deadlines.next_s() is None, "an expired request that still runs causes no wakeup"


def test_equal_deadlines_are_told_in_order_of_arrival(watch: Watch) -> None:
    requests = [watch.add(number, 10.0) for number in range(1, 6)]
    assert [watch.deadlines.pop_expired(10.0) for _ in requests] == requests


def test_the_ended_are_not_told(watch: Watch) -> None:
    gone, stays = watch.add(1, 10.0), watch.add(2, 20.0)
    watch.end(gone)
    assert watch.deadlines.next_s() == 20.0
    assert watch.deadlines.pop_expired(30.0) is stays


def test_the_heap_is_bounded_by_the_living(watch: Watch) -> None:
    oldest = watch.add(1, 1.0)
    alive = [watch.add(number, 500.0) for number in range(2, 12)]
    for number in range(100, 5000):
        watch.end(watch.add(number, 100.0))
    assert len(watch.deadlines._heap) <= 2 * len(watch.registry) + Deadlines._FLOOR
    told = [watch.deadlines.pop_expired(1000.0) for _ in range(11)]
    assert told == [oldest, *alive], "the sweep loses nobody"
