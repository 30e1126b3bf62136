"""TenantQueue: requests that wait for a lane, in weighted fair order.

The rule, and its bound
-----------------------
A request that becomes active is charged at once for all it may use, ``cost = prompt + q * granted`` with
``q = decode_cost_weight``; when it ends, its tenant is settled to what it really used. Always served next is
the tenant whose head has the least ``virtual_finish = tenant_time + cost / weight``, where a tenant that had
nothing waiting starts from ``max(tenant_time, global_time)``.

Let two tenants f and g have requests waiting throughout an interval, neither at a limit of its own, with
weights that do not change; let ``c_f`` and ``c_g`` be the largest cost of a request of each, and let all tenants
together have at most ``B`` requests active (lanes). Claim: from any instant of the interval to any later one,
the work *served* to the two differs, by weight, by no more than

    |S_f/w_f - S_g/w_g|  <=  (B + 1) * (c_f/w_f + c_g/w_g)

Proof. Write ``V`` for a tenant's virtual time, ``G`` for the global one, ``U`` for what a tenant was charged and
has not used yet, by weight; ``0 <= U <= B c/w``. Let ``V' = V - U``. Charging adds the same to ``V`` and ``U``,
settling takes the same from both, work lowers ``U`` alone: so while a tenant has requests waiting (its ``V`` is
not lifted) ``V'`` grows by exactly ``S/w``. It stays in a band around ``G``:

- ``V' <= V <= G + c/w``. A request starts at its tenant's ``V``, which ``G`` then is not behind, and adds no more
  than ``c/w``; lifting goes to ``G``; nothing else raises ``V``.
- ``V' >= G - B c/w`` while the tenant waits. When it began to, ``V >= G``, and ``U <= B c/w``. Later ``G`` grows
  only by the choice of some head. If that is the tenant's own, ``G`` becomes its ``V`` of just before, when at
  most ``B - 1`` of its requests were active. If it is another's, that head's finish, and the more its start,
  ``G``, was no more than ``V + c/w``, and it took a lane, so that again ``V' >= V - (B - 1) c/w``.

So at every instant ``V'_f - V'_g`` lies between ``-(c_g/w_g + B c_f/w_f)`` and ``c_f/w_f + B c_g/w_g``, and from one
instant to another it changes by no more than the claim. Prefill that cannot be preempted does not enter: it
delays work, it makes none.

VTC (Sheng et al., OSDI'24) is ``2 max(w_p L_input, w_q M)`` for equal weights, ``M`` being the tokens of a
whole batch, since it charges token by token. With ``M = B * output`` both are of the order of ``B`` replies;
ours pays ``B + 1`` times for the prompt as well, because it charges ahead.

Source: SPEC section 4 (S §5.3); start-time fair queueing (Goyal et al., 1996) for the global time.
"""

from __future__ import annotations

import heapq

from calculet_trio.core.request import Request
from calculet_trio.core.tenants import Tenant, Tenants
from calculet_trio.ids import GenerationId, RequestId


class TenantQueue:
    """A weighted fair queue over tenants; FIFO within a tenant. All operations are O(log tenants), amortized.

    The global time is the largest virtual start that was served. A tenant that comes back with nothing
    waiting is lifted to it: idle time banks no credit. A tenant at its own limit of active sequences is passed
    over and loses nothing. Requests whose model is not ready are set aside, out of everybody's way.
    """

    _FLOOR = 64

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants
        self._heap: list[tuple[float, int, Tenant]] = []
        self._tickets = 0
        self._global_time = 0.0
        self._waiting = 0
        self._waiting_weight = 0.0
        self._aside: dict[RequestId, Request] = {}

    def __len__(self) -> int:
        return self._waiting

    @property
    def global_time(self) -> float:
        return self._global_time

    def push(self, request: Request, *, cost: float) -> None:
        """Queue a priced request behind what its tenant asked for before."""
        assert cost > 0
        request.cost = cost
        self._enter(request, front=False)

    def peek(self) -> Request | None:
        """The request whose turn it is, of those whose tenants may have one more."""
        while self._heap:
            _, ticket, tenant = self._heap[0]
            if ticket == tenant.ticket:
                return next(iter(tenant.waiting.values()))
            heapq.heappop(self._heap)
        return None

    def pop(self) -> Request:
        """Remove what `peek` shows and charge its tenant for all it may use."""
        _, _, tenant = heapq.heappop(self._heap)
        _, request = tenant.waiting.popitem(last=False)
        self._left(tenant)
        request.weight = tenant.policy.weight
        request.virtual_start = tenant.virtual_time
        request.virtual_finish = request.virtual_start + request.cost / request.weight
        tenant.virtual_time = request.virtual_finish
        tenant.active += 1
        self._global_time = max(self._global_time, request.virtual_start)
        self._rank(tenant)
        return request

    def put_back(self, request: Request) -> None:
        """A popped request waits again, in front of its tenant's others; nothing is charged meanwhile."""
        self.settle(request, used=0.0)
        self._enter(request, front=True)

    def set_aside(self, request: Request) -> None:
        """The request's model is not ready: it keeps its place before its tenant's others, and holds up nobody."""
        self.discard(request)
        self._aside[request.id] = request

    def bring_back(self, generation: GenerationId) -> None:
        """The generation is ready again: its requests wait in front of their tenants' others, in their old order."""
        back = [request for request in self._aside.values() if request.generation == generation]
        for request in reversed(back):
            del self._aside[request.id]
            self._enter(request, front=True)

    def discard(self, request: Request) -> None:
        """A request ended while it waited; one that never queued is no error."""
        self._aside.pop(request.id, None)
        tenant = self._tenants.of(request.tenant)
        if request.id not in tenant.waiting:
            return
        was_head = next(iter(tenant.waiting)) == request.id
        del tenant.waiting[request.id]
        self._left(tenant)
        if was_head:
            self._rank(tenant)

    def settle(self, request: Request, *, used: float) -> None:
        """A popped request ended: give its tenant back what it was charged and did not use."""
        tenant = self._tenants.of(request.tenant)
        tenant.virtual_time -= (request.cost - used) / request.weight
        tenant.active -= 1
        request.weight = 0.0
        self._rank(tenant)

    def reweigh(self) -> None:
        """Policies changed: every waiting tenant's place is worked out anew."""
        self._waiting_weight = 0.0
        for tenant in self._tenants:
            if tenant.waiting:
                self._waiting_weight += tenant.policy.weight
            self._rank(tenant)

    def ahead_of(self, tenant: Tenant) -> float:
        """About how many waiting requests will be served before the tenant's next one to arrive.

        Its own all are; of the others' as many as their weights buy meanwhile, but no more than there are.
        """
        own = len(tenant.waiting) + 1
        others_weight = self._waiting_weight - (tenant.policy.weight if tenant.waiting else 0.0)
        others = self._waiting - len(tenant.waiting)
        return own - 1 + min(float(others), own * others_weight / tenant.policy.weight)

    def _enter(self, request: Request, *, front: bool) -> None:
        tenant = self._tenants.of(request.tenant)
        if not tenant.waiting:
            self._waiting_weight += tenant.policy.weight
        self._waiting += 1
        tenant.waiting[request.id] = request
        if front:
            tenant.waiting.move_to_end(request.id, last=False)
        is_alone = len(tenant.waiting) == 1
        if is_alone:
            tenant.virtual_time = max(tenant.virtual_time, self._global_time)
        if front or is_alone:
            self._rank(tenant)

    def _left(self, tenant: Tenant) -> None:
        self._waiting -= 1
        if not tenant.waiting:
            self._waiting_weight -= tenant.policy.weight

    def _rank(self, tenant: Tenant) -> None:
        """Give the tenant a new place by its head; the entry it had is void."""
        self._tickets += 1
        tenant.ticket = self._tickets
        if not tenant.waiting or not tenant.admits_more():
            return
        if len(self._heap) > 2 * len(self._tenants) + self._FLOOR:
            self._heap = [entry for entry in self._heap if entry[1] == entry[2].ticket]
            heapq.heapify(self._heap)
        head = next(iter(tenant.waiting.values()))
        virtual_finish = tenant.virtual_time + head.cost / tenant.policy.weight
        heapq.heappush(self._heap, (virtual_finish, tenant.ticket, tenant))
