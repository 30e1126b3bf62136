"""The admission controller with all that it asks, for tests that stand at its door."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calculet_trio.core.admission import AdmissionController
from calculet_trio.core.effects import Refusal
from calculet_trio.core.generation import ModelGeneration
from calculet_trio.core.jobs import LaneWork, PrefillJob
from calculet_trio.core.lanes import KvLane
from calculet_trio.core.policy import AdmissionPolicy, Policy, TenantPolicy
from calculet_trio.core.profiles import ModelShape
from calculet_trio.core.registry import RequestRegistry
from calculet_trio.core.request import Request
from calculet_trio.core.retention import ReuseCounts
from calculet_trio.core.served import Served
from calculet_trio.core.tenant_queue import TenantQueue
from calculet_trio.core.tenants import Tenants
from calculet_trio.ids import JobId, LaneId, RequestId, SequenceId
from tests.core.shapes import ALIAS, GENERATION, make_request, small_shape, waiting_request


class Door:
    """A controller with all that it asks: registry, queue, tenants, lanes."""

    def __init__(
        self,
        *,
        shape: ModelShape | None = None,
        lanes: int = 2,
        max_seq: int = 32,
        prefill_max_seq: int | None = None,
        tenants: Mapping[str, TenantPolicy] | None = None,
        **budgets: Any,
    ) -> None:
        self.tenants = Tenants(tenants or {})
        self.registry = RequestRegistry(self.tenants)
        self.queue = TenantQueue(self.tenants)
        shape = shape or small_shape(lanes, max_seq=max_seq, prefill_max_seq=prefill_max_seq)
        policy = Policy(admission=AdmissionPolicy(**budgets))
        self.served = Served(ModelGeneration(GENERATION, ALIAS), shape, policy, None, ReuseCounts())
        self.lanes = self.served.lanes
        self.controller = AdmissionController(policy.admission, self.registry, self.queue)

    def arrive(self, number: int, *, tenant: str = "a", now: float = 0.0) -> Refusal | None:
        refusal = self.controller.on_arrival(self.lanes, self.tenants.of(tenant), now)
        if refusal is None:
            self.registry.create(
                RequestId(number),
                tenant=tenant,
                alias=ALIAS,
                generation=GENERATION,
                arrived_s=now,
                deadline_s=now + 9.0,
                order_deadline_s=now + 9.0,
            )
        return refusal

    def price(self, number: int, prompt_tokens: int) -> Request:
        request = self.registry.get(RequestId(number))
        assert request is not None
        self.registry.price(request, prompt=tuple(range(prompt_tokens)), max_new_tokens=1)
        return request

    def offer(
        self, prompt_tokens: int, *, tenant: str = "a", request: Request | None = None, now: float = 0.0
    ) -> Refusal | None:
        return self.controller.on_offer(
            self.served,
            make_request(99, tenant=tenant) if request is None else request,
            self.tenants.of(tenant),
            prompt_tokens=prompt_tokens,
            now=now,
        )

    def queue_up(self, number: int, prompt_tokens: int, *, tenant: str = "a") -> None:
        """A request that arrives, is offered and waits."""
        assert self.arrive(number, tenant=tenant) is None
        self.queue.push(self.price(number, prompt_tokens), cost=float(prompt_tokens))

    def measure(self, *, prefill_token_s: float, end_s: float) -> None:
        """A prefill has taken so long for each token, and every so often somebody ends."""
        work = LaneWork(RequestId(1), SequenceId(1), LaneId(0), 0, (1,) * 4, 0)
        self.served.rates.observe(
            PrefillJob(JobId(1), GENERATION, self.served.shape.prefill, work), 4 * prefill_token_s
        )
        for moment_s in (0.0, end_s):
            self.controller.drain_rate.ended(moment_s, others_waiting=True)

    def occupy(self, number: int, *, tokens: int = 8) -> KvLane:
        lane = self.lanes.reserve(RequestId(number), tokens)
        assert lane is not None
        lane.allocated(SequenceId(number))
        return lane

    def lose(self, number: int, *, tokens: int = 8) -> None:
        self.occupy(number, tokens=tokens).lose()

    def may_admit(self, tokens: int) -> bool:
        return self.controller.may_admit(self.lanes, request_of(tokens))

    def may_ever_admit(self, tokens: int) -> bool:
        return self.controller.may_ever_admit(self.lanes, request_of(tokens))


def request_of(tokens: int) -> Request:
    return waiting_request(99, prompt_tokens=tokens - 1, max_new_tokens=1)
