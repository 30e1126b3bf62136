"""Slots: every KV lane and what is in it, for who may see it; lengths and states, never tokens.

Source: API.md ``GET /slots``; SPEC section 7.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from calculet_trio.core.lanes import LaneState
from calculet_trio.core.registry import RequestRegistry
from calculet_trio.core.served import Served
from calculet_trio.ids import LaneId


@attrs.frozen(kw_only=True)
class Slot:
    """One lane.

    Args:
        lane: its number in its generation.
        alias: the model whose lane it is.
        state: the lane's.
        context_tokens: what it holds at most.
        committed_tokens, reserved_tokens: in it, and promised to its request.
        tenant: whose request is in it, or was in it before it was retained; None for nobody's.
        is_running: whether a job has it now.
        prompt_tokens, generated_tokens: of its request.
    """

    lane: LaneId
    alias: str
    state: LaneState
    context_tokens: int
    committed_tokens: int
    reserved_tokens: int
    tenant: str | None = None
    is_running: bool = False
    prompt_tokens: int = 0
    generated_tokens: int = 0


def slots_of(served: Iterable[Served], registry: RequestRegistry) -> tuple[Slot, ...]:
    """All lanes, generation by generation."""
    return tuple(_slot(one, LaneId(lane), registry) for one in served for lane in range(len(one.lanes)))


def _slot(served: Served, number: LaneId, registry: RequestRegistry) -> Slot:
    lane = served.lanes[number]
    slot = Slot(
        lane=lane.id,
        alias=served.generation.alias,
        state=lane.state,
        context_tokens=served.lanes.max_seq,
        committed_tokens=lane.committed_len,
        reserved_tokens=lane.reserved_len,
    )
    request = None if lane.request is None else registry.get(lane.request)
    if request is None:
        return attrs.evolve(slot, tenant=served.retention.tenant_of(lane.id))
    return attrs.evolve(
        slot,
        tenant=request.tenant,
        is_running=request.is_running,
        prompt_tokens=len(request.prompt),
        generated_tokens=len(request.generated),
    )
