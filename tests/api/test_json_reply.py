"""Replies of ids: whole, and never at the expense of everybody else."""

from __future__ import annotations

import json
import socket

import pytest
import trio

from calculet_trio.api.json_reply import IDS_AT_ONCE, ids_reply
from tests.api.conftest import Server
from tests.api.wire import Wire, post


@pytest.mark.parametrize("count", [0, 1, IDS_AT_ONCE, IDS_AT_ONCE + 1, 3 * IDS_AT_ONCE - 1])
async def test_every_id_is_there(count: int) -> None:
    response = await ids_reply("tokens", range(count))
    assert response.content_type == "application/json; charset=utf-8"
    assert json.loads(await response.get_data()) == {"tokens": list(range(count))}


async def test_others_run_between_two_windows() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await ids_reply("tokens", range(50 * IDS_AT_ONCE))
        nursery.cancel_scope.cancel()
    assert turns > 40


async def test_a_slow_reader_gets_every_byte_in_order(server: Server) -> None:
    """More than the kernel takes at once: what is left is written as the reader makes room."""
    text = "".join(map(chr, range(32, 127))) * 10_000
    connection = trio.socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await connection.connect(("127.0.0.1", server.port))
    wire = Wire(trio.SocketStream(connection))
    answer = await wire.answer(post("/tokenize", {"content": text}))
    await wire.aclose()
    assert answer.json() == {"tokens": [ord(character) for character in text]}
