"""StreamWriter: what one request's client is still to be given, between the loop and the HTTP handler.

The loop writes and never waits; the handler reads. What a reader that does not read may leave lying here is
bounded in bytes; beyond that the request is given up, and its lane with it.

Source: SPEC section 3 (S §3 ``StreamWriter``, §4); API.md "Conventions".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from calculet_trio.core.effects import Admit, Drop, Fail, Finish, Place, RefusalKind, Refuse
from calculet_trio.errors import (
    CalculetError,
    CapacityExceeded,
    ContextLengthExceeded,
    GenerationFailed,
    InvalidRequest,
    RequestRefused,
    ServiceUnavailable,
)
from calculet_trio.ids import RequestId
from calculet_trio.shell.bell import Bell
from calculet_trio.shell.service import Ending, Timings
from calculet_trio.text.params import Output

Item = Place | Refuse | Admit | Output | Finish | Fail | Drop

_ENDS = (Refuse, Finish, Fail, Drop)
_OUTPUT_BYTES = 64
"""What an output weighs beside its text, so that tokens without text count too."""


class StreamWriter:
    """One request's stream, and the `calculet_trio.shell.service.RequestHandle` its handler holds.

    Args:
        request: whose it is.
        backlog_bytes_max: unread output beyond which ``overflow`` is called, once.
        overflow: gives the request up.
    """

    def __init__(self, request: RequestId, *, backlog_bytes_max: int, overflow: Callable[[RequestId], None]) -> None:
        self.request = request
        self._items: deque[Item] = deque()
        self._written = Bell()
        self._backlog_bytes = 0
        self._backlog_bytes_max = backlog_bytes_max
        self._overflow = overflow
        self._overflowed = False
        self._closed = False
        self._ending: Ending | None = None
        self._admitted: Admit | None = None
        self._opened_s = trio.current_time()
        self._admitted_s = self._first_s = self._last_s = self._opened_s
        self._predicted_tokens = 0

    # ---- written by the dispatcher --------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether its end has been written; nothing may follow it."""
        return self._closed

    def write(self, item: Item) -> None:
        """Append without waiting."""
        assert not self._closed, "a stream is closed once"
        self._closed = isinstance(item, _ENDS)
        self._items.append(item)
        self._written.ring()
        if isinstance(item, Output):
            self._backlog_bytes += _weight(item)
            if self._backlog_bytes > self._backlog_bytes_max and not self._overflowed:
                self._overflowed = True
                self._overflow(self.request)

    def count_token(self) -> None:
        """A token was sampled for this request, whether or not it shows text."""
        self._last_s = trio.current_time()
        if self._predicted_tokens == 0:
            self._first_s = self._last_s
        self._predicted_tokens += 1

    # ---- read by the handler --------------------------------------------------------------------

    async def placed(self) -> Place:
        """Wait for a waiting place, and for a model.

        Raises:
            calculet_trio.errors.RequestRefused: there is none.
        """
        item = await self._next()
        if not isinstance(item, Place):
            raise _error_of(item)
        return item

    async def admitted(self) -> Place | None:
        """Wait for a lane; or for a place with another model, which is returned: the prompt is to be made for it.

        Raises:
            calculet_trio.errors.InvalidRequest: the prompt does not fit.
            calculet_trio.errors.RequestRefused: full, draining, failed, or expired in the queue.
        """
        item = await self._next()
        if isinstance(item, Place):
            return item
        if not isinstance(item, Admit):
            raise _error_of(item)
        self._admitted = item
        self._admitted_s = self._first_s = self._last_s = trio.current_time()
        return None

    @property
    def prompt_tokens(self) -> int:
        assert self._admitted is not None
        return self._admitted.prompt_tokens

    @property
    def cached_tokens(self) -> int:
        assert self._admitted is not None
        return self._admitted.cached_tokens

    @property
    def ending(self) -> Ending:
        assert self._ending is not None, "the reply has not ended"
        return self._ending

    @property
    def timings(self) -> Timings:
        return Timings(
            queue_s=self._admitted_s - self._opened_s,
            prompt_s=self._first_s - self._admitted_s,
            predicted_s=self._last_s - self._first_s,
            predicted_tokens=self._predicted_tokens,
        )

    def __aiter__(self) -> StreamWriter:
        return self

    async def __anext__(self) -> Output:
        if self._ending is not None:
            raise StopAsyncIteration
        item = await self._next()
        if isinstance(item, Output):
            return item
        if isinstance(item, Finish):
            self._ending = Ending(item.reason, item.truncated_by)
            raise StopAsyncIteration
        raise _error_of(item)

    async def _next(self) -> Item:
        while not self._items:
            await self._written.wait()
        item = self._items.popleft()
        if isinstance(item, Output):
            self._backlog_bytes -= _weight(item)
        return item


def _weight(output: Output) -> int:
    weight = _OUTPUT_BYTES + len(output.text) * 4
    for entry in output.logprobs:
        weight += _OUTPUT_BYTES * (1 + len(entry.top))
    return weight


def _error_of(item: Item) -> CalculetError:
    """The error that an ending other than `Finish` stands for."""
    match item:
        case Refuse(_, refusal):
            if refusal.prompt_tokens is not None and refusal.limit_tokens is not None:
                return ContextLengthExceeded(prompt_tokens=refusal.prompt_tokens, limit_tokens=refusal.limit_tokens)
            if refusal.kind is RefusalKind.INVALID:
                return InvalidRequest(refusal.message, code=refusal.code)
            kind: type[RequestRefused] = (
                CapacityExceeded if refusal.kind is RefusalKind.CAPACITY else ServiceUnavailable
            )
            return kind(refusal.message, code=refusal.code, retry_after_s=refusal.retry_after_s)
        case Fail(_, reason, retryable):
            return GenerationFailed(reason.value, retryable=retryable)
        case Drop():
            return GenerationFailed("cancelled", retryable=False)
        case _:
            raise AssertionError(f"{type(item).__name__} out of order")
