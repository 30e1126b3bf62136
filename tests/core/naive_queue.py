"""The fair queue's rule as one would write it down: no heap, no tickets, every place computed when it is asked for."""

from __future__ import annotations

import attrs

from calculet_trio.core.policy import TenantPolicy
from calculet_trio.ids import RequestId

NAMES = ("f", "g", "h")


@attrs.define
class NaiveQueue:
    """S §5.3, with charges that are settled.

    Attributes:
        line: waiting requests and their costs, by tenant, first come first.
        active: charged requests: tenant, cost and weight.
        time: each tenant's virtual time.
    """

    policies: dict[str, TenantPolicy]
    line: dict[str, list[tuple[RequestId, float]]] = attrs.field(factory=lambda: {name: [] for name in NAMES})
    active: dict[RequestId, tuple[str, float, float]] = attrs.field(factory=dict)
    time: dict[str, float] = attrs.field(factory=lambda: dict.fromkeys(NAMES, 0.0))
    global_time: float = 0.0

    def policy(self, tenant: str) -> TenantPolicy:
        return self.policies.get(tenant, TenantPolicy())

    def wait(self, tenant: str, request: RequestId, cost: float, *, front: bool) -> None:
        if not self.line[tenant]:
            self.time[tenant] = max(self.time[tenant], self.global_time)
        self.line[tenant].insert(0 if front else len(self.line[tenant]), (request, cost))

    def finish_of(self, tenant: str) -> float:
        return self.time[tenant] + self.line[tenant][0][1] / self.policy(tenant).weight

    def candidates(self) -> dict[RequestId, float]:
        """The heads of all tenants that may have one more, with their virtual finish."""
        heads = {}
        for tenant in NAMES:
            limit = self.policy(tenant).max_active_sequences
            active = sum(owner == tenant for owner, _, _ in self.active.values())
            if self.line[tenant] and (limit is None or active < limit):
                heads[self.line[tenant][0][0]] = self.finish_of(tenant)
        return heads

    def charge(self, request: RequestId) -> None:
        tenant = next(tenant for tenant in NAMES if self.line[tenant] and self.line[tenant][0][0] == request)
        _, cost = self.line[tenant].pop(0)
        self.global_time = max(self.global_time, self.time[tenant])
        self.active[request] = (tenant, cost, self.policy(tenant).weight)
        self.time[tenant] += cost / self.policy(tenant).weight

    def settle(self, request: RequestId, used: float) -> str:
        tenant, cost, weight = self.active.pop(request)
        self.time[tenant] -= (cost - used) / weight
        return tenant
