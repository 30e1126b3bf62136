"""Deadlines of live requests, earliest first.

Source: SPEC section 4, 6.
"""

from __future__ import annotations

import heapq

from calculet_trio.core.registry import RequestRegistry
from calculet_trio.core.request import Request


class Deadlines:
    """A heap that forgets requests lazily and never holds more than twice the live ones (plus a floor)."""

    _FLOOR = 64

    def __init__(self, registry: RequestRegistry) -> None:
        self._registry = registry
        self._heap: list[tuple[float, int, Request]] = []

    def watch(self, request: Request) -> None:
        if len(self._heap) >= 2 * len(self._registry) + self._FLOOR:
            self._heap = [entry for entry in self._heap if not entry[2].is_terminal]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (request.deadline_s, request.id, request))

    def next_s(self) -> float | None:
        """The earliest deadline of a live request, monotonic."""
        while self._heap and self._heap[0][2].is_terminal:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_expired(self, now: float) -> Request | None:
        """A live request whose deadline has passed, once; None if there is none."""
        next_s = self.next_s()
        if next_s is None or next_s > now:
            return None
        return heapq.heappop(self._heap)[2]
