"""The core as a whole, for several tenants: limits, rates, deadlines, forecasts, and policies that change meanwhile."""

from __future__ import annotations

import attrs
import pytest

from calculet_trio.core import events as ev
from calculet_trio.core.effects import Fail, Finish, RefusalKind, Refuse
from calculet_trio.core.events import CancelReason
from calculet_trio.core.policy import AdmissionPolicy, DecodeOrder, DecodePolicy, Policy, TenantPolicy
from calculet_trio.ids import RequestId
from tests.core.shapes import small_policy, small_shape
from tests.core.world import World


def world_of(lanes: int = 4, *, order: DecodeOrder = DecodeOrder.SLACK, **tenants: TenantPolicy) -> World:
    policy = Policy(decode=DecodePolicy(order=order), tenants=tenants)
    return World(small_shape(lanes, batches=(1,)), policy=policy)


def refusal_of(world: World, request: RequestId) -> str | None:
    end = world.streams[request].end
    return end.refusal.code if isinstance(end, Refuse) else None


def admitted(world: World) -> list[RequestId]:
    """In the order in which they were."""
    return [event.request for event in world.past if isinstance(event, ev.SequenceAllocated)]


# ---- limits ----------------------------------------------------------------------------------------------------


def test_a_tenant_has_no_more_active_sequences_than_its_limit_and_others_pass_it() -> None:
    world = world_of(a=TenantPolicy(max_active_sequences=2))
    own = [world.ask(tenant="a") for _ in range(4)]
    other = world.ask(tenant="b")
    world.answer_all(jobs=False)
    assert admitted(world) == [*own[:2], other]
    world.run()
    assert all(isinstance(stream.end, Finish) for stream in world.streams.values())


@pytest.mark.parametrize("way", ["finished", "cancelled", "expired", "failed", "lost", "refused by the runtime"])
def test_every_way_to_end_gives_an_active_place_back(way: str) -> None:
    """A place that is not given back shuts the tenant out for good; one that is given back twice lets too many in."""
    world = World(
        small_shape(3, lane_fault_isolation=True), policy=Policy(tenants={"a": TenantPolicy(max_active_sequences=1)})
    )
    first = world.ask(deadline_s=5.0)
    if way == "refused by the runtime":
        world.refuse_allocation(first)
        world.pass_time(1.0)
    world.allocate(first)
    match way:
        case "cancelled":
            world.cancel(first)
            world.finish(world.job.job)
        case "expired":
            world.pass_time(5.0)
            world.finish(world.job.job)
        case "failed":
            world.fail_output(world.job.job)
        case "lost":
            world.finish(world.job.job, lost=[work.lane for work in world.job.lanes])
    world.answer_all()
    assert not world.streams[first].is_open
    for _ in range(2):
        world.ask(), world.ask()
        assert len(world.allocations) == 1
        world.answer_all()
    assert all(isinstance(stream.end, Finish) for stream in world.streams.values() if stream.request != first)


def test_a_tenants_rate_is_its_own_and_a_refusal_takes_no_place() -> None:
    world = world_of(a=TenantPolicy(requests_per_s=1.0))
    first, second, other = world.arrive(tenant="a"), world.arrive(tenant="a"), world.arrive(tenant="b")
    end = world.streams[second].end
    assert isinstance(end, Refuse)
    assert (end.refusal.kind, end.refusal.code) == (RefusalKind.CAPACITY, "rate_limited")
    assert end.refusal.retry_after_s == pytest.approx(1.0)
    assert world.streams[first].is_open
    assert world.streams[other].is_open
    world.pass_time(1.0)
    assert world.streams[world.arrive(tenant="a")].is_open


# ---- deadlines ---------------------------------------------------------------------------------------------------


def decoding(world: World, *tenants: str, **known: float) -> list[RequestId]:
    """A request of each tenant, all decoding and one of them in the job that is out."""
    requests = [world.ask(tenant=tenant, max_new_tokens=9) for tenant in tenants]
    world.answer_all(jobs=False)
    while any(not world.streams[request].tokens for request in requests):
        world.finish(world.job.job)
    return requests


def served_next(world: World, many: int) -> list[RequestId]:
    served = []
    for _ in range(many):
        served.append(world.job.lanes[0].request)
        world.finish(world.job.job)
    return served


def test_a_tenants_deadline_orders_and_ends_its_requests() -> None:
    world = world_of(order=DecodeOrder.EDF, a=TenantPolicy(deadline_s=500.0), b=TenantPolicy(deadline_s=20.0))
    slow, quick = decoding(world, "a", "b")
    world.finish(world.job.job)
    assert served_next(world, 3) == [quick] * 3, "edf: the earliest runs on"
    assert world.core.next_wakeup() == world.streams[quick].deadline_s == world.now + 20.0
    assert world.streams[slow].deadline_s == world.now + 500.0


def test_a_clients_deadline_ends_its_request_and_buys_it_no_place() -> None:
    world = world_of(order=DecodeOrder.EDF)
    first = world.ask(max_new_tokens=9)
    world.pass_time(1.0)
    hurried = world.ask(max_new_tokens=9, deadline_s=10.0)
    world.answer_all(jobs=False)
    while not world.streams[hurried].tokens:
        world.finish(world.job.job)
    world.finish(world.job.job)
    assert set(served_next(world, 4)) == {first}
    world.pass_time(10.0)
    end = world.streams[hurried].end
    assert isinstance(end, Finish)
    assert end.truncated_by == "deadline"


@pytest.mark.parametrize("order", DecodeOrder)
def test_an_expired_sequence_is_never_the_most_urgent(order: DecodeOrder) -> None:
    """It has ended before anything is planned, whatever the event that comes after its deadline."""
    world = world_of(order=order, a=TenantPolicy(deadline_s=10.0), b=TenantPolicy(deadline_s=500.0))
    expires, stays = decoding(world, "a", "b")
    while world.job.lanes[0].request != stays:
        world.finish(world.job.job)
    world.now += 10.0
    world.finish(world.job.job)
    assert not world.streams[expires].is_open
    assert world.job.lanes[0].request == stays


# ---- forecasts ---------------------------------------------------------------------------------------------------


def busy_world(*, prefill_s: float = 4.0) -> World:
    """One lane, where requests of one token have ended every ``prefill_s`` while others waited."""
    world = World(small_shape(1), policy=small_policy(deadline_default_s=1000.0))
    for _ in range(3):
        world.ask(prompt_tokens=8, max_new_tokens=1)
    for _ in range(3):
        world.answer_all(jobs=False)
        world.pass_time(prefill_s)
        world.finish(world.job.job)
    world.answer_all()
    assert not world.open_streams
    return world


def test_a_deadline_that_no_idle_device_could_meet_is_the_requests_fault() -> None:
    world = busy_world()
    request = world.ask(prompt_tokens=8, deadline_s=3.9)
    end = world.streams[request].end
    assert isinstance(end, Refuse)
    assert (end.refusal.kind, end.refusal.code) == (RefusalKind.INVALID, "deadline_too_short")
    assert world.streams[world.ask(prompt_tokens=8, deadline_s=4.1)].is_open


def test_a_queue_that_would_outlast_the_deadline_is_the_loads_fault() -> None:
    world = busy_world()
    for _ in range(4):
        world.ask(prompt_tokens=8)
    request = world.ask(prompt_tokens=8, deadline_s=19.0)
    end = world.streams[request].end
    assert isinstance(end, Refuse)
    assert (end.refusal.kind, end.refusal.code) == (RefusalKind.CAPACITY, "queue_too_long")
    assert end.refusal.retry_after_s == 1.0
    assert world.streams[world.ask(prompt_tokens=8, deadline_s=21.0)].is_open


def test_the_forecast_is_told_beside_the_wait_that_it_became() -> None:
    world = busy_world()
    first, second = world.ask(prompt_tokens=8, max_new_tokens=1), world.ask(prompt_tokens=8, max_new_tokens=1)
    world.answer_all(jobs=False)
    world.pass_time(4.0)
    world.run()
    told = [world.streams[request].admitted for request in (first, second)]
    assert [admit.expected_wait_s for admit in told if admit] == pytest.approx([0.0, 4.0])
    assert [admit.queued_s for admit in told if admit] == pytest.approx([0.0, 4.0])


# ---- policies that change ------------------------------------------------------------------------------------------


def test_new_policies_lose_nobody_and_count_at_once() -> None:
    world = world_of(1, a=TenantPolicy(max_active_sequences=1))
    for _ in range(20):
        world.ask(tenant="a")
        world.ask(tenant="b")
    world.allocate(next(iter(world.allocations)))
    world.change_tenants({"b": TenantPolicy(weight=4.0)})
    assert len(world.open_streams) == 40
    served: list[str] = []
    while len(served) < 20:
        before = len(admitted(world))
        world.answer_all(jobs=False)
        served += [world.streams[request].tenant for request in admitted(world)[before:]]
        world.finish(world.job.job)
    assert 14 <= served.count("b") <= 17
    world.run()
    assert all(isinstance(stream.end, Finish) for stream in world.streams.values())


def test_a_limit_that_is_lifted_admits_at_once() -> None:
    world = world_of(a=TenantPolicy(max_active_sequences=1))
    requests = [world.ask(tenant="a") for _ in range(3)]
    assert list(world.allocations) == requests[:1]
    world.change_tenants({})
    assert list(world.allocations) == requests


def test_requests_keep_the_deadline_they_came_with() -> None:
    world = world_of(a=TenantPolicy(deadline_s=50.0))
    request = world.ask(tenant="a")
    world.change_tenants({"a": TenantPolicy(deadline_s=1.0)})
    world.pass_time(2.0)
    assert world.streams[request].is_open
    world.pass_time(48.0)
    assert refusal_of(world, request) == "deadline_exceeded"


def test_a_tenant_without_a_name_in_the_policy_is_served_all_the_same() -> None:
    world = World(policy=attrs.evolve(Policy(), admission=AdmissionPolicy(max_waiting_requests=2)))
    request = world.ask(tenant="nobody knows")
    world.run()
    assert not isinstance(world.streams[request].end, Refuse | Fail)
    world.cancel(request, CancelReason.CLIENT_GONE)
