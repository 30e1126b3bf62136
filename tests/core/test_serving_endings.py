"""Cancellations, deadlines and drains, in every state a request can be in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from calculet_trio.core.effects import (
    AllocateSequence,
    Drained,
    Drop,
    Fail,
    Finish,
    FinishReason,
    RefusalKind,
    Refuse,
    ReleaseSequence,
)
from calculet_trio.core.events import CancelReason, FaultReason
from calculet_trio.core.lanes import LaneState
from calculet_trio.ids import RequestId
from tests.core.shapes import small_policy, small_shape
from tests.core.world import World

DEADLINE_S = 10.0

# ---- a request in each state -------------------------------------------------------------------------------
# The second request keeps the engine, so that a Ready one stays Ready.


def new(world: World) -> RequestId:
    return world.arrive(deadline_s=DEADLINE_S)


def waiting_for_a_lane(world: World) -> RequestId:
    for _ in range(world.shape.lanes):
        world.allocate(world.ask())
    return world.ask(deadline_s=DEADLINE_S)


def being_allocated(world: World) -> RequestId:
    return world.ask(deadline_s=DEADLINE_S)


def prefill_ready(world: World) -> RequestId:
    world.allocate(world.ask())
    request = world.ask(deadline_s=DEADLINE_S)
    world.allocate(request)
    return request


def prefill_running(world: World) -> RequestId:
    request = world.ask(deadline_s=DEADLINE_S, max_new_tokens=9)
    world.allocate(request)
    return request


def decode_ready(world: World) -> RequestId:
    request = prefill_running(world)
    for _ in range(2):  # the wheel gives prefill every third opportunity at the latest
        world.allocate(world.ask())
    while world.device.work_of(request) is not None:
        world.finish(world.job.job)
    return request


def decode_running(world: World) -> RequestId:
    request = prefill_running(world)
    world.finish(world.job.job)
    return request


WAITING = [new, waiting_for_a_lane, being_allocated]
READY = [prefill_ready, decode_ready]
RUNNING = [prefill_running, decode_running]
Situation = Callable[[World], RequestId]


def in_each(*situations: Situation) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("situation", situations, ids=[one.__name__ for one in situations])


def end_of(world: World, request: RequestId) -> object:
    return world.streams[request].end


# ---- cancel ------------------------------------------------------------------------------------------------


@in_each(*WAITING, *READY)
@pytest.mark.parametrize("reason", CancelReason)
def test_a_request_that_no_job_holds_is_dropped_at_once(situation: Situation, reason: CancelReason) -> None:
    world = World()
    request = situation(world)
    world.cancel(request, reason)
    assert world.effects[0] == Drop(request)
    world.cancel(request)
    assert world.effects == [], "cancelling is idempotent"
    world.run()
    assert not world.open_streams


@in_each(*READY)
def test_a_cancelled_requests_lane_goes_back(situation: Situation) -> None:
    world = World()
    request = situation(world)
    world.cancel(request)
    assert isinstance(world.effects[1], ReleaseSequence)


@in_each(*RUNNING)
@pytest.mark.parametrize("end", ["finish", "stop", "fail_output", "refuse_job", "lose_job"])
def test_a_running_request_is_dropped_when_its_job_has_drained(situation: Situation, end: str) -> None:
    world = World()
    request = situation(world)
    tokens = list(world.streams[request].tokens)
    world.cancel(request)
    assert world.effects == [], "the job is with the device"
    world.cancel(request, CancelReason.REJECTED_INPUT)
    if end == "stop":
        world.finish(world.job.job, stop=[request])
    else:
        getattr(world, end)(world.job.job)
    assert end_of(world, request) == Drop(request)
    assert world.streams[request].tokens == tokens
    assert bool(world.releases) == (end != "lose_job"), "an unknown lane is not released"


def test_a_request_that_goes_while_its_lane_is_allocated_gives_it_back() -> None:
    world = World(small_shape(1))
    gone, next_one = world.ask(), world.ask()
    world.cancel(gone)
    assert not any(isinstance(effect, AllocateSequence) for effect in world.effects), "the lane is still taken"
    world.allocate(gone)
    [release] = world.effects
    assert isinstance(release, ReleaseSequence)
    world.release(release.sequence)
    assert list(world.allocations) == [next_one]


def test_nothing_happens_to_a_request_that_has_its_whole_reply() -> None:
    """B46: the client closes in the same moment in which the reply ends."""
    world = World()
    request = world.ask(max_new_tokens=1)
    world.allocate(request)
    world.finish(world.job.job)
    world.cancel(request)
    assert world.effects == []
    world.run()
    assert isinstance(end_of(world, request), Finish)


def test_a_queued_request_that_goes_disturbs_nobody() -> None:
    """B46: A is as if undisturbed, B never reaches the device, C starts when A ends."""
    world = World(small_shape(1))
    a, b, c = (world.ask() for _ in range(3))
    world.allocate(a)
    world.cancel(b)
    world.run()
    assert isinstance(end_of(world, a), Finish)
    assert isinstance(end_of(world, c), Finish)
    assert all(getattr(event, "request", None) != b for event in world.past)


def test_twenty_that_go_in_one_moment_leave_nothing() -> None:
    """B61."""
    world = World()
    for _ in range(20):
        world.ask()
    world.answer_all(jobs=False)
    for request in list(world.streams):
        world.cancel(request)
    world.run(until_s=1.0)
    snapshot = world.core.snapshot()
    assert (snapshot.running_requests, snapshot.waiting_requests, snapshot.lanes_in_use) == (0, 0, 0)
    assert all(isinstance(stream.end, Drop) for stream in world.streams.values())


# ---- deadlines ---------------------------------------------------------------------------------------------


@in_each(*WAITING)
def test_a_wait_that_its_deadline_ends_is_refused_as_unavailable(situation: Situation) -> None:
    world = World()
    request = situation(world)
    world.pass_time(DEADLINE_S - 0.001)
    assert world.streams[request].is_open
    world.pass_time(0.001)
    end = end_of(world, request)
    assert isinstance(end, Refuse)
    assert (end.refusal.kind, end.refusal.code) == (RefusalKind.UNAVAILABLE, "deadline_exceeded")
    assert end.refusal.retry_after_s is not None
    world.run(until_s=1.0)


def test_an_admitted_request_that_expires_before_its_first_token_fails() -> None:
    world = World()
    request = prefill_ready(world)
    world.pass_time(DEADLINE_S)
    assert end_of(world, request) == Fail(request, FaultReason.DEADLINE_EXCEEDED, retryable=True)
    assert any(isinstance(effect, ReleaseSequence) for effect in world.effects)


def test_a_reply_that_its_deadline_cuts_between_two_tokens_ends_as_length() -> None:
    world = World()
    request = decode_ready(world)
    world.pass_time(DEADLINE_S)
    assert end_of(world, request) == Finish(request, FinishReason.LENGTH, truncated_by="deadline")


@in_each(*RUNNING)
def test_a_job_that_is_out_drains_and_its_token_is_delivered(situation: Situation) -> None:
    world = World()
    request = situation(world)
    tokens = len(world.streams[request].tokens)
    world.pass_time(DEADLINE_S + 1)
    assert world.streams[request].is_open
    assert world.core.next_wakeup() is None, "there is nothing to wake up for but the job's end"
    world.finish(world.job.job)
    assert end_of(world, request) == Finish(request, FinishReason.LENGTH, truncated_by="deadline")
    assert len(world.streams[request].tokens) == tokens + 1


@in_each(*RUNNING)
def test_a_reply_that_is_whole_in_time_or_not_is_whole(situation: Situation) -> None:
    world = World()
    request = situation(world)
    world.pass_time(DEADLINE_S + 1)
    world.finish(world.job.job, stop=[request])
    assert end_of(world, request) == Finish(request, FinishReason.STOP)


def test_a_job_that_the_device_refuses_after_the_deadline_is_not_tried_again() -> None:
    world = World()
    prefill = prefill_running(world)
    world.pass_time(DEADLINE_S)
    world.refuse_job(world.job.job)
    assert end_of(world, prefill) == Fail(prefill, FaultReason.DEADLINE_EXCEEDED, retryable=True)
    world.pass_time(1.0)
    decode = decode_running(world)
    world.pass_time(DEADLINE_S)
    world.refuse_job(world.job.job)
    assert end_of(world, decode) == Finish(decode, FinishReason.LENGTH, truncated_by="deadline")


def test_a_client_can_shorten_its_deadline_and_not_lengthen_it() -> None:
    world = World(policy=small_policy(deadline_default_s=60.0))
    patient, hurried = world.arrive(deadline_s=1e6), world.arrive(deadline_s=1.0)
    assert world.core.next_wakeup() == world.now + 1.0
    world.pass_time(1.0)
    assert isinstance(end_of(world, hurried), Refuse)
    world.pass_time(59.0)
    assert isinstance(end_of(world, patient), Refuse)


def test_a_deadline_that_has_passed_already_ends_the_request_where_it_stands() -> None:
    world = World()
    request = world.arrive(deadline_s=-1.0)
    assert isinstance(end_of(world, request), Refuse)


# ---- drain -------------------------------------------------------------------------------------------------


def test_an_idle_service_has_drained_at_once_and_says_so_once() -> None:
    world = World()
    world.drain()
    assert world.effects == [Drained()]
    world.drain()
    world.pass_time(100.0)
    assert world.effects == []
    assert world.core.next_wakeup() is None


@in_each(*WAITING)
def test_whoever_waits_is_refused_when_a_drain_begins(situation: Situation) -> None:
    world = World()
    request = situation(world)
    world.drain()
    end = end_of(world, request)
    assert isinstance(end, Refuse)
    assert (end.refusal.kind, end.refusal.code) == (RefusalKind.UNAVAILABLE, "draining")
    world.run()
    assert world.drained


@in_each(*READY, *RUNNING)
def test_whoever_was_admitted_may_finish(situation: Situation) -> None:
    world = World()
    request = situation(world)
    world.drain()
    assert not world.drained
    world.run(until_s=1.0)
    assert isinstance(end_of(world, request), Finish)
    assert world.drained


def test_nobody_comes_in_during_a_drain() -> None:
    world = World()
    early = world.arrive()
    world.drain()
    late = world.arrive()
    world.offer(early)
    for request in (early, late):
        end = end_of(world, request)
        assert isinstance(end, Refuse)
        assert end.refusal.code == "draining"
    assert world.core.snapshot().status.word == "draining"


@in_each(*READY)
def test_the_drains_deadline_fails_whoever_is_between_two_jobs(situation: Situation) -> None:
    world = World()
    request = situation(world)
    world.drain(within_s=5.0)
    world.pass_time(5.0)
    assert end_of(world, request) == Fail(request, FaultReason.SHUTDOWN, retryable=True)


@in_each(*RUNNING)
@pytest.mark.parametrize("end", ["finish", "fail_output", "refuse_job"])
def test_the_drains_deadline_lets_a_job_drain_and_then_fails_its_request(situation: Situation, end: str) -> None:
    world = World()
    request = situation(world)
    world.drain(within_s=5.0)
    world.pass_time(5.0)
    assert world.streams[request].is_open
    world.cancel(request)
    world.streams[request].cancelled = False  # too late to be dropped: it was told to end already
    getattr(world, end)(world.job.job)
    assert end_of(world, request) == Fail(request, FaultReason.SHUTDOWN, retryable=True)
    world.answer_all()
    assert world.drained


def test_the_drains_deadline_leaves_a_whole_reply_alone() -> None:
    world = World()
    request = world.ask(max_new_tokens=1)
    world.allocate(request)
    world.finish(world.job.job)
    world.drain(within_s=5.0)
    world.pass_time(5.0)
    assert world.effects == []
    assert isinstance(end_of(world, request), Finish)
    world.release(*world.releases)
    assert world.drained


def test_a_second_signal_ends_what_the_first_let_run() -> None:
    world = World()
    request = decode_ready(world)
    world.drain(within_s=60.0)
    world.drain(within_s=0.0)
    assert end_of(world, request) == Fail(request, FaultReason.SHUTDOWN, retryable=True)


def test_drained_waits_for_the_last_release() -> None:
    world = World()
    request = world.ask(max_new_tokens=1)
    world.allocate(request)
    world.drain()
    world.finish(world.job.job)
    assert isinstance(end_of(world, request), Finish)
    assert not world.drained
    world.release(*world.releases)
    assert world.drained


def test_drained_waits_for_an_allocation_that_nobody_needs_any_more() -> None:
    world = World()
    request = world.ask()
    world.drain()
    assert not world.drained
    world.allocate(request)
    assert not world.drained
    world.release(*world.releases)
    assert world.drained
    assert world.core.snapshot().lanes_by_state[LaneState.FREE] == 4


def test_a_drain_ends_though_a_job_is_lost() -> None:
    world = World()
    request = decode_running(world)
    world.drain(within_s=5.0)
    world.lose_job(world.job.job)
    assert end_of(world, request) == Fail(request, FaultReason.TIMEOUT, retryable=True)
    assert world.drained
