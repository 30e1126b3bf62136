"""Slots: each lane with its state and lengths, and whose it is; never a token."""

from __future__ import annotations

from calculet_trio.core import effects as ef
from calculet_trio.core import events as ev
from calculet_trio.core.generation import GenerationEvent
from calculet_trio.core.lanes import LaneState
from calculet_trio.core.policy import Policy
from calculet_trio.core.serving import ServingCore
from calculet_trio.ids import GenerationId, LaneId, RequestId, ReservationId, SequenceId
from tests.core.shapes import small_shape


def test_a_lane_shows_its_request_until_it_is_over() -> None:
    core = ServingCore(Policy())
    generation, request = GenerationId(1), RequestId(1)
    for step in (GenerationEvent.VALIDATE, GenerationEvent.CONFIGURE, GenerationEvent.WARM):
        core.handle(ev.GenerationAdvanced(generation, "m", step), 0.0)
    assert core.slots() == (), "nothing is served yet"
    shape = small_shape()
    core.handle(ev.GenerationAdvanced(generation, "m", GenerationEvent.PUBLISH, shape), 0.0)
    assert [slot.state for slot in core.slots()] == [LaneState.FREE] * shape.lanes
    core.handle(ev.Arrived(request, "acme", "m", None), 0.0)
    core.handle(ev.Offered(request, generation, (5, 6, 7), 2), 0.0)
    begun = core.handle(ev.SequenceAllocated(generation, LaneId(0), request, ReservationId(1), SequenceId(9)), 0.0)
    [job] = [effect.job for effect in begun if isinstance(effect, ef.SubmitJob)]
    first, *others = core.slots()
    assert (first.alias, first.tenant, first.state, first.is_running) == ("m", "acme", LaneState.UPDATING, True)
    assert (first.prompt_tokens, first.generated_tokens, first.committed_tokens, first.reserved_tokens) == (3, 0, 0, 5)
    assert {slot.tenant for slot in others} == {None}
    core.handle(ev.Cancelled(request, ev.CancelReason.CLIENT_GONE), 0.0)
    assert core.slots()[0].tenant == "acme", "its job is not over"
    effects = core.handle(ev.JobFinished(job.job, generation, ()), 0.0)
    assert any(isinstance(effect, ef.ReleaseSequence) for effect in effects)
    assert core.slots()[0].tenant is None, "the request is over, its lane is being given back"
    assert core.slots()[0].state is LaneState.RELEASING
