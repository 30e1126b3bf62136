"""A fault that nobody can look past: quiesce, reset, prove, serve; within a budget, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from calculet_trio.core import events as ev
from calculet_trio.core.effects import Fail, Finish, Refuse, ResetDevice, ResetRefused
from calculet_trio.core.events import FaultReason
from calculet_trio.core.faults import FAULTS, Next
from calculet_trio.core.generation import GenerationEvent, GenerationState
from calculet_trio.core.jobs import EngineId
from calculet_trio.core.lanes import LaneState
from calculet_trio.core.policy import AdmissionPolicy, Policy, RecoveryPolicy
from calculet_trio.core.recovery import WINDOW_S, ResetBudget
from calculet_trio.core.serving import ServingCore
from calculet_trio.ids import GenerationId, JobId
from tests.core.shapes import small_shape
from tests.core.world import World, decoding_pair

BOTH = (EngineId.PING, EngineId.PONG)


def recovering(*, max_inflight_jobs: int = 1, lanes: int = 4, engines: Any = BOTH, **recovery: Any) -> World:
    """A world in which a fault leads to a reset."""
    policy = Policy(admission=AdmissionPolicy(max_inflight_jobs=max_inflight_jobs), recovery=RecoveryPolicy(**recovery))
    return World(small_shape(lanes), policy=policy, engines=engines)


def with_one_of_two_jobs_lost() -> tuple[World, JobId]:
    """A world that quiesces: ping's job is lost, and pong's is still out."""
    world = recovering(max_inflight_jobs=2)
    world.ask()
    world.ask()
    world.answer_all(jobs=False)
    ping, pong = world.jobs
    world.lose_job(ping, FaultReason.CCU_FAULT)
    return world, pong


def word(world: World) -> str:
    return world.core.snapshot().status.word


def test_a_fault_leads_to_a_reset_and_back_to_service() -> None:
    world = recovering()
    pair = decoding_pair(world)
    world.lose_job(world.job.job, FaultReason.CCU_FAULT)
    for request in pair:
        assert world.streams[request].end == Fail(request, FaultReason.CCU_FAULT, retryable=True)
    assert world.resets == [ResetDevice(FaultReason.CCU_FAULT, EngineId.PING)]
    assert (word(world), world.core.snapshot().jobs_unknown) == ("recovering", 1)
    world.reset()
    snapshot = world.core.snapshot()
    assert (snapshot.status.word, snapshot.resets, snapshot.jobs_unknown, snapshot.buffers_unknown) == ("ok", 1, 0, 1)
    assert snapshot.lanes_by_state[LaneState.FREE] == 4
    later = [world.ask() for _ in range(5)]
    world.run()
    assert all(isinstance(world.streams[request].end, Finish) for request in later)


def test_meanwhile_who_waits_goes_on_waiting_and_who_comes_is_told_to_come_back() -> None:
    world = recovering(lanes=2)
    decoding_pair(world)
    waits, placed = world.ask(), world.arrive()
    world.lose_job(world.job.job, FaultReason.PCIE_ERROR)
    late = world.streams[world.arrive()].end
    assert isinstance(late, Refuse)
    assert (late.refusal.code, late.refusal.retry_after_s) == ("recovering", 5.0)
    world.offer(placed)
    assert isinstance(world.streams[placed].end, Refuse)
    assert world.streams[waits].is_open
    assert world.core.next_wakeup() == world.streams[waits].deadline_s, "nothing else is to be waited for"
    world.reset()
    world.run()
    assert isinstance(world.streams[waits].end, Finish)


def test_who_waits_too_long_is_told() -> None:
    world = recovering(lanes=2)
    decoding_pair(world)
    waits = world.ask(deadline_s=1.0)
    world.lose_job(world.job.job, FaultReason.CCU_FAULT)
    world.pass_time(1.0)
    end = world.streams[waits].end
    assert isinstance(end, Refuse)
    assert end.refusal.code == "deadline_exceeded"


def test_the_reset_waits_until_the_other_engines_job_has_drained_and_its_tokens_are_given() -> None:
    world = recovering(max_inflight_jobs=2)
    first, second = world.ask(), world.ask()
    world.answer_all(jobs=False)
    ping, pong = world.jobs
    world.lose_job(ping, FaultReason.CCU_FAULT)
    assert isinstance(world.streams[first].end, Fail)
    assert world.streams[second].is_open
    assert not world.resets
    assert word(world) == "recovering"
    world.finish(pong)
    assert world.streams[second].tokens, "its token was sampled, and it is given"
    assert world.resets
    assert world.streams[second].end == Fail(second, FaultReason.CCU_FAULT, retryable=True)


def test_the_reset_waits_for_allocations_and_releases_and_gives_their_lanes_back() -> None:
    world = recovering()
    done, runs = world.ask(max_new_tokens=1), world.ask()
    world.allocate(done)
    world.allocate(runs)
    world.finish(world.job.job)
    pending = world.ask()
    world.lose_job(world.job.job, FaultReason.CCU_FAULT)
    assert not world.resets
    world.release(*world.releases)
    world.allocate(pending)
    assert world.streams[pending].is_open, "it was never admitted: it waits"
    assert world.streams[pending].admitted is None
    assert not world.resets
    world.release(*world.releases)
    assert world.resets
    world.run()
    assert isinstance(world.streams[pending].end, Finish)


def test_an_allocation_that_is_refused_meanwhile_is_tried_after_the_reset() -> None:
    world = recovering()
    runs, pending = world.ask(), world.ask()
    world.allocate(runs)
    world.lose_job(world.job.job, FaultReason.CCU_FAULT)
    world.refuse_allocation(pending)
    assert world.resets
    world.run()
    assert isinstance(world.streams[pending].end, Finish)


def test_a_second_fault_while_it_quiesces_costs_no_second_reset() -> None:
    world = recovering(max_inflight_jobs=2, max_resets_per_10min=1)
    world.ask()
    world.ask()
    world.answer_all(jobs=False)
    ping, pong = world.jobs
    world.lose_job(ping, FaultReason.CCU_FAULT)
    world.lose_job(pong, FaultReason.CCU_FAULT)
    assert len(world.resets) == 1
    world.reset()
    assert word(world) == "ok"


def test_a_loss_for_good_while_it_quiesces_ends_it() -> None:
    world, pong = with_one_of_two_jobs_lost()
    world.lose_job(pong, FaultReason.STUCK_WAIT)
    assert world.abandoned[0].engine is EngineId.PONG
    assert [each.reason for each in world.abandoned] == [FaultReason.STUCK_WAIT]
    assert not world.resets
    assert word(world) == "failed"


def test_a_call_beside_the_jobs_that_never_returns_ends_it_once_and_everybody_is_told_why() -> None:
    world = recovering()
    runs = world.ask()
    world.answer(1)
    world.tell(ev.CallStuck(FaultReason.STUCK_WAIT))
    world.tell(ev.CallStuck(FaultReason.STUCK_WAIT))
    waits = world.ask()
    assert [(each.reason, each.engine) for each in world.abandoned] == [(FaultReason.STUCK_WAIT, None)]
    assert word(world) == "failed"
    assert isinstance(world.streams[runs].end, Fail)
    assert isinstance(world.streams[waits].end, Refuse)


def test_the_budget_is_of_ten_minutes() -> None:
    world = recovering(max_resets_per_10min=2)
    for _ in range(2):
        world.ask()
        world.answer_all(jobs=False)
        world.lose_job(world.job.job, FaultReason.CCU_FAULT)
        world.reset()
    world.pass_time(WINDOW_S)
    for _ in range(2):
        world.ask()
        world.answer_all(jobs=False)
        world.lose_job(world.job.job, FaultReason.CCU_FAULT)
        world.reset()
    world.ask()
    world.answer_all(jobs=False)
    world.lose_job(world.job.job, FaultReason.CCU_FAULT)
    assert [each.reason for each in world.abandoned] == [FaultReason.CCU_FAULT]
    assert word(world) == "failed"


def test_resets_by_earlier_processes_count() -> None:
    budget = ResetBudget(2, (-500.0, -10.0))
    assert not budget.allows(0.0)
    assert budget.allows(101.0)
    budget.spend(101.0)
    assert not budget.allows(102.0)
    core = ServingCore(Policy(), past_resets_s=(99.0, 100.0))
    assert not core._recovery.budget.allows(101.0)


@pytest.mark.parametrize("failed", [FaultReason.GOLDEN_MISMATCH, FaultReason.DEVICE_LOST])
def test_a_reset_that_fails_is_the_end(failed: FaultReason) -> None:
    world = recovering(lanes=2, replay=True)
    pair = decoding_pair(world)
    waits = world.ask()
    world.lose_job(world.job.job, FaultReason.CCU_FAULT)
    world.reset(failed)
    for request in pair:
        assert world.streams[request].end == Fail(request, failed, retryable=True)
    assert isinstance(world.streams[waits].end, Refuse)
    assert [each.reason for each in world.abandoned] == [failed]
    world.stale(ev.DeviceReset())


def test_a_word_about_a_reset_that_nobody_asked_for_is_ignored() -> None:
    world = recovering()
    world.stale(ev.DeviceReset())
    world.stale(ev.DeviceReset(FaultReason.GOLDEN_MISMATCH))


@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("reason", [reason for reason, rule in FAULTS.items() if rule.next is Next.RESTART_OR_RESET])
def test_what_a_dma_may_still_do_is_waited_for_by_a_new_process_unless_configured(
    reason: FaultReason, restart: bool
) -> None:
    world = recovering(restart_on_unknown_dma=restart)
    decoding_pair(world)
    world.lose_job(world.job.job, reason)
    assert bool(world.abandoned) is restart
    assert bool(world.resets) is not restart


@pytest.mark.parametrize("reason", [reason for reason, rule in FAULTS.items() if rule.next is Next.RESET])
def test_an_output_that_cannot_be_trusted_at_all_is_as_an_unknown_job(reason: FaultReason) -> None:
    world = recovering()
    pair = decoding_pair(world)
    job = world.jobs.pop(world.job.job)
    world.device.lose(job.job)
    world.tell(ev.JobFailed(job.job, job.generation, reason))
    for request in pair:
        assert world.streams[request].end == Fail(request, reason, retryable=True)
    assert world.resets == [ResetDevice(reason, EngineId.PING)]


def test_nothing_is_reset_in_a_drain() -> None:
    world = recovering()
    decoding_pair(world)
    world.drain()
    world.lose_job(world.job.job, FaultReason.CCU_FAULT)
    assert world.abandoned


def test_a_drain_in_the_middle_of_a_reset_ends_with_the_reset() -> None:
    """Who left before would leave a device that still works, or holds lanes, to a process that knows nothing of it."""
    world = recovering(lanes=2, replay=True)
    pair = decoding_pair(world)
    waits = world.ask()
    world.lose_job(world.job.job, FaultReason.CCU_FAULT)
    world.drain(within_s=1.0)
    assert isinstance(world.streams[waits].end, Refuse)
    assert not world.drained
    world.pass_time(1.0)
    for request in pair:
        assert world.streams[request].end == Fail(request, FaultReason.SHUTDOWN, retryable=True)
    assert not world.drained
    world.reset()
    assert world.drained


def test_a_drain_that_comes_before_the_device_is_quiet_ends_with_the_reset() -> None:
    world, pong = with_one_of_two_jobs_lost()
    world.drain()
    assert not world.resets
    world.finish(pong)
    assert world.resets
    assert not world.drained
    world.reset()
    assert world.drained


def test_when_the_last_lane_was_lost_the_device_is_reset() -> None:
    world = recovering(lanes=1)
    request = world.ask(max_new_tokens=1)
    world.allocate(request)
    world.finish(world.job.job)
    world.release(*world.releases, confirmed=False)
    assert world.resets == [ResetDevice(FaultReason.UNCONFIRMED_RELEASE)]
    world.reset()
    assert world.core.snapshot().lanes_by_state[LaneState.FREE] == 1


def test_the_generation_is_ready_again_only_after_the_reset() -> None:
    world = recovering()
    decoding_pair(world)
    [generation] = world.core._fleet.generations.values()
    world.lose_job(world.job.job, FaultReason.CCU_FAULT)
    assert generation.state is GenerationState.RECOVERING
    world.reset()
    assert generation.state is GenerationState.READY


def test_a_device_that_is_gone_is_given_up_at_the_first_call_that_says_so() -> None:
    world = recovering()
    decoding_pair(world)
    world.refuse_job(world.job.job, FaultReason.DEVICE_LOST)
    assert [each.reason for each in world.abandoned] == [FaultReason.DEVICE_LOST]
    other = recovering()
    request = other.ask()
    asked = other.allocations.pop(request)
    other.tell(ev.SequenceRefused(asked.generation, asked.lane, request, asked.reservation, FaultReason.DEVICE_LOST))
    assert [each.reason for each in other.abandoned] == [FaultReason.DEVICE_LOST]
    assert isinstance(other.streams[request].end, Refuse)


# ---- by an operator's word ------------------------------------------------------------------------------------------


def asked(world: World) -> list[str]:
    """Ask for a reset; why it was refused, if it was."""
    world.tell(ev.ResetAsked())
    return [effect.why for effect in world.effects if isinstance(effect, ResetRefused)]


@pytest.mark.parametrize("replay", [True, False])
def test_an_operator_has_a_sound_device_reset_and_streams_go_on_where_they_can_be_replayed(replay: bool) -> None:
    world = recovering(replay=replay)
    pair = decoding_pair(world)
    assert not asked(world)
    assert not world.resets, "a job is out"
    assert word(world) == "recovering"
    world.finish(world.job.job)
    assert world.resets == [ResetDevice(FaultReason.OPERATOR_RESET)]
    world.reset()
    world.run()
    gone = Fail(pair[0], FaultReason.OPERATOR_RESET, retryable=True)
    assert (world.streams[pair[0]].end == gone) is not replay
    assert isinstance(world.streams[pair[1]].end, Finish) is replay
    snapshot = world.core.snapshot()
    assert (snapshot.status.word, snapshot.resets, snapshot.buffers_unknown) == ("ok", 1, 0)


def test_an_idle_device_is_reset_at_once() -> None:
    world = recovering()
    assert not asked(world)
    assert len(world.resets) == 1


def test_an_operators_resets_are_of_the_same_budget() -> None:
    world = recovering(max_resets_per_10min=2)
    for after_s in (0.0, 100.0):
        world.pass_time(after_s)
        assert not asked(world)
        world.reset()
    world.pass_time(50.0)
    assert asked(world) == [
        "the reset budget is spent (recovery.max_resets_per_10min is 2); the next reset may be made in 450 s"
    ]
    assert (word(world), world.resets) == ("ok", [])
    decoding_pair(world)
    world.lose_job(world.job.job, FaultReason.CCU_FAULT)
    assert world.abandoned, "none is left for a fault, either"
    assert asked(world) == ["the device was given up"]


def test_a_budget_of_none_is_said_to_be_one() -> None:
    world = recovering(max_resets_per_10min=0)
    assert asked(world) == ["recovery.max_resets_per_10min is 0: this daemon never resets its device"]


def test_no_reset_is_made_in_a_drain_in_another_reset_or_beside_a_load() -> None:
    world = recovering()
    world.tell(ev.GenerationAdvanced(GenerationId(2), "other", GenerationEvent.VALIDATE))
    assert asked(world) == ["a model is being loaded or unloaded"]
    world.tell(ev.GenerationAdvanced(GenerationId(2), "other", GenerationEvent.GIVE_UP))
    assert not asked(world)
    assert asked(world) == ["the device is being reset"]
    world.reset()
    world.drain()
    assert asked(world) == ["the service is shutting down"]


def test_a_fault_while_it_quiesces_for_an_operator_costs_no_second_reset() -> None:
    world = recovering(max_resets_per_10min=1)
    decoding_pair(world)
    asked(world)
    world.lose_job(world.job.job, FaultReason.CCU_FAULT)
    assert len(world.resets) == 1
    world.reset()
    assert word(world) == "ok"
