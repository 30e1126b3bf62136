"""WaitingRoom: requests whose model is not there yet, by its alias, in order of arrival.

Source: SPEC section 8 (a swap under way: WaitingModel until the deadline).
"""

from __future__ import annotations

from collections.abc import Iterator

from calculet_trio.core.request import Request
from calculet_trio.ids import RequestId


class WaitingRoom:
    """Those that wait for a model; every operation but `leave_all` is O(1)."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[RequestId, Request]] = {}

    def enter(self, request: Request) -> None:
        self._waiting.setdefault(request.alias, {})[request.id] = request

    def discard(self, request: Request) -> None:
        """It ended; one that never waited here is no error."""
        here = self._waiting.get(request.alias)
        if here is not None and here.pop(request.id, None) is not None and not here:
            del self._waiting[request.alias]

    def leave_all(self, alias: str) -> list[Request]:
        """Everybody who waited for it, the first first."""
        return list(self._waiting.pop(alias, {}).values())

    def aliases(self) -> Iterator[str]:
        """Those that are waited for, in the order in which somebody began to."""
        return iter(self._waiting)
