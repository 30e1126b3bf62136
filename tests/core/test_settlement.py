"""What the end of a job means: for its lanes, its requests, its engine, and for those who were not in it."""

from __future__ import annotations

import pytest

from calculet_trio.core import events as ev
from calculet_trio.core.effects import Abandon, Deliver, Fail, Finish, Quarantined, Refuse, SubmitJob
from calculet_trio.core.events import FaultReason, LaneResult
from calculet_trio.core.generation import GenerationEvent
from calculet_trio.core.jobs import EngineId
from calculet_trio.core.lanes import LaneState
from calculet_trio.core.settlement import BUSY_TRIES
from calculet_trio.ids import GenerationId, JobId, LaneId, RequestId, SequenceId
from tests.core.shapes import ALIAS, GENERATION, small_policy, small_shape
from tests.core.world import World, decoding_pair

BOTH = (EngineId.PING, EngineId.PONG)
LOSSES = (FaultReason.TIMEOUT, FaultReason.CCU_FAULT, FaultReason.DEVICE_LOST, FaultReason.RUNTIME_ERROR)


def committed(world: World) -> int:
    return world.core.snapshot().kv_tokens_used


# ---- finished --------------------------------------------------------------------------------------------


def test_each_lane_has_its_own_outcome() -> None:
    world = World()
    goes_on, stops = decoding_pair(world)
    world.finish(world.job.job, stop=[stops])
    assert world.streams[goes_on].is_open
    assert isinstance(world.streams[stops].end, Finish)
    assert [work.request for work in world.job.lanes] == [goes_on]


def test_a_lane_that_fails_by_itself_ends_its_own_request_only() -> None:
    world = World()
    goes_on, fails = decoding_pair(world)
    world.finish(world.job.job, fail=[fails])
    assert world.streams[fails].end == Fail(fails, FaultReason.BAD_LOGITS, retryable=False)
    assert world.streams[goes_on].is_open
    world.run()
    assert isinstance(world.streams[goes_on].end, Finish)


def test_a_lane_without_a_result_fails() -> None:
    world = World()
    pair = decoding_pair(world)
    world.finish(world.job.job, mute=True)
    for request in pair:
        assert world.streams[request].end == Fail(request, FaultReason.RUNTIME_ERROR, retryable=True)
    assert len(world.releases) == 2


def test_a_result_of_another_request_is_given_to_nobody() -> None:
    world = World()
    mine, theirs = decoding_pair(world)
    job = world.job
    swapped = [LaneResult(work.lane, RequestId(999), 5, output=5) for work in job.lanes]
    world._end(job.job, written=True)
    world.tell(ev.JobFinished(job.job, job.generation, tuple(swapped)))
    assert not any(isinstance(effect, Deliver) for effect in world.effects)
    for request in (mine, theirs):
        assert world.streams[request].end == Fail(request, FaultReason.RUNTIME_ERROR, retryable=True)


def test_a_result_without_a_token_is_a_failure() -> None:
    world = World()
    request = world.ask()
    world.allocate(request)
    job = world.job
    world._end(job.job, written=True)
    world.tell(ev.JobFinished(job.job, job.generation, (LaneResult(job.lanes[0].lane, request, None),)))
    assert world.streams[request].end == Fail(request, FaultReason.RUNTIME_ERROR, retryable=True)


def test_results_of_lanes_that_were_not_in_the_job_are_ignored() -> None:
    world = World()
    request = world.ask()
    world.allocate(request)
    job = world.job
    token = world.streams[request].next_token
    results = [LaneResult(job.lanes[0].lane, request, token, output=token)]
    results += [LaneResult(lane, request, 77, output=77) for lane in world.lanes_alive if lane != job.lanes[0].lane]
    world._end(job.job, written=True)
    world.tell(ev.JobFinished(job.job, job.generation, tuple(results)))
    assert [effect for effect in world.effects if isinstance(effect, Deliver)] == [Deliver(request, token)]


# ---- stale -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["finish", "fail_output", "refuse_job", "lose_job"])
def test_whatever_comes_after_a_jobs_end_is_ignored(end: str) -> None:
    world = World(engines=BOTH)
    decoding_pair(world)
    job = world.job.job
    getattr(world, end)(job)
    for late in (
        ev.JobFinished(job, GENERATION, ()),
        ev.JobFailed(job, GENERATION, FaultReason.OUTPUT_ERROR),
        ev.JobNotSubmitted(job, GENERATION, FaultReason.DEVICE_BUSY),
        ev.JobUnknown(job, GENERATION, FaultReason.TIMEOUT),
    ):
        world.stale(late)


def test_an_end_from_another_generation_is_ignored_and_the_job_stays_out() -> None:
    world = World()
    decoding_pair(world)
    job = world.job.job
    for wrong in (
        ev.JobFinished(job, GenerationId(2), ()),
        ev.JobUnknown(job, GenerationId(2), FaultReason.TIMEOUT),
        ev.JobFailed(JobId(job + 1), GENERATION, FaultReason.OUTPUT_ERROR),
    ):
        world.stale(wrong)
    world.run()
    assert all(isinstance(stream.end, Finish) for stream in world.streams.values())


def test_an_old_answer_is_none_to_the_same_question_asked_again() -> None:
    world = World(small_shape(1))
    request = world.ask()
    world.refuse_allocation(request)
    world.pass_time(world.core.next_wakeup() - world.now)
    assert world.allocations[request].lane == 0, "the same request asks for the same lane"
    world.stale(world.past[-1])
    asked = world.allocations[request]
    world.stale(ev.SequenceAllocated(GENERATION, asked.lane, request, world.past[-1].reservation, SequenceId(99)))
    world.run()
    assert isinstance(world.streams[request].end, Finish)


def test_a_lane_listens_to_answers_about_its_own_sequence_only() -> None:
    world = World(small_shape(2))
    mine, theirs = world.ask(max_new_tokens=1), world.ask()
    for stranger in (theirs, RequestId(99)):
        asked = world.allocations[mine]
        world.stale(ev.SequenceAllocated(GENERATION, asked.lane, stranger, asked.reservation, SequenceId(99)))
    world.stale(ev.SequenceRefused(GENERATION, LaneId(99), mine, asked.reservation, FaultReason.NO_CAPACITY))
    world.allocate(mine)
    world.finish(world.job.job)
    [asked] = world.releases.values()
    world.stale(ev.SequenceReleased(GENERATION, asked.lane, SequenceId(99), confirmed=True))
    world.stale(ev.SequenceReleased(GenerationId(2), asked.lane, asked.sequence, confirmed=True))
    world.release(asked.sequence)
    world.stale(ev.SequenceReleased(GENERATION, asked.lane, asked.sequence, confirmed=False))


# ---- output failed ---------------------------------------------------------------------------------------


def test_a_failed_output_commits_nothing_and_fails_the_whole_job() -> None:
    world = World()
    pair = decoding_pair(world)
    before = committed(world)
    tokens = [list(world.streams[request].tokens) for request in pair]
    world.fail_output(world.job.job)
    assert committed(world) == before, "the lanes keep their length until they are released"
    assert [world.streams[request].tokens for request in pair] == tokens
    for request in pair:
        assert world.streams[request].end == Fail(request, FaultReason.OUTPUT_ERROR, retryable=True)
    assert len(world.releases) == 2
    world.answer_all()
    assert world.core.snapshot().lanes_by_state[LaneState.FREE] == world.shape.lanes


# ---- not submitted ---------------------------------------------------------------------------------------


def test_a_busy_device_is_asked_again_after_a_pause() -> None:
    world = World()
    pair = decoding_pair(world)
    before = committed(world)
    world.refuse_job(world.job.job)
    assert world.effects == []
    assert committed(world) == before
    assert world.core.next_wakeup() == pytest.approx(world.now + 0.005)
    world.pass_time(0.005)
    assert [type(effect) for effect in world.effects] == [SubmitJob]
    assert sorted(work.request for work in world.job.lanes) == sorted(pair)
    world.run()
    assert all(isinstance(stream.end, Finish) for stream in world.streams.values())


def refuse_until_failed(world: World, request: RequestId) -> int:
    tries = 0
    while world.streams[request].is_open:
        if world.jobs:
            world.refuse_job(world.job.job)
            tries += 1
        wakeup_s = world.core.next_wakeup()
        assert wakeup_s is not None
        world.pass_time(wakeup_s - world.now)
    return tries


def test_a_device_that_stays_busy_is_given_up_in_a_bounded_time() -> None:
    world = World()
    request = world.ask()
    world.allocate(request)
    began_s = world.now
    assert refuse_until_failed(world, request) == BUSY_TRIES
    assert world.streams[request].end == Fail(request, FaultReason.DEVICE_BUSY, retryable=True)
    assert world.now - began_s < 2.0


def test_a_device_that_takes_a_job_again_is_forgiven() -> None:
    world = World()
    request = world.ask(max_new_tokens=3)
    world.allocate(request)
    for _ in range(3):
        for _ in range(BUSY_TRIES - 1):
            world.refuse_job(world.job.job)
            world.pass_time(1.0)
        world.finish(world.job.job)
    assert isinstance(world.streams[request].end, Finish)


def test_a_job_that_is_refused_for_another_reason_fails_at_once() -> None:
    world = World()
    pair = decoding_pair(world)
    world.refuse_job(world.job.job, FaultReason.RUNTIME_ERROR)
    for request in pair:
        assert world.streams[request].end == Fail(request, FaultReason.RUNTIME_ERROR, retryable=True)
    assert len(world.releases) == 2, "nothing was written: the lanes are good"


# ---- unknown ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", LOSSES)
def test_after_an_unknown_job_everybody_is_told_and_nothing_is_used_again(reason: FaultReason) -> None:
    world = World(small_shape(3))
    in_the_job = decoding_pair(world)
    idle, placed = world.ask(), world.arrive()
    world.allocate(idle)
    queued = world.ask()
    world.lose_job(world.job.job, reason)
    for request in (*in_the_job, idle):
        assert world.streams[request].end == Fail(request, reason, retryable=True)
    for request in (queued, placed, world.arrive()):
        end = world.streams[request].end
        assert isinstance(end, Refuse)
        assert end.refusal.code == "failed"
        assert reason.value in end.refusal.message
    assert not world.releases, "nothing of it may be freed"
    snapshot = world.core.snapshot()
    assert (snapshot.status.word, snapshot.status.reason) == ("failed", f"device: {reason.value}")
    assert (snapshot.jobs_unknown, snapshot.jobs_in_flight) == (1, 0)
    assert snapshot.lanes_by_state[LaneState.UNKNOWN] == 3
    world.run()
    assert world.core.next_wakeup() is None


def test_the_quarantine_is_said_once_and_names_its_reason() -> None:
    world = World()
    decoding_pair(world)
    world.lose_job(world.job.job, FaultReason.CCU_FAULT)
    told = [effect for effect in world.effects if isinstance(effect, Quarantined)]
    assert told == [Quarantined(EngineId.PING, FaultReason.CCU_FAULT)]


def test_a_reply_that_was_whole_before_the_loss_is_whole() -> None:
    world = World()
    done, lost = world.ask(max_new_tokens=1), world.ask()
    world.allocate(done)
    world.allocate(lost)
    world.finish(world.job.job)
    assert isinstance(world.streams[done].end, Finish)
    release = next(iter(world.releases))
    world.lose_job(world.job.job)
    assert len(world.core._registry) == 0, "it waits for no answer that may never come"
    world.release(release)
    assert world.effects == []
    assert world.core.snapshot().lanes_by_state[LaneState.UNKNOWN] == 2, "a late answer frees no unknown lane"


def test_an_allocation_that_is_answered_after_the_loss_serves_nobody() -> None:
    world = World()
    running, pending = world.ask(), world.ask()
    world.allocate(running)
    world.lose_job(world.job.job)
    assert isinstance(world.streams[pending].end, Refuse)
    world.allocate(pending)
    assert world.effects == []


@pytest.mark.parametrize("end", ["finish", "fail_output", "refuse_job", "lose_job"])
def test_a_job_of_the_other_engine_that_ends_after_the_loss_changes_nothing(end: str) -> None:
    world = World(policy=small_policy(max_inflight_jobs=2), engines=BOTH)
    pair = world.ask(), world.ask()
    world.answer_all(jobs=False)
    lost, other = world.jobs
    world.lose_job(lost)
    assert [type(effect) for effect in world.effects[-1:]] == [Abandon]
    assert all(isinstance(world.streams[request].end, Fail) for request in pair)
    job = world._end(other) if end == "finish" else world.jobs[other]
    if end == "finish":
        results = tuple(LaneResult(work.lane, work.request, 7, output=7) for work in job.lanes)
        world.tell(ev.JobFinished(other, job.generation, results))
    else:
        getattr(world, end)(other)
    assert world.effects == []
    assert world.core.snapshot().jobs_in_flight == 0
    assert world.core.snapshot().lanes_by_state[LaneState.UNKNOWN] == 2


def test_the_loss_of_the_last_lane_is_the_loss_of_the_device() -> None:
    world = World(small_shape(1), policy=small_policy(max_inflight_jobs=2), engines=BOTH)
    request, waits = world.ask(), world.ask()
    world.allocate(request)
    world.lose_job(world.job.job)
    told = [effect.engine for effect in world.effects if isinstance(effect, Quarantined)]
    assert told == [EngineId.PING, EngineId.PONG]
    assert isinstance(world.streams[waits].end, Refuse)
    assert world.core.snapshot().status.word == "failed"


def test_lanes_whose_release_is_not_confirmed_are_lost_one_by_one() -> None:
    world = World(small_shape(2))
    for lanes_left in (1, 0):
        world.allocate(world.ask(max_new_tokens=1))
        world.finish(world.job.job)
        world.release(*world.releases, confirmed=False)
        assert len(world.lanes_alive) == lanes_left
    end = world.streams[world.arrive()].end
    assert isinstance(end, Refuse)
    assert end.refusal.code == "failed"
    assert world.core.snapshot().status.word == "failed"


def test_whoever_no_longer_fits_beside_lost_lanes_is_told_at_once() -> None:
    world = World(small_shape(2), policy=small_policy(max_kv_tokens=64))
    world.allocate(world.ask(prompt_tokens=30, max_new_tokens=10))
    world.finish(world.job.job, stop=[RequestId(1)])
    world.release(*world.releases, confirmed=False)
    large, small = world.ask(prompt_tokens=30), world.ask(prompt_tokens=10)
    end = world.streams[large].end
    assert isinstance(end, Refuse)
    assert (end.refusal.code, end.refusal.retry_after_s) == ("failed", 10.0)
    world.run()
    assert isinstance(world.streams[small].end, Finish)


def test_a_generation_that_is_no_longer_on_the_device_does_not_mind_its_loss() -> None:
    world = World()
    for step in (GenerationEvent.DRAIN, GenerationEvent.UNLOAD, GenerationEvent.UNLOADED):
        world.tell(ev.GenerationAdvanced(GENERATION, ALIAS, step))
    other = GenerationId(2)
    for step in (GenerationEvent.VALIDATE, GenerationEvent.CONFIGURE, GenerationEvent.WARM):
        world.tell(ev.GenerationAdvanced(other, ALIAS, step))
    world.tell(ev.GenerationAdvanced(other, ALIAS, GenerationEvent.PUBLISH, world.shape))
    request = world.arrive()
    world.offer(request, generation=other)
    world.allocate(request)
    world.lose_job(world.job.job)
    assert isinstance(world.streams[request].end, Fail)
    assert world.core.snapshot().status.word == "failed"
