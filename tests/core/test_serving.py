"""The core as a whole, undisturbed: the way of one request, of many, and who is refused at the door."""

from __future__ import annotations

from collections import Counter

import pytest

from calculet_trio.core import events as ev
from calculet_trio.core.effects import (
    Admit,
    AllocateSequence,
    Deliver,
    Finish,
    FinishReason,
    Place,
    RefusalKind,
    Refuse,
    ReleaseSequence,
    SubmitJob,
)
from calculet_trio.core.generation import GenerationEvent
from calculet_trio.core.jobs import DecodeJob, EngineId, PrefillJob
from calculet_trio.core.lanes import LaneState
from calculet_trio.core.policy import Policy, QueuePolicy
from calculet_trio.ids import GenerationId
from tests.core.shapes import ALIAS, GENERATION, small_policy, small_shape
from tests.core.world import World

BOTH = (EngineId.PING, EngineId.PONG)


def kinds(world: World) -> list[type]:
    return [type(effect) for effect in world.effects]


# ---- one request --------------------------------------------------------------------------------------


def test_the_way_of_one_request() -> None:
    world = World()
    request = world.arrive()
    assert world.effects == [Place(request, GENERATION, "a")]
    world.offer(request, prompt_tokens=5, max_new_tokens=2)
    assert world.effects == [AllocateSequence(GENERATION, 0, request, 1, 7)]
    world.pass_time(0.25)
    world.allocate(request)
    assert kinds(world) == [Admit, SubmitJob]
    assert world.effects[0] == Admit(request, 5, 2, queued_s=0.25, expected_wait_s=0.0)
    assert isinstance(world.job, PrefillJob)
    world.finish(world.job.job)
    assert kinds(world) == [Deliver, SubmitJob]
    assert isinstance(world.job, DecodeJob)
    world.finish(world.job.job)
    assert kinds(world) == [Deliver, Finish, ReleaseSequence]
    assert world.effects[1] == Finish(request, FinishReason.LENGTH)
    world.release(*world.releases)
    assert world.effects == []
    assert world.core.next_wakeup() is None


def test_a_reply_stops_where_the_text_side_says() -> None:
    world = World()
    request = world.ask(max_new_tokens=10)
    world.allocate(request)
    world.finish(world.job.job)
    world.finish(world.job.job, stop=[request])
    assert world.streams[request].end == Finish(request, FinishReason.STOP)
    assert world.streams[request].tokens == [1001, 1002], "the last output may still hold text"


def test_a_reply_of_one_token_needs_no_decode() -> None:
    world = World()
    request = world.ask(max_new_tokens=1)
    world.allocate(request)
    world.finish(world.job.job)
    assert kinds(world) == [Deliver, Finish, ReleaseSequence]


def test_a_reply_without_a_limit_fills_the_context_exactly() -> None:
    world = World(small_shape(1, max_seq=16))
    request = world.ask(prompt_tokens=10, max_new_tokens=None)
    world.run()
    assert len(world.streams[request].tokens) == 6
    assert world.streams[request].end == Finish(request, FinishReason.LENGTH)


def test_an_offer_that_comes_twice_counts_once() -> None:
    world = World()
    request = world.ask()
    world.stale(ev.Offered(request, GenerationId(1), (1, 2, 3), 3))


# ---- many ---------------------------------------------------------------------------------------------


def test_eight_conversations_decode_in_one_batch() -> None:
    world = World(small_shape(8, batches=(1, 4, 8)))
    requests = [world.ask(prompt_tokens=3 + number, max_new_tokens=40) for number in range(8)]
    batches: Counter[int] = Counter()
    while world.open_streams:
        world.answer_all(jobs=False)
        batches[len(world.job.lanes)] += 1
        world.finish(world.job.job)
    assert all(len(world.streams[request].tokens) == 40 for request in requests)
    assert batches[8] >= 20, batches


def test_neither_prefill_nor_decode_starves_the_other() -> None:
    """While one decodes, prefills go on coming; of any fifteen jobs each kind has its share."""
    policy = Policy(queues=QueuePolicy(decode_weight=2, short_prefill_weight=1))
    world = World(small_shape(4, batches=(1, 4)), policy=policy)
    talker = world.ask(max_new_tokens=60)
    phases = []
    while world.streams[talker].is_open:
        if len(world.open_streams) < 8:
            world.ask(max_new_tokens=1)
        world.answer_all(jobs=False)
        phases.append(world.job.phase)
        world.finish(world.job.job)
    assert 0.6 < phases.count("decode") / len(phases) < 0.72
    assert "prefill prefill prefill" not in " ".join(phases)


def test_short_requests_of_one_tenant_pass_the_flood_of_another() -> None:
    """B54: B starts after at most the running request of A."""
    world = World(small_shape(1))
    for _ in range(20):
        world.ask(tenant="a", prompt_tokens=60)
    world.answer_all(jobs=False)
    short = world.ask(tenant="b", prompt_tokens=2)
    world.run()
    admitted = [event.request for event in world.past if isinstance(event, ev.SequenceAllocated)]
    assert admitted[:2] == [1, short]


def test_ping_and_pong_have_a_job_each_and_never_the_same_lane() -> None:
    world = World(small_shape(4, batches=(1, 2)), policy=small_policy(max_inflight_jobs=2), engines=BOTH)
    for _ in range(4):
        world.ask(max_new_tokens=4)
    world.answer_all(jobs=False)
    assert len(world.jobs) == 2
    world.run()
    assert not world.open_streams


def test_one_job_at_a_time_leaves_the_second_engine_idle() -> None:
    world = World(policy=small_policy(max_inflight_jobs=1), engines=BOTH)
    world.ask()
    world.ask()
    world.answer_all(jobs=False)
    assert len(world.jobs) == 1


# ---- at the door --------------------------------------------------------------------------------------


def refusals(world: World) -> list[str]:
    return [stream.end.refusal.code for stream in world.streams.values() if isinstance(stream.end, Refuse)]


@pytest.mark.parametrize("offered_at_once", [False, True], ids=["six_at_once", "one_after_another"])
@pytest.mark.parametrize("allocated_at_once", [False, True], ids=["slow_runtime", "quick_runtime"])
def test_one_runs_one_waits_and_four_are_refused(offered_at_once: bool, allocated_at_once: bool) -> None:
    """B52: slots 1, queue 1, six at once."""
    world = World(small_shape(1), policy=small_policy(max_waiting_requests=1))
    for _ in range(6):
        request = world.arrive()
        if offered_at_once:
            world.offer(request)
        if allocated_at_once:
            world.answer_all(jobs=False)
    assert refusals(world) == ["queue_full"] * 4
    for stream in world.open_streams:
        world.offer(stream.request)
    world.run()
    assert [type(stream.end) for stream in world.streams.values()] == [Finish] * 2 + [Refuse] * 4


def test_five_hundred_at_once_leave_nothing_behind() -> None:
    world = World(small_shape(1), policy=small_policy(max_waiting_requests=1))
    for _ in range(500):
        world.arrive()
    assert len(refusals(world)) == 498
    for stream in world.open_streams:
        world.cancel(stream.request)
    assert world.core.next_wakeup() is None


@pytest.mark.parametrize("way", ["cancelled", "expired", "too long", "finished", "failed"])
def test_every_way_to_end_gives_its_place_back(way: str) -> None:
    world = World(small_shape(1), policy=small_policy(max_waiting_requests=0))
    for _ in range(3):
        request = world.arrive(deadline_s=5.0)
        assert world.streams[request].is_open, "the place was lost"
        assert world.arrive() in world.streams
        match way:
            case "cancelled":
                world.cancel(request)
            case "expired":
                world.pass_time(5.0)
            case "too long":
                world.offer(request, prompt_tokens=65)
            case "finished":
                world.offer(request)
                world.run(until_s=1.0)
            case "failed":
                world.offer(request)
                world.allocate(request)
                world.fail_output(world.job.job)
                world.answer_all()
        assert not world.open_streams
    assert refusals(world).count("queue_full") == 3, "and there never was a second one"


def test_nobody_is_let_in_before_the_model_is_ready() -> None:
    world = World(published=False)
    for step in (None, GenerationEvent.VALIDATE, GenerationEvent.CONFIGURE, GenerationEvent.WARM):
        if step is not None:
            world.tell(ev.GenerationAdvanced(GENERATION, ALIAS, step))
        end = world.streams[world.arrive()].end
        assert isinstance(end, Refuse)
        assert (end.refusal.kind, end.refusal.code) == (RefusalKind.UNAVAILABLE, "loading")
        assert end.refusal.retry_after_s == 2.0
    world.tell(ev.GenerationAdvanced(GENERATION, ALIAS, GenerationEvent.PUBLISH, world.shape))
    assert world.streams[world.arrive()].is_open


def test_a_name_that_nobody_serves_is_refused() -> None:
    world = World()
    end = world.streams[world.arrive(alias="another")].end
    assert isinstance(end, Refuse)
    assert end.refusal.code == "loading"


def test_a_prompt_that_is_too_long_is_refused_with_both_counts() -> None:
    world = World(small_shape(max_seq=64, prefill_max_seq=40))
    request = world.ask(prompt_tokens=41)
    end = world.streams[request].end
    assert isinstance(end, Refuse)
    assert (end.refusal.kind, end.refusal.code) == (RefusalKind.INVALID, "context_length_exceeded")
    assert (end.refusal.prompt_tokens, end.refusal.limit_tokens) == (41, 40)
    world.ask(prompt_tokens=40)
    world.run()
    assert isinstance(world.streams[max(world.streams)].end, Finish)


def test_an_unloading_model_takes_nobody_and_its_requests_run_on() -> None:
    world = World(small_shape(1))
    runs, waits = world.ask(), world.ask(deadline_s=20.0)
    arrived = world.arrive()
    world.allocate(runs)
    world.tell(ev.GenerationAdvanced(GENERATION, ALIAS, GenerationEvent.DRAIN))
    assert refusals(world) == ["model_unloaded"] * 2, "one that waits for a lane, and one that is being tokenized"
    world.offer(arrived)
    assert isinstance(world.streams[world.arrive()].end, Refuse)
    world.run(until_s=1.0)
    assert isinstance(world.streams[runs].end, Finish)
    assert not world.streams[waits].is_open
    assert not world.open_streams


def test_a_new_generation_takes_over_the_name_and_the_old_one_finishes() -> None:
    world = World(small_shape(2))
    old = world.ask()
    world.allocate(old)
    other = GenerationId(2)
    for step in (GenerationEvent.VALIDATE, GenerationEvent.CONFIGURE, GenerationEvent.WARM):
        world.tell(ev.GenerationAdvanced(other, ALIAS, step))
    world.tell(ev.GenerationAdvanced(other, ALIAS, GenerationEvent.PUBLISH, world.shape))
    new = world.arrive()
    assert world.effects == [Place(new, other, "a")]
    world.cancel(new)
    world.run()
    assert isinstance(world.streams[old].end, Finish)


# ---- a runtime without room -----------------------------------------------------------------------------


def test_a_refused_allocation_is_tried_again_after_a_pause() -> None:
    world = World()
    request = world.ask()
    world.refuse_allocation(request)
    assert world.effects == []
    assert world.core.next_wakeup() == pytest.approx(world.now + 0.005)
    world.pass_time(0.005)
    assert kinds(world) == [AllocateSequence]
    world.run()
    assert isinstance(world.streams[request].end, Finish)


def test_allocation_is_not_tried_in_a_hurry_and_not_for_ever() -> None:
    """It replaces the endless ``while (!Apply())``: bounded, growing pauses, then 503."""
    world = World(policy=small_policy(deadline_default_s=30.0))
    request = world.ask()
    tries = 0
    while world.streams[request].is_open:
        if world.allocations:
            tries += 1
            world.refuse_allocation(request)
        wakeup_s = world.core.next_wakeup()
        assert wakeup_s is not None
        world.pass_time(wakeup_s - world.now)
    assert 30 < tries < 50
    assert refusals(world) == ["deadline_exceeded"]


def test_a_refused_request_keeps_its_turn() -> None:
    world = World(small_shape(1))
    first, _ = world.ask(), world.ask()
    for _ in range(3):
        world.refuse_allocation(first)
        world.pass_time(1.0)
        assert list(world.allocations) == [first]


def test_a_cancelled_request_whose_allocation_is_refused_is_not_tried_again() -> None:
    world = World()
    request = world.ask()
    world.cancel(request)
    world.refuse_allocation(request)
    world.pass_time(5.0)
    assert not world.allocations
    assert world.core.snapshot().lanes_by_state[LaneState.FREE] == 4


def test_a_large_request_is_not_passed_for_ever_by_small_ones() -> None:
    world = World(small_shape(4), policy=small_policy(max_kv_tokens=64))
    small = world.ask(prompt_tokens=20, max_new_tokens=4)
    world.allocate(small)
    large = world.ask(prompt_tokens=40, max_new_tokens=20)
    for _ in range(5):
        world.ask(prompt_tokens=20, max_new_tokens=4)
    assert not world.allocations, "there is room for a small one, but it is not its turn"
    world.finish(world.job.job, stop=[small])
    world.answer_all(jobs=False)
    assert world.streams[large].admitted is not None
