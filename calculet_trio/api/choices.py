"""The choices of one request, each a request of its own to the service, read side by side into one channel.

A client that asks for three choices is admitted when all three are. None may be left unread meanwhile: a choice
that holds a lane while the next waits for one would wait for ever.

Source: API.md "Conventions that clients rely on".
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import attrs
import structlog
import trio

from calculet_trio.api.errors import is_defect, unwrapped
from calculet_trio.shell.service import Ending, InferenceRequest, RequestHandle, Service, Timings
from calculet_trio.text.params import Output

log = structlog.get_logger("api")

UNREAD_OUTPUTS: Final = 16
"""Outputs between a choice and its writer: enough to hide a slow write. Beyond it the service's own bound counts."""


@attrs.frozen
class Admitted:
    """The choice holds its lane."""

    index: int


@attrs.frozen
class Piece:
    """One output of the choice."""

    index: int
    output: Output


@attrs.frozen
class Ended:
    """The choice's reply is whole."""

    index: int
    ending: Ending
    timings: Timings
    prompt_tokens: int


@attrs.frozen
class Lost:
    """The choice was refused or failed; nothing more comes of it."""

    index: int
    error: BaseException


Event = Admitted | Piece | Ended | Lost


class Choices:
    """What a handler reads of its choices.

    Args:
        events: the channel all of them write to.
        size: how many there are.
    """

    def __init__(self, events: trio.MemoryReceiveChannel[Event], size: int) -> None:
        self._waiting = self._running = size
        self._events = events
        # What early choices say while later ones wait; no longer than their replies.
        self._early: deque[Piece | Ended] = deque()

    async def admitted(self) -> None:
        """Wait until every choice holds its lane.

        Raises:
            calculet_trio.errors.CalculetError: why the first of them does not.

        **Cancellation**: atomic; leaving `running` gives all up.
        """
        while self._waiting:
            event = await self._events.receive()
            match event:
                case Admitted():
                    self._waiting -= 1
                case Lost(_, error):
                    raise error
                case Piece() | Ended():
                    self._early.append(event)

    async def next(self) -> Piece | Ended | None:
        """What comes next of any of them; None once all have ended.

        Raises:
            calculet_trio.errors.CalculetError: one of them was lost.

        **Cancellation**: atomic; nothing that was said is lost.
        """
        await self.admitted()
        if self._early:
            event: Event = self._early.popleft()
        elif self._running:
            event = await self._events.receive()
        else:
            return None
        return self._taken(event)

    def next_nowait(self) -> Piece | Ended | None:
        """What has been said already; None if nothing is there. Raises as `next` does."""
        if self._early:
            return self._taken(self._early.popleft())
        try:
            return self._taken(self._events.receive_nowait())
        except trio.WouldBlock:
            return None

    def _taken(self, event: Event) -> Piece | Ended:
        if isinstance(event, Lost):
            raise event.error
        assert not isinstance(event, Admitted), "all were admitted before"
        self._running -= isinstance(event, Ended)
        return event


@asynccontextmanager
async def running(service: Service, requests: Sequence[InferenceRequest]) -> AsyncIterator[Choices]:
    """Open every request, and read each as its output comes. Leaving gives up those that have not ended."""
    send, receive = trio.open_memory_channel[Event](UNREAD_OUTPUTS)
    async with send, receive, trio.open_nursery() as nursery:
        for index, request in enumerate(requests):
            nursery.start_soon(_run, service, request, index, send)
        yield Choices(receive, len(requests))
        nursery.cancel_scope.cancel()


async def _run(service: Service, request: InferenceRequest, index: int, events: trio.MemorySendChannel[Event]) -> None:
    """One choice from its opening to its end. Errors are said, not raised: whoever reads the choices answers."""
    try:
        async with service.open(request) as handle:
            await events.send(Admitted(index))
            await _read(handle, index, events)
    except Exception as error:
        if is_defect(error):
            log.exception("choice_defect", index=index)
        await events.send(Lost(index, unwrapped(error)))


async def _read(handle: RequestHandle, index: int, events: trio.MemorySendChannel[Event]) -> None:
    outputs = aiter(handle)
    try:
        async for output in outputs:
            piece = Piece(index, output)
            try:
                events.send_nowait(piece)
            except trio.WouldBlock:  # only now is it worth a task switch
                await events.send(piece)
    finally:
        # A generator that is left at its yield must be closed here, not by the garbage collector.
        if (close := getattr(outputs, "aclose", None)) is not None:
            await close()
    await events.send(Ended(index, handle.ending, handle.timings, handle.prompt_tokens))
