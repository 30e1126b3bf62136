"""A model that retains lanes, for tests of who goes on from there."""

from __future__ import annotations

from typing import Any

from calculet_trio.core.effects import Finish
from calculet_trio.core.lanes import LaneState
from calculet_trio.core.policy import AdmissionPolicy, Policy, ReusePolicy
from calculet_trio.ids import RequestId
from tests.core.shapes import evidence_of, small_shape
from tests.core.world import World

REUSE = ReusePolicy(min_tokens=2, max_age_s=50.0)


def world_of(*, lanes: int = 2, reuse: ReusePolicy = REUSE, **changes: Any) -> World:
    """A model that has earned prefix reuse, of prompts and of replies."""
    budgets = AdmissionPolicy(**{"deadline_default_s": 1000.0, **changes.pop("admission", {})})
    policy = Policy(admission=budgets, reuse=reuse, **changes.pop("policy", {}))
    shape = changes.pop("shape", None) or small_shape(lanes, batches=(1, 2))
    return World(shape, **{"policy": policy, "evidence": evidence_of("reply_reuse"), **changes})


def ended(world: World, **asked: Any) -> RequestId:
    """A request that was served to its end."""
    request = world.ask(**asked)
    world.answer_all()
    assert isinstance(world.streams[request].end, Finish)
    return request


def states(world: World) -> list[LaneState]:
    return [slot.state for slot in world.core.slots()]


def cached_tokens(world: World, request: RequestId) -> int:
    admitted = world.streams[request].admitted
    assert admitted is not None
    return admitted.cached_tokens
