"""A client that leaves ends its request at once, and nobody else's. Reports B44–B46, B49."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

import pytest
import trio

from tests.api.conftest import Server
from tests.api.fake_service import endless, gated, said
from tests.api.wire import Wire, post


def chat(*, stream: bool) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    return post("/v1/chat/completions", body)


async def fin(wire: Wire) -> None:
    await wire.aclose()


async def rst(wire: Wire) -> None:
    wire.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.stream.socket.close()


async def half_close(wire: Wire) -> None:
    """CHOICES.md: B49."""
    await wire.stream.send_eof()


WAYS = [fin, rst, half_close]
Leave = Callable[[Wire], object]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("leave", WAYS)
async def test_before_the_first_token(server: Server, leave: Leave, stream: bool) -> None:
    script, _opener = gated("never")
    server.service.script = lambda request: script
    wire = await server.connect()
    await wire.stream.send_all(chat(stream=stream))
    await server.service.until_active(1)
    await leave(wire)  # type: ignore[misc]
    await server.service.until_active(0)
    assert server.service.tokens_run == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("leave", WAYS)
async def test_while_it_waits_to_be_admitted(server: Server, leave: Leave, stream: bool) -> None:
    server.service.admission = trio.Event()
    wire = await server.connect()
    await wire.stream.send_all(chat(stream=stream))
    await server.service.until_active(1)
    await leave(wire)  # type: ignore[misc]
    await server.service.until_active(0)


@pytest.mark.parametrize("leave", WAYS)
async def test_with_a_second_request_already_sent(server: Server, leave: Leave) -> None:
    """h11 reads no further until the first is answered; we must."""
    script, _opener = gated("never")
    server.service.script = lambda request: script
    wire = await server.connect()
    await wire.stream.send_all(chat(stream=False) + chat(stream=False))
    await server.service.until_active(1)
    await leave(wire)  # type: ignore[misc]
    await server.service.until_active(0)
    assert len(server.service.requests) == 1


@pytest.mark.parametrize("leave", WAYS)
async def test_in_mid_stream(server: Server, leave: Leave) -> None:
    script, opener = gated("a", "b", "never")
    server.service.script = lambda request: script
    wire = await server.connect()
    await wire.stream.send_all(chat(stream=True))
    for text in "ab":
        opener.send_nowait(None)
        await wire.read_until(f'"{text}"'.encode())
    await leave(wire)  # type: ignore[misc]
    await server.service.until_active(0)
    assert server.service.tokens_run == 2


async def test_while_tokens_come_faster_than_they_are_read(server: Server) -> None:
    server.service.script = lambda request: endless("x" * 1000)
    wire = await server.connect()
    await wire.stream.send_all(chat(stream=True))
    await wire.read_until(b"xxx")
    await wire.aclose()
    await server.service.until_active(0)
    assert server.service.tokens_run < 100_000


async def test_all_of_several_choices_end(server: Server) -> None:
    script, _opener = gated("never")
    server.service.script = lambda request: script
    wire = await server.connect()
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "n": 5}
    await wire.stream.send_all(post("/v1/chat/completions", body))
    await server.service.until_active(5)
    await wire.aclose()
    await server.service.until_active(0)


async def test_another_stream_is_not_disturbed(server: Server) -> None:
    """Report B46."""
    scripts = [gated("a", "b", "c"), gated("never")]
    handed_out = iter(scripts)
    server.service.script = lambda request: next(handed_out)[0]
    stays, leaves = await server.connect(), await server.connect()
    await stays.stream.send_all(chat(stream=True))
    await server.service.until_active(1)
    await leaves.stream.send_all(chat(stream=True))
    await server.service.until_active(2)
    scripts[0][1].send_nowait(None)
    await stays.read_until(b'"a"')
    await leaves.aclose()
    await server.service.until_active(1)
    scripts[0][1].send_nowait(None)
    scripts[0][1].send_nowait(None)
    await stays.read_until(b"[DONE]")


async def test_a_request_on_a_new_connection_is_served_right_after(server: Server) -> None:
    """Report B45: three impatient tries of one body, then one that waits."""
    for _ in range(3):
        script, _opener = gated("never")
        server.service.script = lambda request, script=script: script  # type: ignore[misc]
        wire = await server.connect()
        await wire.stream.send_all(chat(stream=False))
        await server.service.until_active(1)
        await wire.aclose()
        await server.service.until_active(0)
    server.service.script = lambda request: said("ok")
    assert (await server.chat()).json()["choices"][0]["message"]["content"] == "ok"
