"""Whether of a reply, too, what its lane holds is used again: decode wrote it, and may compute otherwise than prefill.

That nothing computed otherwise is used again where that was not shown, `tests.core.performer` holds at each step.
"""

from __future__ import annotations

import attrs
import pytest

from calculet_trio.core import events as ev
from calculet_trio.core.effects import ContinueSequence, Finish
from calculet_trio.core.lanes import LaneState
from calculet_trio.core.policy import RecoveryPolicy
from tests.core.retaining import REUSE, cached_tokens, ended, states, world_of
from tests.core.shapes import evidence_of


@pytest.mark.parametrize(
    ("capability", "replies", "kept"),
    [
        ("reply_reuse", None, 5 + 3),
        ("reply_reuse", False, 5),
        ("prefix_reuse", None, 5),
        ("prefix_reuse", False, 5),
        ("prefix_reuse", True, 5 + 3),
    ],
)
def test_of_a_reply_nothing_is_used_again_unless_that_was_shown_or_is_wanted(
    capability: str, replies: bool | None, kept: int
) -> None:
    world = world_of(evidence=evidence_of(capability), reuse=attrs.evolve(REUSE, replies=replies))
    first = ended(world, prompt_tokens=5, max_new_tokens=4)
    second = world.come_back(first, more=3)
    [asked] = world.effects
    assert isinstance(asked, ContinueSequence)
    assert asked.drop_tokens == 5 + 3 - kept
    world.answer_all()
    assert cached_tokens(world, second) == kept
    third = world.come_back(second, more=3)
    world.answer_all()
    assert cached_tokens(world, third) == 12 + (2 if kept > 5 else 0), "the second's prompt was prefilled whole"


def test_what_a_replay_has_prefilled_again_counts_as_prefilled() -> None:
    policy = {"recovery": RecoveryPolicy(max_resets_per_10min=1, replay=True)}
    world = world_of(evidence=evidence_of("reply_reuse"), reuse=attrs.evolve(REUSE, replies=False), policy=policy)
    first = world.ask(prompt_tokens=5, max_new_tokens=4)
    world.allocate(first)
    world.finish(world.job.job)
    world.finish(world.job.job)
    world.tell(ev.ResetAsked())
    world.finish(world.job.job)
    world.reset()
    world.answer_all()
    assert isinstance(world.streams[first].end, Finish)
    second = world.come_back(first)
    world.answer_all()
    assert cached_tokens(world, second) == 5 + 3, "what had been said by then"


def test_a_prompt_of_one_token_is_not_kept() -> None:
    world = world_of(reuse=attrs.evolve(REUSE, min_tokens=1), evidence=evidence_of("prefix_reuse"))
    ended(world, prompt_tokens=1)
    assert states(world) == [LaneState.FREE, LaneState.FREE]
