"""Server-sent events: framing, silence, and what a client hears of a fault after the headers.

Source: WHATWG HTML "Server-sent events"; API.md "Conventions that clients rely on"; reports B03, B39–B43.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import structlog
import trio
from quart import Response

from calculet_trio.api import strict_json
from calculet_trio.api.choices import Choices, Ended, Piece
from calculet_trio.api.errors import http_error, is_defect

log = structlog.get_logger("api")

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"

HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",  # some clients fall back to Latin-1 without it
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would keep events back until its buffer is full
}

WRITE_BYTES: Final = 32 * 2**10
"""Events that have been said already go out in one write, up to about this much."""

Frames = Callable[[Piece | Ended | None], bytes]
"""The events that one thing said makes, none or several; of None: those that follow the last choice."""


def event(value: Any) -> bytes:
    """One event of one ``data:`` line."""
    return f"data: {strict_json.encode(value)}\n\n".encode()


async def stream(choices: Choices, frames: Frames, *, keep_alive_s: float) -> Response:
    """The reply that tells ``choices`` as they come.

    Headers wait for the first output, so that a fault before it has its real status; but no longer than
    ``keep_alive_s``, for clients and proxies that give up on a silent server.

    Raises:
        calculet_trio.errors.CalculetError: refused, or lost before anything was said.

    **Cancellation**: atomic.
    """
    await choices.admitted()
    first = None
    with trio.move_on_after(keep_alive_s):
        first = await choices.next()
    return Response(_told(choices, frames, first, keep_alive_s), headers=HEADERS)


async def _told(
    choices: Choices, frames: Frames, first: Piece | Ended | None, keep_alive_s: float
) -> AsyncIterator[bytes]:
    unsent = bytearray(KEEP_ALIVE if first is None else b"")
    try:
        said = first
        while True:
            while said is not None:
                unsent += frames(said)
                said = choices.next_nowait() if len(unsent) < WRITE_BYTES else None
            if unsent:
                yield bytes(unsent)
                unsent.clear()
            with trio.move_on_after(keep_alive_s) as silence:
                said = await choices.next()
            if silence.cancelled_caught:
                unsent += KEEP_ALIVE
            elif said is None:
                break
        yield frames(None)
    except Exception as error:  # after the headers an event is the only way to say so
        if is_defect(error):
            log.exception("stream_defect")
        yield bytes(unsent) + event(http_error(error).as_object())
