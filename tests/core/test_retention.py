"""Lanes of ended requests that keep what they hold, for whoever goes on from there; and for nobody else.

That a continued lane holds exactly how its request begins, that it was its own tenant's, and that a client is told how
much of its prompt was there, `tests.core.world` holds at each step.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from calculet_trio.core import events as ev
from calculet_trio.core.effects import AllocateSequence, ContinueSequence, Finish, FinishReason, ReleaseSequence
from calculet_trio.core.events import FaultReason
from calculet_trio.core.generation import GenerationEvent
from calculet_trio.core.jobs import PrefillJob
from calculet_trio.core.lanes import LaneState
from calculet_trio.core.policy import FairnessPolicy, RecoveryPolicy, TenantPolicy
from calculet_trio.core.retention import ReuseCounts
from calculet_trio.ids import RequestId
from tests.core.retaining import REUSE, cached_tokens, ended, states, world_of
from tests.core.shapes import ALIAS, GENERATION, evidence_of, small_shape
from tests.core.world import World


def test_the_next_turn_prefills_only_what_is_new() -> None:
    world = world_of()
    first = ended(world, prompt_tokens=5, max_new_tokens=4)
    assert states(world) == [LaneState.RETAINED, LaneState.FREE]
    second = world.come_back(first, more=3)
    [asked] = world.effects
    assert isinstance(asked, ContinueSequence)
    assert asked.drop_tokens == 0
    world.allocate(second)
    assert isinstance(world.job, PrefillJob)
    assert (world.job.work.position, tuple(world.job.work.tokens)) == (8, (1004, -3, -2, -1)), "and its last token"
    world.answer_all()
    assert world.streams[second].end == Finish(second, FinishReason.LENGTH)
    assert cached_tokens(world, second) == 8
    third = world.come_back(second, more=1)
    world.answer_all()
    assert cached_tokens(world, third) == 8 + 4 + 2
    assert world.core.snapshot().reuse == ReuseCounts(hits=2, tokens=22, evictions=0)


def test_what_is_only_retained_counts_as_free() -> None:
    world = world_of()
    ended(world, prompt_tokens=5)
    snapshot = world.core.snapshot()
    assert (snapshot.lanes_in_use, snapshot.kv_tokens_used, snapshot.kv_tokens_reserved) == (0, 0, 0)
    assert snapshot.lanes_by_state[LaneState.RETAINED] == 1


def test_what_differs_at_the_end_is_dropped_first() -> None:
    world = world_of()
    ended(world, prompt_tokens=5, max_new_tokens=4)
    other = world.ask(prompt=(1, 2, 3, 4, 5, 1001, 77, 78))
    [asked] = world.effects
    assert isinstance(asked, ContinueSequence)
    assert asked.drop_tokens == 2
    world.answer_all()
    assert cached_tokens(world, other) == 6


def test_two_tokens_of_a_prompt_that_is_all_there_are_prefilled_again_for_its_logits() -> None:
    """One alone might be computed otherwise than in its prompt."""
    world = world_of()
    first = ended(world, prompt_tokens=6, max_new_tokens=1)
    again = ended(world, prompt_tokens=6, max_new_tokens=1)
    assert (cached_tokens(world, first), cached_tokens(world, again)) == (0, 4)


def test_another_tenants_history_is_nobodys_beginning() -> None:
    world = world_of()
    ended(world, prompt_tokens=6, tenant="a")
    other = ended(world, prompt_tokens=6, tenant="b")
    assert cached_tokens(world, other) == 0
    assert [slot.tenant for slot in world.core.slots()] == ["a", "b"]


def test_too_short_a_beginning_is_not_worth_it() -> None:
    world = world_of(reuse=attrs.evolve(REUSE, min_tokens=5))
    ended(world, prompt_tokens=3, max_new_tokens=2)
    assert states(world) == [LaneState.FREE, LaneState.FREE], "nothing of it could be used"
    ended(world, prompt_tokens=6, max_new_tokens=1)
    other = ended(world, prompt=(1, 2, 3, 4, 50, 60))
    assert cached_tokens(world, other) == 0


def test_a_conversation_is_not_cut_to_less_than_half_for_another_that_begins_the_same() -> None:
    world = world_of()
    ended(world, prompt_tokens=10, max_new_tokens=1)
    other = ended(world, prompt=(1, 2, 3, 4, 50, 60), max_new_tokens=1)
    assert cached_tokens(world, other) == 0
    third = ended(world, prompt=(1, 2, 3, 4, 50, 60, 70), max_new_tokens=1)
    assert cached_tokens(world, third) == 5, "of the two that begin the same, the longest match"


def test_among_equal_beginnings_the_youngest_is_taken() -> None:
    world = world_of()
    crowd = [world.ask(prompt_tokens=6, max_new_tokens=1) for _ in range(2)]
    world.answer_all()
    assert all(isinstance(world.streams[request].end, Finish) for request in crowd)
    world.ask(prompt_tokens=6, max_new_tokens=1)
    [asked] = world.effects
    assert isinstance(asked, ContinueSequence)
    assert asked.lane == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"evidence": evidence_of("incremental_prefill")},
        {"evidence": None},
        {"reuse": attrs.evolve(REUSE, enabled=False)},
        {"shape": small_shape(2, batches=(1, 2), pools={2: "second"})},
    ],
    ids=["unearned", "nothing on record", "switched off", "pools of their own"],
)
def test_nothing_is_retained_where_it_may_not_be(changes: dict[str, Any]) -> None:
    world = world_of(**changes)
    first = ended(world, prompt_tokens=6)
    assert states(world) == [LaneState.FREE, LaneState.FREE]
    second = world.come_back(first)
    assert [effect.tokens for effect in world.effects if isinstance(effect, AllocateSequence)] == [6 + 3 + 2 + 3]
    world.answer_all()
    assert cached_tokens(world, second) == 0


def test_a_lane_is_allocated_with_room_for_who_goes_on_from_there() -> None:
    world = world_of()
    world.ask(prompt_tokens=3, max_new_tokens=2)
    [asked] = world.effects
    assert isinstance(asked, AllocateSequence)
    assert asked.tokens == world.context_tokens
    assert world.core.snapshot().kv_tokens_reserved == 5, "its own request is charged with what it may come to hold"


def test_counts_add_up() -> None:
    assert ReuseCounts(1, 20, 3).with_more(ReuseCounts(2, 5, 1)) == ReuseCounts(3, 25, 4)


# ---- nobody waits for it -------------------------------------------------------------------------


def test_a_retained_lane_is_emptied_at_once_for_somebody_else() -> None:
    world = world_of(lanes=1)
    ended(world, prompt_tokens=6, tenant="a")
    other = world.ask(prompt_tokens=4, tenant="b")
    [asked] = world.effects
    assert isinstance(asked, ReleaseSequence)
    world.answer_all()
    assert isinstance(world.streams[other].end, Finish)
    assert world.core.snapshot().reuse.evictions == 1


def test_the_oldest_goes_first_and_no_more_than_have_to() -> None:
    world = world_of(lanes=3, shape=small_shape(3, batches=(1, 2)))
    old = [ended(world, prompt=(10 * n, 11 * n, 12 * n, 13 * n)) for n in range(1, 4)]
    assert states(world) == [LaneState.RETAINED] * 3
    ended(world, prompt_tokens=4, tenant="b")
    assert world.core.snapshot().reuse.evictions == 1
    assert cached_tokens(world, ended_turn(world, old[2])) == 6, "the youngest is still there"
    assert cached_tokens(world, ended_turn(world, old[1])) == 6
    assert cached_tokens(world, ended_turn(world, old[0])) == 0


def ended_turn(world: World, before: RequestId) -> RequestId:
    """The next turn of a conversation, served to its end."""
    request = world.come_back(before, max_new_tokens=1)
    world.answer_all()
    return request


def test_a_request_is_never_refused_a_place_that_a_retained_lane_could_give() -> None:
    world = world_of(lanes=1, admission={"max_waiting_requests": 0})
    ended(world, prompt_tokens=6, tenant="a")
    other = ended(world, prompt_tokens=6, tenant="b")
    assert isinstance(world.streams[other].end, Finish)


def test_sequences_that_are_only_retained_make_way_for_others_within_the_budget() -> None:
    world = world_of(lanes=2, admission={"max_sequences": 1})
    first = ended(world, prompt_tokens=6, tenant="a")
    ended(world, prompt_tokens=6, tenant="b")
    assert states(world).count(LaneState.RETAINED) == 1
    second = world.come_back(first)
    world.answer_all()
    assert isinstance(world.streams[second].end, Finish)


def test_kv_tokens_that_are_only_retained_make_way_while_the_matched_lane_stays() -> None:
    world = world_of(lanes=3, admission={"max_kv_tokens": 40}, shape=small_shape(3, batches=(1, 2)))
    first = ended(world, prompt_tokens=8, max_new_tokens=3)  # the oldest, and the one that is wanted
    ended(world, prompt_tokens=15, max_new_tokens=2, tenant="b")
    second = world.come_back(first, more=5, max_new_tokens=12)
    [asked] = world.effects
    assert isinstance(asked, ReleaseSequence)
    assert asked.lane == 1
    world.answer_all()
    assert cached_tokens(world, second) == 10


def test_the_end_of_a_request_whose_lane_is_retained_is_measured_like_any_other() -> None:
    """The queue's own forecast goes by ends: the second in the queue is told when one lane's requests end."""
    forecasts = []
    for reuse in (REUSE, attrs.evolve(REUSE, enabled=False)):
        world = world_of(lanes=1, reuse=reuse)
        requests = [world.ask(prompt_tokens=4, tenant=tenant) for tenant in "abcd"]
        for request in requests[:3]:
            while world.streams[request].end is None:
                world.pass_time(1.0)
                world.answer(1)
        last = world.ask(prompt_tokens=4, tenant="e")
        world.answer_all()
        admitted = world.streams[last].admitted
        assert admitted is not None
        forecasts.append(admitted.expected_wait_s)
    assert forecasts[0] == pytest.approx(forecasts[1], rel=0.5)


def test_a_tenant_pays_for_what_is_computed_and_not_for_what_was_there() -> None:
    spent = []
    for reuse in (REUSE, attrs.evolve(REUSE, enabled=False)):
        policy = {"fairness": FairnessPolicy(decode_cost_weight=1.0), "tenants": {"a": TenantPolicy()}}
        world = world_of(reuse=reuse, policy=policy)
        first = ended(world, prompt_tokens=10, max_new_tokens=1)
        before = world.core._tenants.of("a").virtual_time
        ended_turn(world, first)
        spent.append(world.core._tenants.of("a").virtual_time - before)
    assert spent == [3 + 1, 13 + 1], "the last token of the reply, two new ones, and one that was said"


# ---- its end -------------------------------------------------------------------------------------


def test_a_retained_lane_grows_too_old() -> None:
    world = world_of()
    ended(world, prompt_tokens=6)
    assert world.core.next_wakeup() == world.now + 50.0
    world.pass_time(49.0)
    assert world.effects == []
    world.pass_time(1.0)
    assert [type(effect) for effect in world.effects] == [ReleaseSequence]
    world.answer_all()
    assert states(world) == [LaneState.FREE] * 2
    assert world.core.next_wakeup() is None


def test_no_more_are_retained_than_may_be() -> None:
    world = world_of(lanes=3, reuse=attrs.evolve(REUSE, max_lanes=1), shape=small_shape(3, batches=(1, 2)))
    ended(world, prompt=(1, 2, 3, 4))
    ended(world, prompt=(5, 6, 7, 8))
    assert states(world) == [LaneState.FREE, LaneState.RETAINED, LaneState.FREE]


def test_a_drain_gives_everything_back_and_retains_nothing_more() -> None:
    world = world_of(lanes=2)
    ended(world, prompt=(5, 6, 7, 8))
    request = world.ask(prompt=(1, 2, 3, 4))
    world.allocate(request)
    world.drain()
    world.answer_all()
    assert isinstance(world.streams[request].end, Finish)
    assert states(world) == [LaneState.FREE] * 2
    assert world.drained


def test_a_generation_that_drains_gives_everything_back_first() -> None:
    world = world_of(lanes=2)
    ended(world, prompt=(5, 6, 7, 8))
    request = world.ask(prompt=(1, 2, 3, 4))
    world.allocate(request)
    world.tell(ev.GenerationAdvanced(GENERATION, ALIAS, GenerationEvent.DRAIN))
    assert [type(effect) for effect in world.effects] == [ReleaseSequence]
    world.answer_all()
    assert isinstance(world.streams[request].end, Finish)
    assert states(world) == [LaneState.FREE] * 2


def test_a_reset_leaves_nothing_retained() -> None:
    world = world_of(policy={"recovery": RecoveryPolicy(max_resets_per_10min=1)})
    first = ended(world, prompt_tokens=6)
    world.tell(ev.ResetAsked())
    assert states(world) == [LaneState.UNKNOWN, LaneState.FREE]
    world.reset()
    second = world.come_back(first)
    world.answer_all()
    assert cached_tokens(world, second) == 0


def test_a_device_that_is_given_up_retains_nothing() -> None:
    world = world_of(policy={"recovery": RecoveryPolicy(max_resets_per_10min=0)})
    ended(world, prompt_tokens=6)
    other = world.ask(prompt=(9, 9, 9))
    world.allocate(other)
    world.lose_job(world.job.job, FaultReason.DEVICE_LOST)
    assert states(world) == [LaneState.UNKNOWN, LaneState.UNKNOWN]
    assert world.core.next_wakeup() is None


def test_a_sequence_that_cannot_be_shortened_is_emptied_and_its_request_served_from_the_beginning() -> None:
    world = world_of(lanes=1)
    first = ended(world, prompt_tokens=6)
    second = world.come_back(first)
    world.refuse_allocation(second)
    assert [type(effect) for effect in world.effects] == [ReleaseSequence]
    world.answer_all()
    assert isinstance(world.streams[second].end, Finish)
    assert cached_tokens(world, second) == 0
    assert world.core.snapshot().reuse.hits == 0


def test_who_could_not_go_on_from_its_lane_may_have_another_before_that_one_is_empty() -> None:
    world = world_of(lanes=2)
    second = world.come_back(ended(world, prompt_tokens=6))
    world.refuse_allocation(second)
    assert [type(effect) for effect in world.effects] == [ReleaseSequence, AllocateSequence]
    world.answer_all()
    assert isinstance(world.streams[second].end, Finish)


def test_a_client_that_leaves_while_its_lane_is_made_ready_leaves_an_empty_one() -> None:
    world = world_of(lanes=1)
    first = ended(world, prompt_tokens=6)
    second = world.come_back(first)
    world.cancel(second)
    world.allocate(second)
    assert [type(effect) for effect in world.effects] == [ReleaseSequence]
    world.answer_all()
    assert states(world) == [LaneState.FREE]


def test_who_was_cancelled_leaves_nothing() -> None:
    world = world_of(lanes=1)
    request = world.ask(prompt_tokens=6)
    world.allocate(request)
    world.cancel(request)
    world.answer_all()
    assert states(world) == [LaneState.FREE]
