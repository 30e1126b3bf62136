"""AdmissionController: who may wait, what a request is granted, who gets the next lane.

Source: SPEC section 4 (S §5).
"""

from __future__ import annotations

from calculet_trio.core.effects import Refusal, RefusalKind
from calculet_trio.core.lanes import KvLanes
from calculet_trio.core.policy import AdmissionPolicy
from calculet_trio.core.registry import RequestRegistry
from calculet_trio.core.request import Request


class DrainRate:
    """How fast the service frees places, so that a refusal can say when to come back.

    An exponentially weighted mean of the time between two requests' ends while others wait.
    """

    _NEWEST_SHARE = 0.2
    _UNMEASURED_S = 1.0  # before two requests have ended: a client's shortest polite pause
    _LONGEST_S = 120.0  # a longer promise would be a guess

    def __init__(self) -> None:
        self._mean_s: float | None = None
        self._last_end_s: float | None = None

    def ended(self, now: float, *, others_waiting: bool) -> None:
        """A place became free; gaps in which nobody waited say nothing about the service's speed."""
        if self._last_end_s is not None and others_waiting:
            gap_s = now - self._last_end_s
            self._mean_s = gap_s if self._mean_s is None else self._mean_s + self._NEWEST_SHARE * (gap_s - self._mean_s)
        self._last_end_s = now

    def retry_after_s(self, places: int) -> float:
        """When ``places`` more requests will have ended, as far as anybody can tell."""
        return min(self._LONGEST_S, places * (self._UNMEASURED_S if self._mean_s is None else self._mean_s))


class AdmissionController:
    """The budgets of S §5.1 over one registry. It decides; `ServingCore` moves the requests."""

    def __init__(self, policy: AdmissionPolicy, registry: RequestRegistry) -> None:
        self.policy = policy
        self.drain_rate = DrainRate()
        self._registry = registry

    def on_arrival(self, lanes: KvLanes) -> Refusal | None:
        """Whether one more request may wait. A request that finds a free lane does not wait."""
        waiting = self._registry.waiting - len(self._being_allocated(lanes))
        if waiting < self.policy.max_waiting_requests + self._spare_lanes(lanes):
            return None
        return Refusal(
            RefusalKind.CAPACITY,
            "queue_full",
            f"{waiting} requests wait already; the limit is {self.policy.max_waiting_requests}",
            retry_after_s=self.drain_rate.retry_after_s(1),
        )

    def on_offer(self, lanes: KvLanes, *, prompt_tokens: int, prefill_tokens_max: int) -> Refusal | None:
        """Whether a prompt of that length can be served at all, and may wait.

        The longest prompt is what the prefill graph takes, and at least one token shorter than the context:
        a reply has at least one token.
        """
        limit = min(self._context_tokens(lanes) - 1, prefill_tokens_max)
        if prompt_tokens > limit:
            return Refusal(
                RefusalKind.INVALID,
                "context_length_exceeded",
                f"the prompt has {prompt_tokens} tokens; this model takes at most {limit}",
                prompt_tokens=prompt_tokens,
                limit_tokens=limit,
            )
        placed_tokens = sum(len(request.prompt) for request in self._being_allocated(lanes))
        waiting = self._registry.waiting_prompt_tokens - placed_tokens
        if waiting and waiting + prompt_tokens > self.policy.max_waiting_prompt_tokens:
            return Refusal(
                RefusalKind.CAPACITY,
                "queue_full",
                f"{waiting} prompt tokens wait already; the limit is {self.policy.max_waiting_prompt_tokens}",
                retry_after_s=self.drain_rate.retry_after_s(1),
            )
        return None

    def grant(self, lanes: KvLanes, *, prompt_tokens: int, asked: int | None) -> int:
        """Tokens of reply: what was asked for, as far as the context holds it."""
        room = self._context_tokens(lanes) - prompt_tokens
        return room if asked is None else min(asked, room)

    def may_admit(self, lanes: KvLanes, request: Request) -> bool:
        """Whether sequences, KV tokens and lanes have room for the request now."""
        return self._spare_lanes(lanes) > 0 and (
            lanes.reserved_tokens + request.tokens_at_most <= self._kv_tokens(lanes)
        )

    def may_ever_admit(self, lanes: KvLanes, request: Request) -> bool:
        """Whether the request fits once every lane that can come back is free; Unknown ones stay charged."""
        lost, limit = len(lanes) - lanes.usable, self.policy.max_sequences
        return (limit is None or lost < limit) and (
            lanes.unknown_tokens + request.tokens_at_most <= self._kv_tokens(lanes)
        )

    def _being_allocated(self, lanes: KvLanes) -> list[Request]:
        """Requests that still count as waiting, but have their lane: they wait for the runtime, not for room."""
        owners = (self._registry.get(request) for request in lanes.being_allocated)
        return [request for request in owners if request is not None]

    def _spare_lanes(self, lanes: KvLanes) -> int:
        limit = self.policy.max_sequences
        return lanes.free if limit is None else min(lanes.free, limit - (len(lanes) - lanes.free))

    def _kv_tokens(self, lanes: KvLanes) -> int:
        whole = len(lanes) * lanes.max_seq
        return whole if self.policy.max_kv_tokens is None else min(whole, self.policy.max_kv_tokens)

    def _context_tokens(self, lanes: KvLanes) -> int:
        return min(lanes.max_seq, self._kv_tokens(lanes))
