"""What the admin plane does by itself: old debug dumps go, though nobody asks for another."""

from __future__ import annotations

import os
import time

import trio

from calculet_trio.cli.wiring_admin import let_old_dumps_go
from calculet_trio.observe import dumps
from calculet_trio.observe.dumps import DumpDirectory


async def test_a_dump_that_is_too_old_goes_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(dumps, "DUMPS_MAX", 3)
    directory = DumpDirectory(tmp_path)
    old, young = directory.write({"n": 1}), directory.write({"n": 2})
    long_ago_s = time.time() - dumps.AGE_MAX_S - 60
    os.utime(old, (long_ago_s, long_ago_s))
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(let_old_dumps_go, directory)
            while old.exists():  # noqa: ASYNC110 - a file tells nobody that it goes
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    assert list(tmp_path.iterdir()) == [young]


async def test_a_directory_that_is_not_there_is_none_to_clean(tmp_path):
    with trio.move_on_after(0.2):
        await let_old_dumps_go(DumpDirectory(tmp_path / "dumps"))
    assert not (tmp_path / "dumps").exists()
