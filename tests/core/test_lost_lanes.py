"""Lanes that were lost alone: the whole job with them, unless the package declares that their faults stay their own."""

from __future__ import annotations

import attrs

from calculet_trio.core import events as ev
from calculet_trio.core.effects import Drop, Fail, Finish, Quarantined, Refuse
from calculet_trio.core.events import FaultReason, LaneResult
from calculet_trio.core.jobs import EngineId
from calculet_trio.core.lanes import LaneState
from calculet_trio.core.policy import RecoveryPolicy
from calculet_trio.ids import LaneId, RequestId
from tests.core.shapes import small_policy, small_shape
from tests.core.world import World, decoding_pair


def job_of_two(*, isolated: bool) -> tuple[World, RequestId, RequestId]:
    world = World(small_shape(4, lane_fault_isolation=isolated))
    return (world, *decoding_pair(world))


def lane_of(world: World, request: RequestId) -> LaneId:
    return next(work.lane for work in world.job.lanes if work.request == request)


def test_a_lost_lane_takes_the_whole_job_with_it_unless_isolation_is_declared() -> None:
    world, goes_on, lost = job_of_two(isolated=False)
    tokens = list(world.streams[goes_on].tokens)
    world.finish(world.job.job, lost=[lane_of(world, lost)])
    for request in (goes_on, lost):
        assert world.streams[request].end == Fail(request, FaultReason.CCU_FAULT, retryable=True)
    assert world.streams[goes_on].tokens == tokens, "nothing of the job is committed"
    assert Quarantined(EngineId.PING, FaultReason.CCU_FAULT) in world.effects
    assert (world.core.snapshot().jobs_unknown, world.core.snapshot().status.word) == (1, "failed")


def test_where_isolation_is_declared_the_other_lanes_go_on() -> None:
    world, goes_on, lost = job_of_two(isolated=True)
    lane = lane_of(world, lost)
    world.finish(world.job.job, lost=[lane])
    assert world.streams[lost].end == Fail(lost, FaultReason.LANE_LOST, retryable=True)
    assert not world.releases, "nothing of an unknown lane is freed"
    snapshot = world.core.snapshot()
    assert (snapshot.jobs_unknown, snapshot.status.word) == (0, "ok")
    assert snapshot.lanes_by_state[LaneState.UNKNOWN] == 1
    later = [world.ask() for _ in range(6)]
    world.run()
    assert all(isinstance(world.streams[request].end, Finish) for request in (goes_on, *later))
    assert all(work.lane != lane for work in world.device.jobs.values())


def test_a_cancelled_request_whose_lane_was_lost_is_dropped() -> None:
    world, _, lost = job_of_two(isolated=True)
    world.cancel(lost)
    world.finish(world.job.job, lost=[lane_of(world, lost)])
    assert world.streams[lost].end == Drop(lost)


def test_a_lost_lane_pays_for_what_it_used_and_no_more() -> None:
    world, _, lost = job_of_two(isolated=True)
    used = world.streams[lost].prefilled + len(world.streams[lost].tokens)
    before = world.core._tenants.of("a").virtual_time
    world.finish(world.job.job, lost=[lane_of(world, lost)])
    assert world.core._tenants.of("a").virtual_time == before - (3 + 9) + used


def test_when_the_last_lane_is_lost_alone_the_device_is_lost() -> None:
    world = World(small_shape(2, lane_fault_isolation=True), policy=small_policy())
    decoding_pair(world)
    waits = world.ask()
    world.finish(world.job.job, lost=[LaneId(0), LaneId(1)])
    assert isinstance(world.streams[waits].end, Refuse)
    assert world.core.snapshot().status.word == "failed"


def test_lanes_that_were_not_in_the_job_cannot_be_lost_by_it() -> None:
    world, _, _ = job_of_two(isolated=True)
    job = world.job
    results = [
        LaneResult(work.lane, work.request, token, output=token)
        for work in job.lanes
        for token in [world.streams[work.request].next_token]
    ]
    world._end(job.job, written=True)
    world.tell(ev.JobFinished(job.job, job.generation, tuple(results), frozenset({LaneId(3)})))
    assert world.core.snapshot().lanes_by_state[LaneState.UNKNOWN] == 0


def test_a_lane_that_is_lost_after_its_deadline_is_not_replayed() -> None:
    """Found by the state machine: it waited for a replay that nobody would end."""
    policy = attrs.evolve(small_policy(), recovery=RecoveryPolicy(max_resets_per_10min=0, replay=True))
    world = World(small_shape(2, lane_fault_isolation=True), policy=policy)
    request = world.ask(max_new_tokens=9, deadline_s=5.0)
    world.allocate(request)
    world.finish(world.job.job)
    world.pass_time(6.0)
    world.finish(world.job.job, lost=[lane_of(world, request)])
    end = world.streams[request].end
    assert isinstance(end, Finish)
    assert end.truncated_by == "deadline"
