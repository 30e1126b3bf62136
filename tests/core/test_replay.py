"""Sequences whose KV is gone are prefilled again from the host's own tokens, and their streams go on.

That each stream is given every token once and in order, and that every lane holds what was known of its request and
nothing else, `tests.core.world` holds at each step.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from calculet_trio.core import events as ev
from calculet_trio.core.effects import Admit, Drop, Fail, Finish, FinishReason
from calculet_trio.core.events import FaultReason, LaneResult
from calculet_trio.core.jobs import DecodeJob, PrefillJob
from calculet_trio.core.policy import AdmissionPolicy, Policy, QueuePolicy, RecoveryPolicy
from calculet_trio.ids import LaneId, RequestId
from tests.core.shapes import evidence_of, small_shape
from tests.core.world import World, decoding_pair

END = FinishReason.LENGTH
POLICY = Policy(recovery=RecoveryPolicy(replay=True))


def world_with_replay(**changes: Any) -> World:
    return World(**{"policy": POLICY, **changes})


def lose(world: World, reason: FaultReason = FaultReason.CCU_FAULT) -> None:
    world.lose_job(world.job.job, reason)
    for sequence in list(world.releases):
        world.release(sequence)
    world.reset()


def test_streams_of_different_lengths_go_on_to_their_ends() -> None:
    world = world_with_replay()
    requests = [world.ask(prompt_tokens=2 + n, max_new_tokens=12 + 2 * n) for n in range(4)]
    world.answer_all(jobs=False)
    while not all(world.streams[request].tokens for request in requests):
        world.finish(world.job.job)
    lose(world)
    snapshot = world.core.snapshot()
    assert (snapshot.replays, snapshot.running_requests) == (4, 4)
    world.run()
    for request in requests:
        assert world.streams[request].end == Finish(request, FinishReason.LENGTH)


def test_a_replay_writes_each_token_as_it_was_written_before_and_samples_what_comes_next() -> None:
    world = world_with_replay()
    requests = [world.ask(prompt_tokens=3, max_new_tokens=8) for _ in range(2)]
    world.answer_all(jobs=False)
    while len(world.streams[requests[0]].tokens) < 4:
        world.finish(world.job.job)
    lose(world)
    world.answer_all(jobs=False)
    before = {request: tuple(world.streams[request].tokens) for request in requests}
    prefills: list[tuple[int | bool, ...]] = []
    steps: dict[RequestId, list[tuple[int | bool, ...]]] = {request: [] for request in requests}
    while any(len(world.streams[request].tokens) == len(before[request]) for request in requests):
        for work in world.job.lanes:
            written = prefills if isinstance(world.job, PrefillJob) else steps[work.request]
            written.append((*work.tokens, work.samples))
        world.finish(world.job.job)
    assert prefills == [(1, 2, 3, False)] * 2
    for request, tokens in before.items():
        assert steps[request][: len(tokens)] == [(token, token == tokens[-1]) for token in tokens]
    world.run()
    assert [world.streams[request].end for request in requests] == [Finish(request, END) for request in requests]


def test_a_reply_is_over_where_the_deadline_passes_while_it_is_written_again() -> None:
    world = world_with_replay()
    request = world.ask(prompt_tokens=3, max_new_tokens=9, deadline_s=5.0)
    world.allocate(request)
    for _ in range(4):
        world.finish(world.job.job)
    lose(world)
    world.allocate(request)
    world.finish(world.job.job)
    assert isinstance(world.job, DecodeJob)
    assert not world.job.samples
    world.pass_time(6.0)
    world.finish(world.job.job)
    assert world.streams[request].end == Finish(request, FinishReason.LENGTH, "deadline")


def test_where_decode_was_shown_to_compute_as_prefill_does_a_replay_prefills_all_that_is_known() -> None:
    world = world_with_replay(evidence=evidence_of("reply_reuse"))
    request = world.ask(prompt_tokens=3, max_new_tokens=5)
    world.allocate(request)
    world.finish(world.job.job)
    world.finish(world.job.job)
    assert isinstance(world.job, DecodeJob)
    lose(world)
    world.allocate(request)
    assert isinstance(world.job, PrefillJob)
    assert tuple(world.job.work.tokens) == (1, 2, 3, *world.streams[request].tokens)
    assert world.job.samples
    assert not any(isinstance(effect, Admit) for effect in world.effects), "its client was told long ago"


def test_it_goes_in_pieces_where_that_has_been_earned() -> None:
    policy = attrs.evolve(POLICY, queues=QueuePolicy(prefill_chunk_tokens=2))
    world = world_with_replay(policy=policy, evidence=evidence_of("incremental_prefill"))
    request, other = world.ask(prompt_tokens=5, max_new_tokens=6), world.ask(prompt_tokens=7, max_new_tokens=2)
    world.answer_all(jobs=False)
    for _ in range(4):
        world.finish(world.job.job)
    lose(world)
    world.run()
    assert [type(world.streams[each].end) for each in (request, other)] == [Finish, Finish]


def test_it_survives_a_second_reset() -> None:
    world = world_with_replay()
    request = world.ask(max_new_tokens=6)
    world.allocate(request)
    world.finish(world.job.job)
    lose(world)
    world.allocate(request)
    lose(world)
    world.run()
    assert world.streams[request].end == Finish(request, FinishReason.LENGTH)
    assert world.core.snapshot().replays == 2


def test_those_to_be_replayed_go_before_those_who_wait() -> None:
    world = world_with_replay(shape=small_shape(2))
    pair = decoding_pair(world)
    waits = world.ask()
    lose(world)
    assert list(world.allocations) == list(pair)
    world.run()
    assert isinstance(world.streams[waits].end, Finish)


def test_a_lane_that_is_refused_is_asked_for_again() -> None:
    world = world_with_replay()
    first, second = decoding_pair(world)
    lose(world)
    world.refuse_allocation(first)
    world.allocate(second)
    wakeup_s = world.core.next_wakeup()
    assert wakeup_s is not None
    world.pass_time(wakeup_s - world.now)
    assert list(world.allocations) == [first]
    world.run()
    assert isinstance(world.streams[first].end, Finish)


def test_a_client_that_goes_meanwhile_is_let_go() -> None:
    world = world_with_replay()
    waits, allocating = decoding_pair(world)
    world.lose_job(world.job.job, FaultReason.CCU_FAULT)
    world.cancel(waits)
    assert world.streams[waits].end == Drop(waits)
    world.reset()
    assert list(world.allocations) == [allocating]
    world.cancel(allocating)
    world.allocate(allocating)
    assert len(world.releases) == 1, "the lane is recovered all the same"
    world.run()


def test_a_client_that_had_gone_before_the_fault_is_not_replayed() -> None:
    world = world_with_replay()
    gone, stays = decoding_pair(world)
    world.cancel(gone)
    lose(world)
    assert world.streams[gone].end == Drop(gone)
    assert list(world.allocations) == [stays]


def test_a_deadline_ends_a_reply_that_has_begun_as_it_always_does() -> None:
    world = world_with_replay()
    begun, fresh = world.ask(max_new_tokens=9, deadline_s=2.0), world.ask(max_new_tokens=9, deadline_s=2.0)
    world.allocate(begun)
    world.finish(world.job.job)
    world.allocate(fresh)
    world.lose_job(world.job.job, FaultReason.CCU_FAULT)
    world.pass_time(2.0)
    assert world.streams[begun].end == Finish(begun, FinishReason.LENGTH, truncated_by="deadline")
    assert world.streams[fresh].end == Fail(fresh, FaultReason.DEADLINE_EXCEEDED, retryable=True)
    world.reset()
    assert world.core.snapshot().running_requests == 0


def test_what_has_outgrown_the_prefill_graph_fails_where_all_of_it_is_prefilled() -> None:
    world = world_with_replay(shape=small_shape(prefill_max_seq=4), evidence=evidence_of("reply_reuse"))
    fits, outgrown = world.ask(prompt_tokens=3, max_new_tokens=9), world.ask(prompt_tokens=4, max_new_tokens=9)
    world.answer_all(jobs=False)
    while not all(stream.tokens for stream in world.streams.values()):
        world.finish(world.job.job)
    lose(world)
    assert world.streams[outgrown].end == Fail(outgrown, FaultReason.CCU_FAULT, retryable=True)
    known = 3 + len(world.streams[fits].tokens)
    assert world.streams[fits].is_open == (known <= 4)


def test_what_has_outgrown_the_prefill_graph_goes_on_where_decode_writes_it_again() -> None:
    world = world_with_replay(shape=small_shape(prefill_max_seq=4))
    request = world.ask(prompt_tokens=4, max_new_tokens=9)
    world.allocate(request)
    for _ in range(5):
        world.finish(world.job.job)
    lose(world)
    world.run()
    assert world.streams[request].end == Finish(request, END)


def test_a_request_whose_token_was_sampled_and_cannot_be_used_fails() -> None:
    """Its text side has moved on; whoever was not sampled is replayed."""
    world = world_with_replay()
    sampled, silent = decoding_pair(world)
    job = world.jobs.pop(world.job.job)
    world.device.lose(job.job)
    lane = next(work.lane for work in job.lanes if work.request == silent)
    results = tuple(LaneResult(work.lane, work.request, 7) for work in job.lanes if work.request == sampled)
    world.tell(ev.JobFinished(job.job, job.generation, results, frozenset({lane})))
    assert world.streams[sampled].end == Fail(sampled, FaultReason.CCU_FAULT, retryable=True)
    assert world.streams[silent].is_open
    world.run()
    assert isinstance(world.streams[silent].end, Finish)


def test_a_sequence_whose_lane_alone_was_lost_goes_on_in_another() -> None:
    world = world_with_replay(shape=small_shape(3, lane_fault_isolation=True))
    goes_on, lost = decoding_pair(world)
    lane = next(work.lane for work in world.job.lanes if work.request == lost)
    world.finish(world.job.job, lost=[lane])
    assert world.allocations[lost].lane != lane
    world.run()
    assert [type(world.streams[each].end) for each in (goes_on, lost)] == [Finish, Finish]
    assert world.core.snapshot().resets == 0


def test_a_sequence_that_no_lane_can_hold_any_more_fails() -> None:
    policy = attrs.evolve(POLICY, admission=AdmissionPolicy(max_sequences=1))
    world = world_with_replay(shape=small_shape(2, lane_fault_isolation=True), policy=policy)
    request = world.ask()
    world.allocate(request)
    world.finish(world.job.job, lost=[LaneId(0)])
    assert world.streams[request].end == Fail(request, FaultReason.LANE_LOST, retryable=True)


def test_a_sequence_waits_for_a_lane_that_is_still_held() -> None:
    world = world_with_replay(shape=small_shape(2, lane_fault_isolation=True))
    goes_on, lost = decoding_pair(world)
    lane = next(work.lane for work in world.job.lanes if work.request == lost)
    world.finish(world.job.job, lost=[lane])
    assert not world.allocations
    world.run()
    assert [type(world.streams[each].end) for each in (goes_on, lost)] == [Finish, Finish]


def test_the_tenant_pays_for_a_replayed_prompt_once() -> None:
    world = world_with_replay()
    request = world.ask(prompt_tokens=6, max_new_tokens=4)
    world.allocate(request)
    world.finish(world.job.job)
    lose(world)
    world.run()
    assert world.core._tenants.of("a").virtual_time == 6 + 4


@pytest.mark.parametrize("budget_s", [0.0, 5.0])
def test_a_drain_ends_them_when_its_time_is_over(budget_s: float) -> None:
    world = world_with_replay()
    decoding_pair(world)
    world.lose_job(world.job.job, FaultReason.CCU_FAULT)
    world.drain(within_s=budget_s)
    world.run(until_s=budget_s)
    ends = {type(world.streams[RequestId(n)].end) for n in (1, 2)}
    assert ends == ({Finish} if budget_s else {Fail})
    assert world.drained
