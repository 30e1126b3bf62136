"""AdmissionController: who may wait, what a request is granted, who gets the next lane.

Source: SPEC section 4 (S §5).
"""

from __future__ import annotations

from collections.abc import Collection

from calculet_trio.core.effects import Refusal, RefusalKind
from calculet_trio.core.lanes import KvLane, KvLanes
from calculet_trio.core.policy import AdmissionPolicy
from calculet_trio.core.registry import RequestRegistry
from calculet_trio.core.request import Request
from calculet_trio.core.served import Served
from calculet_trio.core.tenant_queue import TenantQueue
from calculet_trio.core.tenants import Tenant


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

    def expected_s(self, places: float) -> float | None:
        """When ``places`` more requests will have ended; None while nothing has been measured."""
        return None if self._mean_s is None else places * self._mean_s

    def retry_after_s(self, places: int) -> float:
        """The same for a client: never None, never longer than anybody could promise."""
        expected_s = self.expected_s(places)
        return min(self._LONGEST_S, places * self._UNMEASURED_S if expected_s is None else expected_s)


class AdmissionController:
    """The budgets of S §5.1 and the tenants' own limits. It decides; `ServingCore` moves the requests."""

    def __init__(self, policy: AdmissionPolicy, registry: RequestRegistry, queue: TenantQueue) -> None:
        self.policy = policy
        self.drain_rate = DrainRate()
        self._registry = registry
        self._queue = queue

    def on_arrival(self, lanes: KvLanes | None, tenant: Tenant, now: float) -> Refusal | None:
        """Whether one more request may wait. One that finds a lane does not; ``lanes`` None: no model, no lane."""
        waiting, spare = self._registry.waiting, 0
        if lanes is not None:
            waiting -= len(self._being_allocated(lanes))
            spare = self._spare_lanes(lanes, lanes.retained)
        if waiting >= self.policy.max_waiting_requests + spare:
            return self._full(
                "queue_full", f"{waiting} requests wait already; the limit is {self.policy.max_waiting_requests}"
            )
        pause_s = tenant.arrival_wait_s(now)
        if pause_s is not None:
            limit = tenant.policy.requests_per_s
            return _capacity("rate_limited", f"the tenant may send {limit} requests a second", retry_after_s=pause_s)
        return None

    def on_offer(
        self, served: Served, request: Request, tenant: Tenant, *, prompt_tokens: int, now: float
    ) -> Refusal | None:
        """Whether a prompt of that length can be served at all, may wait, and can be served in time.

        The longest prompt is what the prefill graph takes, and at least one token shorter than the context:
        a reply has at least one token. ``request.expected_wait_s`` is set to the forecast.
        """
        limit = min(self._context_tokens(served) - 1, served.shape.prefill.max_seq)
        if prompt_tokens > limit:
            return Refusal(
                RefusalKind.INVALID,
                "context_length_exceeded",
                f"the prompt has {prompt_tokens} tokens; this model takes at most {limit}",
                prompt_tokens=prompt_tokens,
                limit_tokens=limit,
            )
        return self._over_waiting_tokens(served.lanes, tenant, prompt_tokens) or self._too_late(
            served, request, tenant, prompt_tokens, now
        )

    def grant(self, served: Served, *, prompt_tokens: int, asked: int | None) -> int:
        """Tokens of reply: what was asked for, as far as the context holds it."""
        room = self._context_tokens(served) - prompt_tokens
        return room if asked is None else min(asked, room)

    def may_admit(self, lanes: KvLanes, request: Request, *, besides: Collection[KvLane] = ()) -> bool:
        """Whether sequences, KV tokens and lanes have room for the request, were the lanes ``besides`` free as well."""
        if self._spare_lanes(lanes, len(besides)) <= 0:
            return False
        reserved = lanes.reserved_tokens - sum(lane.reserved_len for lane in besides)
        return reserved + request.tokens_at_most <= self._kv_tokens(lanes)

    def may_ever_admit(self, lanes: KvLanes, request: Request) -> bool:
        """Whether the request fits once every lane that can come back is free; Unknown ones stay charged."""
        lost, limit = len(lanes) - lanes.usable, self.policy.max_sequences
        if not lost:
            return True  # it was granted no more than that
        return (limit is None or lost < limit) and (
            lanes.unknown_tokens + request.tokens_at_most <= self._kv_tokens(lanes)
        )

    # ---- waiting --------------------------------------------------------------------------------

    def _over_waiting_tokens(self, lanes: KvLanes, tenant: Tenant, prompt_tokens: int) -> Refusal | None:
        """The waiting-token budgets, the server's and the tenant's; a prompt that waits alone always may."""
        being_placed = self._being_allocated(lanes)
        waiting = self._registry.waiting_prompt_tokens - sum(len(request.prompt) for request in being_placed)
        if waiting and waiting + prompt_tokens > self.policy.max_waiting_prompt_tokens:
            return self._full(
                "queue_full",
                f"{waiting} prompt tokens wait already; the limit is {self.policy.max_waiting_prompt_tokens}",
            )
        own_limit = tenant.policy.max_waiting_tokens
        own = tenant.waiting_prompt_tokens - sum(len(r.prompt) for r in being_placed if r.tenant == tenant.name)
        if own_limit is not None and own and own + prompt_tokens > own_limit:
            return self._full(
                "tenant_queue_full", f"{own} prompt tokens of the tenant wait already; its limit is {own_limit}"
            )
        return None

    def _too_late(
        self, served: Served, request: Request, tenant: Tenant, prompt_tokens: int, now: float
    ) -> Refusal | None:
        """Whether the first token cannot come before the deadline, by what has been measured."""
        prefill_s = served.rates.prefill_s(prompt_tokens)
        left_s = request.deadline_s - now
        if prefill_s is not None and prefill_s > left_s:
            return Refusal(
                RefusalKind.INVALID,
                "deadline_too_short",
                f"a prompt of {prompt_tokens} tokens takes about {prefill_s:.1f} s; its deadline is in {left_s:.1f} s",
            )
        ahead = self._queue.ahead_of(tenant) + 1 - self._spare_lanes(served.lanes, served.lanes.retained)
        wait_s = 0.0 if ahead <= 0 else self.drain_rate.expected_s(ahead)
        request.expected_wait_s = wait_s
        if wait_s is not None and wait_s + (prefill_s or 0.0) > left_s:
            return _capacity(
                "queue_too_long",
                f"about {wait_s:.1f} s of waiting lie ahead; the request's deadline is in {left_s:.1f} s",
                retry_after_s=max(1.0, wait_s - left_s),
            )
        return None

    def _full(self, code: str, message: str) -> Refusal:
        return _capacity(code, message, retry_after_s=self.drain_rate.retry_after_s(1))

    # ---- room -----------------------------------------------------------------------------------

    def _being_allocated(self, lanes: KvLanes) -> list[Request]:
        """Requests that still count as waiting, but have their lane: they wait for the runtime, not for room."""
        owners = (self._registry.get(request) for request in lanes.being_allocated)
        return [request for request in owners if request is not None and request.is_waiting]

    def _spare_lanes(self, lanes: KvLanes, besides: int) -> int:
        """Lanes for one more request each: those that are free, and so many besides."""
        limit, free = self.policy.max_sequences, lanes.free + besides
        return free if limit is None else min(free, limit - (len(lanes) - free))

    def _kv_tokens(self, lanes: KvLanes) -> int:
        whole = len(lanes) * lanes.max_seq
        return whole if self.policy.max_kv_tokens is None else min(whole, self.policy.max_kv_tokens)

    def _context_tokens(self, served: Served) -> int:
        return min(served.context_tokens, self._kv_tokens(served.lanes))


def _capacity(code: str, message: str, *, retry_after_s: float) -> Refusal:
    return Refusal(RefusalKind.CAPACITY, code, message, retry_after_s=retry_after_s)
