"""The core as a whole, at the engines: the batching window, prompts in chunks, and the quota of long prefills."""

from __future__ import annotations

import pytest

from calculet_trio.core.effects import Drop, Fail, Finish, ReleaseSequence
from calculet_trio.core.events import FaultReason
from calculet_trio.core.evidence import CHUNKED_PREFILL_CONDITIONS, Combination, Evidence, EvidenceRecord
from calculet_trio.core.jobs import EngineId, PrefillJob
from calculet_trio.core.policy import AdmissionPolicy, BatchPolicy, Policy, QueuePolicy
from calculet_trio.core.turns import WorkKind
from calculet_trio.ids import RequestId
from tests.core.shapes import evidence_of, small_shape
from tests.core.world import World

BOTH = (EngineId.PING, EngineId.PONG)
WINDOW_S = 2.0

# ---- the batching window ---------------------------------------------------------------------------------------


def windowed(*, deadline_s: float | None = None) -> tuple[World, RequestId]:
    """One sequence waits for its next token on an idle engine, while the runtime allocates a lane for another."""
    policy = Policy(batch=BatchPolicy(batching_window_s=WINDOW_S))
    world = World(small_shape(4, batches=(1, 4)), policy=policy)
    first = world.ask(max_new_tokens=9, deadline_s=deadline_s)
    world.allocate(first)
    world.ask(max_new_tokens=9)
    world.finish(world.job.job)
    return world, first


def test_a_batch_waits_for_company_until_its_window_is_over_and_then_must_go() -> None:
    world, first = windowed()
    assert not world.jobs
    assert world.core.next_wakeup() == world.now + WINDOW_S
    world.pass_time(WINDOW_S / 2)
    assert not world.jobs
    world.pass_time(WINDOW_S / 2)
    assert [work.request for work in world.job.lanes] == [first]


def test_whoever_comes_in_time_goes_with_it() -> None:
    world, first = windowed()
    world.pass_time(0.1)
    world.allocate(second := next(iter(world.allocations)))
    assert isinstance(world.job, PrefillJob), "an engine that waits is idle: the prompt goes"
    world.finish(world.job.job)
    assert [work.request for work in world.job.lanes] == [first, second]


def test_a_batch_goes_at_once_when_nobody_can_join_any_more() -> None:
    world, first = windowed()
    world.cancel(next(iter(world.allocations)))
    assert not world.jobs, "its lane is still being allocated"
    world.answer_all(jobs=False)
    assert [work.request for work in world.job.lanes] == [first]


def test_alone_nobody_waits() -> None:
    world = World(small_shape(4, batches=(1, 4)), policy=Policy(batch=BatchPolicy(batching_window_s=WINDOW_S)))
    request = world.ask(max_new_tokens=5)
    world.allocate(request)
    for _ in range(5):
        world.finish(world.job.job)
    assert isinstance(world.streams[request].end, Finish)


@pytest.mark.parametrize(("deadline_s", "wait_s"), [(10.0, 2.0), (3.0, 1.0), (2.5, 0.5), (1.0, None)])
def test_the_window_makes_no_deadline_late(deadline_s: float, wait_s: float | None) -> None:
    """A window's length is kept in hand: what is sent then may still take so long."""
    world, _ = windowed(deadline_s=deadline_s)
    if wait_s is None:
        assert world.jobs
    else:
        assert not world.jobs
        assert world.core.next_wakeup() == world.now + wait_s


def test_the_second_engine_waits_for_the_lanes_of_the_first() -> None:
    policy = Policy(batch=BatchPolicy(batching_window_s=WINDOW_S), admission=AdmissionPolicy(max_inflight_jobs=2))
    world = World(small_shape(4, batches=(1, 4)), policy=policy, engines=BOTH)
    first, second = world.ask(max_new_tokens=9), world.ask(max_new_tokens=9)
    world.allocate(first)
    world.allocate(second)
    ping, pong = world.jobs
    world.finish(ping)
    assert list(world.jobs) == [pong], "the second prompt is nearly there"
    world.finish(pong)
    assert [work.request for work in world.job.lanes] == [first, second]


# ---- chunks ----------------------------------------------------------------------------------------------------


def chunked(*, evidence: Evidence | None = None, prompt_tokens: int = 10) -> tuple[World, RequestId]:
    """A prompt whose first chunk of four is with the device."""
    policy = Policy(queues=QueuePolicy(prefill_chunk_tokens=4))
    world = World(policy=policy, evidence=evidence or evidence_of("incremental_prefill"))
    request = world.ask(prompt_tokens=prompt_tokens, max_new_tokens=2)
    world.allocate(request)
    return world, request


def test_a_prompt_in_chunks_gives_its_first_token_after_the_last() -> None:
    world, request = chunked()
    seen = []
    while world.streams[request].is_open:
        work = world.job.lanes[0]
        seen.append((world.job.phase, work.position, len(work.tokens), world.job.samples))
        world.finish(world.job.job)
    assert seen == [
        ("prefill", 0, 4, False),
        ("prefill", 4, 4, False),
        ("prefill", 8, 2, True),
        ("decode", 10, 1, True),
    ]
    assert isinstance(world.streams[request].end, Finish)


@pytest.mark.parametrize("absent", [*CHUNKED_PREFILL_CONDITIONS, None])
def test_chunks_need_all_five_conditions(absent: str | None) -> None:
    here = Combination("sha", "0.7.6", "emulated")
    passed = frozenset(CHUNKED_PREFILL_CONDITIONS) - {absent}
    world, _ = chunked(evidence=Evidence(here, [EvidenceRecord(here, passed, "r")]))
    assert len(world.job.lanes[0].tokens) == (4 if absent is None else 10)


def test_a_begun_prompt_goes_on_before_another_of_its_class_begins() -> None:
    world, first = chunked()
    second = world.ask(prompt_tokens=10)
    world.allocate(second)
    served = []
    for _ in range(3):
        served.append(world.job.lanes[0].request)
        world.finish(world.job.job)
    assert served == [first] * 3
    world.run()
    assert all(isinstance(stream.end, Finish) for stream in world.streams.values())


def test_decoding_goes_on_between_two_chunks() -> None:
    policy = Policy(queues=QueuePolicy(prefill_chunk_tokens=4))
    world = World(policy=policy, evidence=evidence_of("incremental_prefill"))
    talker = world.ask(max_new_tokens=50)
    world.allocate(talker)
    world.finish(world.job.job)
    long = world.ask(prompt_tokens=40, max_new_tokens=1)
    world.allocate(long)
    phases = []
    while not world.streams[long].tokens:
        phases.append(world.job.phase)
        world.finish(world.job.job)
    assert phases.count("prefill") == 10
    assert "prefill prefill" not in " ".join(phases)


def test_a_cancelled_prompt_stops_after_the_chunk_that_is_out() -> None:
    world, request = chunked()
    world.cancel(request)
    assert world.effects == []
    world.finish(world.job.job)
    assert world.streams[request].end == Drop(request)
    assert [type(effect) for effect in world.effects] == [Drop, ReleaseSequence]
    world.answer_all()
    assert world.core.snapshot().kv_tokens_reserved == 0


def test_a_prompt_that_expires_between_two_chunks_fails_and_pays_for_the_first_only() -> None:
    world, request = chunked()
    world.pass_time(world.streams[request].deadline_s - world.now)
    world.finish(world.job.job)
    assert world.streams[request].end == Fail(request, FaultReason.DEADLINE_EXCEEDED, retryable=True)
    assert world.core._tenants.of("a").virtual_time == 4.0


def test_a_chunk_that_the_device_refuses_is_sent_again_as_it_was() -> None:
    world, request = chunked()
    world.finish(world.job.job)
    before = world.job.lanes[0]
    world.refuse_job(world.job.job)
    world.pass_time(0.005)
    assert world.job.lanes[0] == before
    world.run()
    assert isinstance(world.streams[request].end, Finish)


def test_a_chunk_whose_output_failed_ends_its_prompt() -> None:
    world, request = chunked()
    world.fail_output(world.job.job)
    assert world.streams[request].end == Fail(request, FaultReason.OUTPUT_ERROR, retryable=True)


def test_the_drains_deadline_ends_a_prompt_between_two_chunks() -> None:
    world, request = chunked()
    world.drain(within_s=5.0)
    world.pass_time(5.0)
    world.finish(world.job.job)
    assert world.streams[request].end == Fail(request, FaultReason.SHUTDOWN, retryable=True)
    world.answer_all()
    assert world.drained


# ---- the quota of long prefills -----------------------------------------------------------------------------------


def test_long_prefills_beyond_their_quota_wait_while_there_is_other_work() -> None:
    queues = QueuePolicy(
        short_prefill_max_tokens=4, medium_prefill_max_tokens=10, long_prefill_weight=8, long_quota=0.25
    )
    world = World(small_shape(4), policy=Policy(queues=queues))
    first, second = (world.ask(prompt_tokens=20, max_new_tokens=1) for _ in range(2))
    talker = world.ask(prompt_tokens=3, max_new_tokens=60)
    world.answer_all(jobs=False)
    assert world.job.lanes[0].request == first
    world.pass_time(20.0)
    while world.streams[talker].is_open:
        assert world.job.lanes[0].request != second
        world.finish(world.job.job)
        world.answer_all(jobs=False)
    assert world.job.lanes[0].request == second, "alone it may go at any time"


def test_a_quota_is_over_when_its_minute_is() -> None:
    queues = QueuePolicy(
        short_prefill_max_tokens=4, medium_prefill_max_tokens=10, long_prefill_weight=8, long_quota=0.25
    )
    world = World(small_shape(4, max_seq=1000), policy=Policy(queues=queues))
    world.ask(prompt_tokens=20, max_new_tokens=1)
    second = world.ask(prompt_tokens=20, max_new_tokens=1)
    world.ask(prompt_tokens=3, max_new_tokens=900)
    world.answer_all(jobs=False)
    world.pass_time(20.0)
    ended_s = world.now
    while not world.streams[second].tokens:
        world.finish(world.job.job)
        world.answer_all(jobs=False)
        world.pass_time(1.0)
    assert 60.0 <= world.now - ended_s < 66.0


# ---- depths ------------------------------------------------------------------------------------------------------


def test_the_snapshot_says_how_much_waits_for_an_engine_and_since_when() -> None:
    queues = QueuePolicy(short_prefill_max_tokens=4, medium_prefill_max_tokens=10)
    world = World(small_shape(5), policy=Policy(queues=queues))
    for prompt_tokens in (3, 3, 20, 3):
        world.allocate(world.ask(prompt_tokens=prompt_tokens, max_new_tokens=5))
        world.pass_time(1.0)
    depths = world.core.snapshot().queues
    assert {kind: (depth.requests, depth.oldest_s) for kind, depth in depths.items()} == {
        WorkKind.DECODE: (0, None),
        WorkKind.SHORT_PREFILL: (2, 101.0),
        WorkKind.MEDIUM_PREFILL: (0, None),
        WorkKind.LONG_PREFILL: (1, 102.0),
    }


# ---- batches that have to be earned --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("evidence", "wanted", "lanes"),
    [
        (None, None, 2),
        (evidence_of("append"), None, 2),
        (Evidence(Combination("sha", "0.7.6", "calculet")), None, 1),
        (evidence_of("append"), (1,), 1),
    ],
    ids=["nothing could be on record", "shown", "not shown", "shown, not wanted"],
)
def test_lanes_share_a_batch_only_where_that_was_shown(
    evidence: Evidence | None, wanted: tuple[int, ...] | None, lanes: int
) -> None:
    policy = Policy(batch=BatchPolicy(profiles=wanted))
    world = World(small_shape(4, batches=(1, 4)), policy=policy, evidence=evidence)
    for _ in range(2):
        world.allocate(world.ask(max_new_tokens=5))
    together = []
    while world.jobs:
        together.append(len(world.job.lanes))
        world.finish(world.job.job)
    assert max(together) == lanes
