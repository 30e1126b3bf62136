"""The weighted fair queue: order within a tenant, shares between tenants, and no credit for having been away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculet_trio.core.policy import TenantPolicy
from calculet_trio.core.request import Request, RequestEvent
from calculet_trio.core.tenant_queue import TenantQueue
from calculet_trio.core.tenants import Tenants
from calculet_trio.ids import GenerationId
from tests.core.shapes import GENERATION, waiting_request


class Line:
    """A queue with its tenants and numbered requests."""

    def __init__(self, **weights: float) -> None:
        self.tenants = Tenants({name: TenantPolicy(weight=weight) for name, weight in weights.items()})
        self.queue = TenantQueue(self.tenants)
        self._numbers = count(1)

    def push(self, tenant: str, *, cost: float = 10.0) -> Request:
        request = waiting_request(next(self._numbers), tenant=tenant)
        self.queue.push(request, cost=cost)
        return request

    def pop(self) -> Request:
        shown = self.queue.peek()
        popped = self.queue.pop()
        assert popped is shown, "pop gives what peek shows"
        popped.advance(RequestEvent.ADMIT)
        return popped

    def serve(self) -> Request:
        """Pop one, which uses all that it was charged."""
        request = self.pop()
        self.queue.settle(request, used=request.cost)
        return request

    def served_tenants(self, many: int) -> str:
        return "".join(self.serve().tenant for _ in range(many))

    def change(self, policies: Mapping[str, TenantPolicy]) -> None:
        self.tenants.change(policies)
        self.queue.reweigh()


def test_an_empty_queue_shows_nobody() -> None:
    line = Line()
    assert line.queue.peek() is None
    assert len(line.queue) == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5000)), min_size=1, max_size=40))
def test_within_a_tenant_first_come_is_first_served_whatever_it_costs(asks: list[tuple[str, int]]) -> None:
    line = Line()
    for tenant, cost in asks:
        line.push(tenant, cost=cost)
    assert len(line.queue) == len(asks)
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
    assert line.served_tenants(8) == "abababab"


def test_weights_set_the_shares() -> None:
    line = Line(a=3.0, b=1.0)
    for _ in range(40):
        line.push("a")
        line.push("b")
    assert Counter(line.served_tenants(40)) == {"a": 30, "b": 10}


def test_shares_follow_cost_and_not_the_number_of_requests() -> None:
    line = Line()
    for _ in range(50):
        line.push("long", cost=4000)
        line.push("short", cost=400)
    served = [line.serve() for _ in range(33)]
    assert Counter(request.tenant for request in served) == {"short": 30, "long": 3}


def test_shares_follow_what_was_used_and_not_what_was_asked_for() -> None:
    """Both use 100; a asked for ten times as much and gets it back when each request ends."""
    line = Line()
    for _ in range(60):
        line.push("a", cost=1000)
        line.push("b", cost=100)
    served = []
    for _ in range(60):
        request = line.pop()
        line.queue.settle(request, used=100.0)
        served.append(request.tenant)
    assert 25 <= served[20:].count("a") + 10 <= 35


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
    line.served_tenants(100)
    for _ in range(50):
        line.push("b")
    line.push("a")
    assert "a" in line.served_tenants(3)


def test_a_request_that_ended_while_it_waited_is_let_go() -> None:
    line = Line()
    gone, stays = line.push("a"), line.push("a")
    line.queue.discard(gone)
    assert line.pop() is stays
    assert line.queue.peek() is None


def test_one_that_goes_from_the_middle_disturbs_nobody() -> None:
    line = Line()
    first, gone, last = (line.push("a") for _ in range(3))
    line.queue.discard(gone)
    line.queue.discard(gone)
    assert [line.pop(), line.pop()] == [first, last]
    assert line.tenants.of("a").virtual_time == 20.0, "it was never charged for"


def test_what_is_put_back_has_its_old_place_and_is_not_charged_twice() -> None:
    line = Line()
    first, other = line.push("a", cost=10), line.push("b", cost=15)
    last = line.push("a", cost=10)
    assert line.queue.peek() is first
    for _ in range(3):
        line.queue.pop()
        line.queue.put_back(first)
        assert (line.tenants.of("a").virtual_time, line.tenants.of("a").active) == (0.0, 0)
    assert [line.pop(), line.pop(), line.pop()] == [first, other, last]
    assert first.virtual_finish == 10


def test_a_charge_is_made_once_and_settled_once() -> None:
    line = Line(a=2.0)
    request = line.push("a", cost=100)
    assert not request.is_charged
    line.pop()
    account = line.tenants.of("a")
    assert (request.is_charged, request.weight, request.virtual_start, request.virtual_finish) == (True, 2.0, 0.0, 50.0)
    assert (account.virtual_time, account.active) == (50.0, 1)
    line.queue.settle(request, used=30.0)
    assert not request.is_charged
    assert (account.virtual_time, account.active) == (15.0, 0)


def test_what_was_charged_at_one_weight_is_settled_at_it() -> None:
    line = Line(a=2.0)
    request = line.push("a", cost=100)
    line.pop()
    line.change({"a": TenantPolicy(weight=10.0)})
    line.queue.settle(request, used=0.0)
    assert line.tenants.of("a").virtual_time == 0.0


# ---- limits and weights --------------------------------------------------------------------------------


def test_a_tenant_at_its_own_limit_is_passed_over_and_loses_nothing() -> None:
    line = Line()
    line.change({"a": TenantPolicy(max_active_sequences=1)})
    first, second, third = (line.push("a", cost=1) for _ in range(3))
    other = line.push("b", cost=100)
    assert [line.pop(), line.pop()] == [first, other]
    assert line.queue.peek() is None
    line.queue.settle(first, used=1.0)
    assert line.pop() is second, "it comes as soon as there is room for it"
    assert line.queue.peek() is None
    line.change({})
    assert line.pop() is third, "and the limit may be lifted while it waits"


def test_a_limit_that_is_set_while_more_are_active_admits_nobody_until_they_are_fewer() -> None:
    line = Line()
    active = [line.push("a") for _ in range(3)]
    for _ in active:
        line.pop()
    waits = line.push("a")
    line.change({"a": TenantPolicy(max_active_sequences=2)})
    for request in active[:2]:
        assert line.queue.peek() is None
        line.queue.settle(request, used=1.0)
    assert line.queue.peek() is waits


def test_new_weights_count_at_once_for_whoever_waits() -> None:
    line = Line()
    for _ in range(40):
        line.push("a")
        line.push("b")
    line.served_tenants(10)
    line.change({"b": TenantPolicy(weight=4.0)})
    assert Counter(line.served_tenants(25)) == {"a": 5, "b": 20}


def test_the_way_ahead_is_ones_own_and_what_the_others_weights_buy_meanwhile() -> None:
    line = Line(a=1.0, b=3.0)

    def ahead_of(name: str) -> float:
        return line.queue.ahead_of(line.tenants.of(name))

    assert ahead_of("a") == 0.0
    for _ in range(2):
        line.push("a")
    assert (ahead_of("a"), ahead_of("c")) == (2.0, 1.0)
    for _ in range(4):
        line.push("b")
    assert ahead_of("a") == 2 + 4, "b has no more than four"
    assert ahead_of("b") == pytest.approx(4 + 5 / 3)
    line.change({"a": TenantPolicy(weight=3.0), "b": TenantPolicy(weight=3.0)})
    assert ahead_of("a") == pytest.approx(2 + 3)
    assert ahead_of("b") == pytest.approx(4 + 2), "a has no more than two"
    for _ in range(6):
        line.serve()
    assert ahead_of("a") == pytest.approx(0.0)


# ---- models that are not ready ----------------------------------------------------------------------------


def test_a_request_that_is_set_aside_holds_up_nobody_and_comes_back_to_the_front() -> None:
    line = Line()
    waiting = [line.push("a") for _ in range(4)]
    other = line.push("b", cost=1000)
    for request in waiting[:3]:
        line.queue.set_aside(request)
    assert len(line.queue) == 2
    line.queue.discard(waiting[1])  # its client goes
    assert line.pop() is waiting[3]
    line.queue.bring_back(GenerationId(77))
    assert len(line.queue) == 1, "not its generation"
    line.queue.bring_back(GENERATION)
    line.queue.bring_back(GENERATION)
    assert [line.pop(), line.pop(), line.pop()] == [waiting[0], waiting[2], other]


def test_a_time_aside_banks_nothing() -> None:
    line = Line()
    request = line.push("a")
    line.queue.set_aside(request)
    for _ in range(10):
        line.push("b")
    line.served_tenants(10)
    line.queue.bring_back(GENERATION)
    assert line.tenants.of("a").virtual_time == line.queue.global_time == 90.0


# ---- bounds --------------------------------------------------------------------------------------------------


def test_ended_requests_behind_a_blocked_head_do_not_pile_up() -> None:
    line = Line()
    head = line.push("a", cost=1)
    for _ in range(5000):
        line.queue.discard(line.push("b", cost=100))
    assert len(line.queue._heap) <= 2 * (TenantQueue._FLOOR + 2)
    assert line.pop() is head


def test_a_sweep_loses_nobody_who_waits() -> None:
    line = Line()
    waiting = {name: [line.push(name) for _ in range(3)] for name in (f"tenant {number}" for number in range(80))}
    for _ in range(1000):
        line.queue.discard(line.push("passing", cost=1))
    served = [line.pop() for _ in range(240)]
    for name, requests in waiting.items():
        assert [request for request in served if request.tenant == name] == requests


def test_tenants_that_have_caught_up_are_forgotten() -> None:
    line = Line()
    for number in range(2000):
        line.tenants.forget_idle(0.0, line.queue.global_time)
        line.push("busy")
        line.push(f"tenant {number}")
        line.served_tenants(2)
    assert len(line.tenants) <= 2 * 64 + 2


def test_a_tenant_that_is_ahead_is_not_forgotten() -> None:
    line = Line()
    for _ in range(3):
        line.push("greedy", cost=1000)
    line.served_tenants(3)
    for number in range(200):
        line.push(f"tenant {number}", cost=1)
        line.tenants.forget_idle(0.0, line.queue.global_time)
    line.served_tenants(200)
    line.push("greedy", cost=1)
    assert line.pop().virtual_start == 3000
