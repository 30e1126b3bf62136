"""Server-sent events: framing, silence, and what a client hears of a fault after the headers.

Source: WHATWG HTML "Server-sent events"; API.md "Conventions that clients rely on"; reports B03, B39–B43.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import structlog
from quart import Response

from calculet_trio.api import strict_json
from calculet_trio.api.choices import Choices, Ended, Piece, Said, Silence
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


async def stream(choices: Choices, frames: Frames) -> Response:
    """The reply that tells ``choices`` as they come.

    Headers wait for the first output, so that a fault before it has its real status; but no longer than a
    silence may last, for clients and proxies that give up on a silent server.

    Raises:
        calculet_trio.errors.CalculetError: refused, or lost before anything was said.

    **Cancellation**: atomic.
    """
    await choices.admitted()
    return Response(_told(choices, frames, await choices.next()), headers=HEADERS)


async def _told(choices: Choices, frames: Frames, said: Said | None) -> AsyncIterator[bytes]:
    unsent = bytearray()
    try:
        while said is not None:
            while said is not None:
                unsent += KEEP_ALIVE if isinstance(said, Silence) else frames(said)
                said = choices.next_nowait() if len(unsent) < WRITE_BYTES else None
            if unsent:
                yield bytes(unsent)
                unsent.clear()
            said = await choices.next()
        yield frames(None)
    except Exception as error:  # after the headers an event is the only way to say so
        if is_defect(error):
            log.exception("stream_defect")
        yield bytes(unsent) + event(http_error(error).as_object())
