"""Replies of ids: whole, and never at the expense of everybody else."""

from __future__ import annotations

import json

import pytest
import trio

from calculet_trio.api.json_reply import IDS_AT_ONCE, ids_reply


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
