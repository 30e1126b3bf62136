"""How requests end: refused, finished, lost or dropped; each once, each telling its stream once.

Source: SPEC section 3, 4 (S §4: a terminal state is entered once, the stream is closed once).
"""

from __future__ import annotations

from typing import Final

from calculet_trio.core.effects import (
    Drop,
    Effect,
    Fail,
    Finish,
    FinishReason,
    Refusal,
    RefusalKind,
    Refuse,
    ReleaseSequence,
)
from calculet_trio.core.events import FaultReason
from calculet_trio.core.faults import is_retryable
from calculet_trio.core.lanes import KvLane, LaneState
from calculet_trio.core.registry import RequestRegistry
from calculet_trio.core.request import Request, RequestEvent, RequestState
from calculet_trio.core.tenant_queue import TenantQueue
from calculet_trio.core.waiting_room import WaitingRoom
from calculet_trio.ids import GenerationId

DRAINING: Final = Refusal(RefusalKind.UNAVAILABLE, "draining", "the service is shutting down", retry_after_s=5.0)
LOADING: Final = Refusal(RefusalKind.UNAVAILABLE, "loading", "the model is being loaded", retry_after_s=2.0)
UNLOADED: Final = Refusal(
    RefusalKind.UNAVAILABLE,
    "model_unloaded",
    "the model was unloaded, and none is to take its place",
    retry_after_s=5.0,
)
EXPIRED: Final = Refusal(
    RefusalKind.UNAVAILABLE, "deadline_exceeded", "the request's deadline passed while it waited", retry_after_s=1.0
)
LANES_LOST: Final = Refusal(
    RefusalKind.UNAVAILABLE, "failed", "lanes were lost; what is left cannot hold the request", retry_after_s=10.0
)

RECOVERING: Final = Refusal(RefusalKind.UNAVAILABLE, "recovering", "the device is being reset", retry_after_s=5.0)


def device_failed(reason: FaultReason) -> Refusal:
    """What a waiting or arriving request is told once no engine is left."""
    return Refusal(RefusalKind.UNAVAILABLE, "failed", f"the device failed ({reason.value})", retry_after_s=10.0)


class Endings:
    """Moves requests to their end, says so in ``effects``, and sends their lanes back to the runtime.

    Attributes:
        room: those that wait for a model; whoever ends leaves it.
    """

    def __init__(
        self,
        registry: RequestRegistry,
        queue: TenantQueue,
        effects: list[Effect],
        *,
        decode_cost_weight: float,
    ) -> None:
        self._registry = registry
        self._queue = queue
        self.room = WaitingRoom()
        self._effects = effects
        self._decode_cost_weight = decode_cost_weight

    def refuse(self, request: Request, refusal: Refusal) -> None:
        """It was never admitted."""
        self._leave_queue(request)
        self._registry.move(request, RequestEvent.REFUSE)
        self._effects.append(Refuse(request.id, refusal))

    def finish(self, request: Request, reason: FinishReason, truncated_by: str | None = None) -> None:
        """Its reply is whole; it is Completed once its lane is back."""
        self._leave_queue(request)
        self._registry.move(request, RequestEvent.FINISH)
        self._effects.append(Finish(request.id, reason, truncated_by))
        if request.lane is None:  # it was to be replayed
            self._registry.move(request, RequestEvent.RELEASED)
        else:
            self._release(request)

    def fail(self, request: Request, reason: FaultReason) -> None:
        """It was admitted, and nothing more will come."""
        self._leave_queue(request)
        self._registry.move(request, RequestEvent.FAIL)
        self._effects.append(Fail(request.id, reason, retryable=is_retryable(reason)))
        self._release(request)

    def drop(self, request: Request) -> None:
        """Nobody wants it any more."""
        self._leave_queue(request)
        self._registry.move(request, RequestEvent.CANCEL)
        self._effects.append(Drop(request.id))
        self._release(request)

    def give_up(self, request: Request) -> None:
        """Its job has drained: a cancelled request is dropped, one that ran out of time is told so."""
        if isinstance(request.give_up, FaultReason):
            self.fail(request, request.give_up)
        else:
            self.drop(request)

    def expire(self, request: Request) -> None:
        """Its deadline has passed; a request whose job is out ends when that has drained, not here."""
        if request.is_waiting:
            self.refuse(request, EXPIRED)
        elif request.state in (RequestState.PREFILL_READY, RequestState.DECODE_READY):
            if request.generated:
                self.finish(request, FinishReason.LENGTH, truncated_by="deadline")
            else:
                self.fail(request, FaultReason.DEADLINE_EXCEEDED)

    def give_back(self, lane: KvLane, generation: GenerationId) -> None:
        """Ask the runtime to empty a lane that no job holds."""
        self._effects.append(ReleaseSequence(generation, lane.id, lane.release()))

    def _leave_queue(self, request: Request) -> None:
        """Its tenant pays for what was used, and for no more."""
        if request.is_charged:
            self._queue.settle(request, used=request.used_tokens(self._decode_cost_weight))
        else:
            self._queue.discard(request)
            self.room.discard(request)

    def _release(self, request: Request) -> None:
        lane, request.lane = request.lane, None
        if lane is not None and lane.state is LaneState.ACTIVE:
            self.give_back(lane, request.generation)
