"""Replays: sequences whose KV is gone, and whose streams go on once all their tokens have been written again.

The host knows every token of every sequence, so that a device that was reset can be brought back to where it was: to
the bit, so that the text goes on as it would have. The prompt is prefilled again. What was sampled since is decoded
again, many lanes at a time, and nothing is sampled after it; where decode was shown to compute as prefill does
(``reply_reuse``), it is prefilled with the prompt.

Source: SPEC section 9 (``recovery.replay``).
"""

from __future__ import annotations

from calculet_trio.core.endings import Endings
from calculet_trio.core.events import CancelReason, FaultReason
from calculet_trio.core.registry import RequestRegistry
from calculet_trio.core.request import Request, RequestEvent, RequestState
from calculet_trio.core.served import Served
from calculet_trio.ids import RequestId


class Replays:
    """Admitted requests without a lane, first lost first; they go before everybody who is new.

    Args:
        registry: moves requests.
        endings: ends those that cannot be replayed.
        enabled: ``recovery.replay``; without it whoever loses its KV fails.

    Attributes:
        begun: how many replays there have been.
    """

    def __init__(self, registry: RequestRegistry, endings: Endings, *, enabled: bool) -> None:
        self._registry = registry
        self._endings = endings
        self._enabled = enabled
        self._waiting: dict[RequestId, Request] = {}
        self.begun = 0

    def lose_kv(self, request: Request, served: Served, reason: FaultReason, *, sampled: bool = False) -> None:
        """The admitted request's KV is gone: it waits for a lane to be replayed in, or ends.

        Args:
            request: its job, if it had one, has ended.
            served: its generation.
            reason: told to a client whose request cannot be replayed.
            sampled: its text side has taken a token that is not to be used: it cannot go back.
        """
        request.lane = None
        if isinstance(request.give_up, CancelReason):
            self._endings.drop(request)
        elif not self._enabled or sampled or request.give_up is not None or not served.can_write_again(request):
            self._endings.fail(request, reason)
        else:
            self._registry.move(request, RequestEvent.REPLAY)
            request.prefilled_tokens = 0
            request.kv_pool = None
            self._waiting[request.id] = request
            self.begun += 1

    def peek(self) -> Request | None:
        """Whose turn it is; those that ended meanwhile are let go."""
        while self._waiting:
            request = next(iter(self._waiting.values()))
            if request.state is RequestState.PREFILL_READY:
                return request
            del self._waiting[request.id]
        return None

    def pop(self) -> Request:
        """Remove what `peek` shows: it is being given a lane."""
        return self._waiting.pop(next(iter(self._waiting)))

    def put_back(self, request: Request) -> None:
        """The device refused it a lane for now: it waits in front of the others."""
        self._waiting = {request.id: request, **self._waiting}
