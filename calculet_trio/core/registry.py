"""RequestRegistry: every live request, each of which enters a terminal state once and then leaves.

Source: SPEC section 3 (S §4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from calculet_trio.core.request import REQUEST_TABLE, Request, RequestEvent
from calculet_trio.core.tenants import Tenants
from calculet_trio.ids import GenerationId, RequestId


class RequestRegistry:
    """Live requests by id, and the running totals that admission asks for; every operation is O(1)."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants
        self._requests: dict[RequestId, Request] = {}
        self._pinned: Counter[GenerationId] = Counter()
        self._waiting = 0
        self._waiting_prompt_tokens = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """A snapshot in order of arrival, so that requests may end while it is walked."""
        return iter(list(self._requests.values()))

    def create(
        self,
        request: RequestId,
        *,
        tenant: str,
        alias: str,
        generation: GenerationId,
        arrived_s: float,
        deadline_s: float,
        order_deadline_s: float,
    ) -> Request:
        assert request not in self._requests, "request ids are never reused"
        entry = Request(
            request,
            tenant=tenant,
            alias=alias,
            generation=generation,
            arrived_s=arrived_s,
            deadline_s=deadline_s,
            order_deadline_s=order_deadline_s,
        )
        self._requests[request] = entry
        self._waiting += 1
        self._pinned[generation] += 1
        return entry

    def get(self, request: RequestId) -> Request | None:
        """The live request, or None for one that has ended or was never here."""
        return self._requests.get(request)

    def move(self, request: Request, event: RequestEvent) -> None:
        """Advance the request by its table, keep the totals, and let it go once it is terminal.

        Steps from and to lanes and jobs change none of that: there `Request.advance` alone is enough.
        """
        waited = request.is_waiting
        state = request.advance(event)
        if waited and not request.is_waiting:
            self._waiting -= 1
            self._count_prompt_no_more(request)
        if state in REQUEST_TABLE.terminal:
            del self._requests[request.id]
            self._unpin(request)

    def pin(self, request: Request, generation: GenerationId) -> None:
        """A waiting request is to be served by that generation, or (`NO_GENERATION`) by none yet."""
        assert request.is_waiting
        self._unpin(request)
        request.generation = generation
        self._pinned[generation] += 1

    def pinned(self, generation: GenerationId) -> int:
        """How many live requests it serves, or is to serve."""
        return self._pinned[generation]

    def _unpin(self, request: Request) -> None:
        self._pinned[request.generation] -= 1
        if not self._pinned[request.generation]:
            del self._pinned[request.generation]

    def price(self, request: Request, *, prompt: tuple[int, ...], max_new_tokens: int) -> None:
        """A waiting request's prompt is known: its tokens count as waiting from now on."""
        assert request.is_waiting
        assert not request.prompt
        request.prompt = prompt
        request.max_new_tokens = max_new_tokens
        self._waiting_prompt_tokens += len(prompt)
        self._tenants.of(request.tenant).waiting_prompt_tokens += len(prompt)

    def unprice(self, request: Request) -> None:
        """The waiting request's prompt is to be made anew for another model; one that has none yet is no error."""
        assert request.is_waiting
        self._count_prompt_no_more(request)
        request.prompt = ()
        request.max_new_tokens = 0

    def _count_prompt_no_more(self, request: Request) -> None:
        self._waiting_prompt_tokens -= len(request.prompt)
        self._tenants.of(request.tenant).waiting_prompt_tokens -= len(request.prompt)

    @property
    def waiting(self) -> int:
        return self._waiting

    @property
    def waiting_prompt_tokens(self) -> int:
        return self._waiting_prompt_tokens
