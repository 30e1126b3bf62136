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
    cached_tokens: int


@attrs.frozen
class Lost:
    """The choice was refused or failed; nothing more comes of it."""

    index: int
    error: BaseException


@attrs.frozen
class Silence:
    """All choices are admitted, and none has said anything for so long that the client should hear of us."""


Event = Admitted | Piece | Ended | Lost | Silence
Said = Piece | Ended | Silence


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
        self._heard_s = trio.current_time()

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
            self._heard_s = trio.current_time()

    async def next(self) -> Said | None:
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

    def next_nowait(self) -> Said | None:
        """What has been said already; None if nothing is there. Raises as `next` does."""
        if self._early:
            return self._taken(self._early.popleft())
        try:
            return self._taken(self._events.receive_nowait())
        except trio.WouldBlock:
            return None

    async def break_silence(self, events: trio.MemorySendChannel[Event], after_s: float) -> None:
        """Say `Silence` whenever so much time has passed without anything else; a timer for each event costs more."""
        while True:
            await trio.sleep_until(self._heard_s + after_s)
            now_s = trio.current_time()
            if now_s >= self._heard_s + after_s:
                self._heard_s = now_s
                if not self._waiting and not self._events.statistics().current_buffer_used:
                    events.send_nowait(Silence())

    def _taken(self, event: Event) -> Said:
        if isinstance(event, Lost):
            raise event.error
        assert not isinstance(event, Admitted), "all were admitted before"
        self._running -= isinstance(event, Ended)
        self._heard_s = trio.current_time()
        return event


@asynccontextmanager
async def running(
    service: Service, requests: Sequence[InferenceRequest], *, silence_s: float | None = None
) -> AsyncIterator[Choices]:
    """Open every request, and read each as its output comes. Leaving gives up those that have not ended.

    Args:
        service: where they are opened.
        requests: one for each choice.
        silence_s: after so long without a word `Silence` is said; None for never.
    """
    send, receive = trio.open_memory_channel[Event](UNREAD_OUTPUTS)
    async with send, receive, trio.open_nursery() as nursery:
        for index, request in enumerate(requests):
            nursery.start_soon(_run, service, request, index, send)
        choices = Choices(receive, len(requests))
        if silence_s is not None:
            nursery.start_soon(choices.break_silence, send, silence_s)
        yield choices
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
    await events.send(Ended(index, handle.ending, handle.timings, handle.prompt_tokens, handle.cached_tokens))
