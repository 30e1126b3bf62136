"""Clients of a server's completion streams that note when each event came, and cost little themselves."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import attrs
import trio

PIECE = b"data: {"
END = b"data: [DONE]"
READ_BYTES = 65_536
NEVER = float("inf")


@attrs.define
class Told:
    """What one stream said.

    Args:
        asked_s: when the request's last byte was sent, on the clock that all processes share.
        events_s: when each event came; the end mark is none.
        status: of the reply; 0 where there was none.
        ended: whether its end mark came.
        faults: events that tell of an error.
    """

    asked_s: float = 0.0
    events_s: list[float] = attrs.field(factory=list)
    status: int = 0
    ended: bool = False
    faults: int = 0


def request(path: str, body: dict[str, Any]) -> bytes:
    """The bytes of a POST."""
    raw = json.dumps(body, ensure_ascii=False).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw


async def stream(
    port: int,
    asking: bytes,
    *,
    told: Told | None = None,
    events_max: float = NEVER,
    on_event: Callable[[], None] = lambda: None,
) -> Told:
    """Ask, and read until the end mark, or until the server closes, or until there were enough events.

    **Cancellation**: leaves with a reset; ``told`` has what came so far.
    """
    told = Told() if told is None else told
    connection = await trio.open_tcp_stream("127.0.0.1", port)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    async with connection:
        await connection.send_all(asking)
        told.asked_s = time.perf_counter()
        tail = b""
        while not told.ended and len(told.events_s) < events_max:
            try:
                data = await connection.receive_some(READ_BYTES)
            except trio.BrokenResourceError:
                break
            if not data:
                break
            now_s = time.perf_counter()
            tail = take(tail + data, told, now_s, on_event)
    return told


def take(data: bytes, told: Told, now_s: float, on_event: Callable[[], None]) -> bytes:
    """Count what is whole; what may be the beginning of a mark is given back."""
    whole, _, tail = data.rpartition(b"\n")
    if told.status == 0 and whole:
        told.status = int(whole[9:12])
    for _ in range(whole.count(PIECE)):
        told.events_s.append(now_s)
        on_event()
    told.faults += whole.count(b'data: {"error"')
    told.ended |= END in whole
    return tail


async def crowd(port: int, askings: list[bytes], *, events_max: float = NEVER) -> list[Told]:
    """All of them at the same time."""
    heard = [Told() for _ in askings]
    async with trio.open_nursery() as nursery:
        for asking, told in zip(askings, heard, strict=True):
            nursery.start_soon(_one, port, asking, told, events_max)
    return heard


async def _one(port: int, asking: bytes, told: Told, events_max: float) -> None:
    await stream(port, asking, told=told, events_max=events_max)
