"""Debug dumps: private, named by us, and never more than their quota."""

from __future__ import annotations

import json
import os
import stat
import time

import pytest

from calculet_trio.errors import Unavailable
from calculet_trio.observe import dumps
from calculet_trio.observe.dumps import DumpDirectory


def test_a_dump_is_private_and_holds_what_it_was_given(tmp_path):
    path = DumpDirectory(tmp_path / "dumps").write({"versions": {"a": "1"}})
    assert json.loads(path.read_text()) == {"versions": {"a": "1"}}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_there_are_never_more_than_the_quota_and_the_oldest_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(dumps, "DUMPS_MAX", 3)
    directory = DumpDirectory(tmp_path)
    paths = [directory.write({"n": n}) for n in range(6)]
    assert sorted(tmp_path.iterdir()) == paths[3:]


def test_bytes_are_bounded_too(tmp_path, monkeypatch):
    monkeypatch.setattr(dumps, "DIRECTORY_BYTES_MAX", 250)
    directory = DumpDirectory(tmp_path)
    for _ in range(5):
        directory.write({"text": "x" * 80})
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 250
    monkeypatch.setattr(dumps, "DUMP_BYTES_MAX", 90)
    with pytest.raises(Unavailable, match="at most 90"):
        directory.write({"text": "x" * 80})


def test_what_is_too_old_goes_whatever_room_there_is(tmp_path):
    directory = DumpDirectory(tmp_path)
    old = directory.write({})
    long_ago_s = time.time() - dumps.AGE_MAX_S - 60
    os.utime(old, (long_ago_s, long_ago_s))
    young = directory.write({})
    assert list(tmp_path.iterdir()) == [young]


def test_files_of_others_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(dumps, "DUMPS_MAX", 1)
    (tmp_path / "notes.json").write_text("mine")
    directory = DumpDirectory(tmp_path)
    directory.write({})
    directory.write({})
    assert (tmp_path / "notes.json").read_text() == "mine"


def test_a_disk_that_does_not_take_it_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot be written"):
        DumpDirectory(tmp_path / "file").write({})
