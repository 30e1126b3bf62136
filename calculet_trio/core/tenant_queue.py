"""TenantQueue: requests that wait for a lane, in weighted fair order.

Source: SPEC section 4 (S §5.3); start-time fair queueing for the global virtual time.
"""

from __future__ import annotations

import heapq

from calculet_trio.core.request import Request, RequestState


class TenantQueue:
    """A weighted fair queue over tenants; FIFO within a tenant. Every operation is O(log n), amortized.

    ``virtual_finish = max(tenant_virtual_time, global_virtual_time) + cost / weight``. The global time is
    the largest virtual start that was served, so that an idle tenant returns to the present and has no
    credit banked.

    Requests that ended while they waited are let go when they come up, or in one sweep when they could be
    the greater part: the heap never holds more than twice what waited at the last sweep, plus a floor.
    """

    _FLOOR = 64

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._tenant_time: dict[str, float] = {}
        self._global_time = 0.0
        self._arrivals = 0
        self._sweep_at = self._FLOOR

    def push(self, request: Request, *, cost: float, weight: float = 1.0) -> None:
        """Charge the tenant for the request and queue it behind what that tenant asked for before."""
        assert cost > 0
        assert weight > 0
        start = max(self._tenant_time.get(request.tenant, 0.0), self._global_time)
        request.virtual_start = start
        request.virtual_finish = self._tenant_time[request.tenant] = start + cost / weight
        self._put(request)

    def put_back(self, request: Request) -> None:
        """Queue a popped request again in its old place: it has been charged already."""
        self._put(request)

    def _put(self, request: Request) -> None:
        if len(self._heap) >= self._sweep_at:
            self._heap = [entry for entry in self._heap if _waits(entry[2])]
            heapq.heapify(self._heap)
            self._sweep_at = 2 * len(self._heap) + self._FLOOR
        self._arrivals += 1
        heapq.heappush(self._heap, (request.virtual_finish, self._arrivals, request))

    def peek(self) -> Request | None:
        """The request whose turn it is; those that were cancelled or expired meanwhile are let go."""
        while self._heap and not _waits(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def pop(self) -> Request:
        """Remove and return what `peek` shows."""
        _, _, request = heapq.heappop(self._heap)
        self._global_time = max(self._global_time, request.virtual_start)
        self._forget_caught_up_tenants()
        return request

    def _forget_caught_up_tenants(self) -> None:
        """Keep the table no larger than the tenants that still are ahead of the global time."""
        if len(self._tenant_time) > 2 * len(self._heap) + self._FLOOR:
            self._tenant_time = {t: time for t, time in self._tenant_time.items() if time > self._global_time}


def _waits(request: Request) -> bool:
    return request.state is RequestState.WAITING_ADMISSION
