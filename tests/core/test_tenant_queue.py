"""The weighted fair queue: order within a tenant, shares between tenants, and no credit for having been away."""

from __future__ import annotations

from collections import Counter
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from calculet_trio.core.request import Request, RequestEvent
from calculet_trio.core.tenant_queue import TenantQueue
from tests.core.shapes import waiting_request


class Line:
    """A queue and numbered requests."""

    def __init__(self) -> None:
        self.queue = TenantQueue()
        self._numbers = count(1)

    def push(self, tenant: str, *, cost: float = 10.0, weight: float = 1.0) -> Request:
        request = waiting_request(next(self._numbers), tenant=tenant)
        self.queue.push(request, cost=cost, weight=weight)
        return request

    def pop(self) -> Request:
        shown = self.queue.peek()
        popped = self.queue.pop()
        assert popped is shown, "pop gives what peek shows"
        popped.advance(RequestEvent.ADMIT)
        return popped

    def tenants(self, many: int) -> str:
        return "".join(self.pop().tenant for _ in range(many))


def test_an_empty_queue_shows_nobody() -> None:
    assert TenantQueue().peek() is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5000)), min_size=1, max_size=40))
def test_within_a_tenant_first_come_is_first_served_whatever_it_costs(asks: list[tuple[str, int]]) -> None:
    line = Line()
    for tenant, cost in asks:
        line.push(tenant, cost=cost)
    served: dict[str, list[int]] = {}
    for _ in asks:
        request = line.pop()
        served.setdefault(request.tenant, []).append(request.id)
    assert all(ids == sorted(ids) for ids in served.values())
    assert line.queue.peek() is None


def test_equal_tenants_take_turns() -> None:
    line = Line()
    for tenant in "aaaabbbb":
        line.push(tenant)
    assert line.tenants(8) == "abababab"


def test_weights_set_the_shares() -> None:
    line = Line()
    for _ in range(40):
        line.push("a", weight=3.0)
        line.push("b", weight=1.0)
    assert Counter(line.tenants(40)) == {"a": 30, "b": 10}


def test_shares_follow_cost_and_not_the_number_of_requests() -> None:
    line = Line()
    for _ in range(50):
        line.push("long", cost=4000)
        line.push("short", cost=400)
    served = [line.pop() for _ in range(33)]
    assert Counter(request.tenant for request in served) == {"short": 30, "long": 3}


def test_one_short_request_passes_a_flood_of_long_ones() -> None:
    """B54: B starts after at most the running job of A."""
    line = Line()
    for _ in range(50):
        line.push("a", cost=4000)
    running = line.pop()
    short = line.push("b", cost=20)
    assert running.tenant == "a"
    assert line.pop() is short


def test_an_idle_tenant_has_banked_nothing() -> None:
    """B54: B was away while A was served; its fifty requests do not push out A's one."""
    line = Line()
    for _ in range(100):
        line.push("a")
    line.tenants(100)
    for _ in range(50):
        line.push("b")
    line.push("a")
    assert "a" in line.tenants(3)


def test_a_request_that_ended_while_it_waited_is_let_go() -> None:
    line = Line()
    gone, stays = line.push("a"), line.push("a")
    gone.advance(RequestEvent.CANCEL)
    assert line.pop() is stays
    assert line.queue.peek() is None


def test_what_is_put_back_has_its_old_place_and_is_not_charged_twice() -> None:
    line = Line()
    first, other = line.push("a", cost=10), line.push("b", cost=15)
    last = line.push("a", cost=10)
    assert line.queue.peek() is first
    line.queue.pop()
    line.queue.put_back(first)
    assert first.virtual_finish == 10
    assert [line.pop(), line.pop(), line.pop()] == [first, other, last]


def test_ended_requests_behind_a_blocked_head_do_not_pile_up() -> None:
    line = Line()
    head = line.push("a", cost=1)
    for _ in range(5000):
        line.push("b", cost=100).advance(RequestEvent.CANCEL)
    assert len(line.queue._heap) <= 2 * (TenantQueue._FLOOR + 1)
    assert line.pop() is head


def test_a_sweep_loses_nobody_who_waits() -> None:
    line = Line()
    waiting = [line.push("a") for _ in range(300)]
    for request in waiting[::2]:
        request.advance(RequestEvent.CANCEL)
    waiting = waiting[1::2] + [line.push("a") for _ in range(300)]
    assert [line.pop() for _ in waiting] == waiting


def test_tenants_that_have_caught_up_are_forgotten() -> None:
    line = Line()
    for number in range(2000):
        line.push(f"tenant {number}")
        line.pop()
    for _ in range(200):  # the global time moves on with whoever is served
        line.push("busy")
        line.pop()
    assert len(line.queue._tenant_time) <= TenantQueue._FLOOR + 1


def test_a_tenant_that_is_ahead_is_not_forgotten() -> None:
    line = Line()
    for _ in range(3):
        line.push("greedy", cost=1000)
    line.tenants(3)
    for number in range(200):
        line.push(f"tenant {number}", cost=1)
    line.tenants(200)
    again = line.push("greedy", cost=1)
    assert again.virtual_start == 3000
