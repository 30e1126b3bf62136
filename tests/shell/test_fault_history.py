"""The history on a real disk: it survives processes, power, other versions, other writers and a full disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from calculet_trio.core.events import FaultReason
from calculet_trio.core.fault_record import FaultRecord, Quarantine
from calculet_trio.core.jobs import EngineId
from calculet_trio.shell import durable_file
from calculet_trio.shell.fault_history import SET_ASIDE_MAX, FaultHistory, read_memory, set_aside_files

NOW = 1_800_000_000.0
LOST = FaultRecord(
    happened_unix_s=NOW,
    reason=FaultReason.UNKNOWN_DMA,
    engine=EngineId.PONG,
    quarantine=Quarantine(jobs=1, lanes=2, buffers=3),
    next_step="restart",
)


class Clock:
    def __init__(self, now_s=NOW):
        self.now_s = now_s

    def __call__(self):
        return self.now_s


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "faults" / "host-m.json"


def opened(path, clock=None):
    return FaultHistory(path, clock=clock or Clock())


def again(history, path, clock=None):
    """As the next process finds it."""
    history.close()
    return opened(path, clock)


def test_a_first_start_knows_nothing_and_needs_no_proof(path):
    history = opened(path)
    assert not history.must_be_quiet
    assert history.reset_ages_s() == ()
    assert history.notes == ()
    history.begin()
    assert path.exists()


def test_a_budget_survives_a_restart(path):
    clock = Clock()
    history = opened(path, clock)
    history.begin()
    history.reset_begun()
    clock.now_s += 60
    history.reset_begun()
    history.reset_ended(succeeded=False, took_s=2.5)
    history.give_back()
    clock.now_s += 30
    later = again(history, path, clock)
    assert later.reset_ages_s() == (90.0, 30.0)
    assert [reset.succeeded for reset in later.memory.resets] == [None, False]
    assert not later.must_be_quiet


def test_a_clock_that_went_backwards_leaves_the_budget_used(path):
    history = opened(path)
    history.reset_begun()
    earlier = Clock(NOW - 1e6)
    later = again(history, path, earlier)
    assert later.reset_ages_s() == (0.0,)
    earlier.now_s += 601
    assert later.reset_ages_s() == ()


def test_a_device_that_was_left_behind_must_be_shown_quiet_until_it_was(path):
    history = opened(path)
    history.begin()
    history.leave_behind(LOST)
    for _ in range(2):  # the second: the first could not show it, and ended
        history = again(history, path)
        assert history.must_be_quiet
        assert history.why_quiet == "the process before left because of a fault: unknown_dma"
        history.give_back()
    history.begin()
    assert not history.must_be_quiet
    history.give_back()
    later = again(history, path)
    assert not later.must_be_quiet
    assert later.memory.faults == (LOST,)
    assert later.memory.restarts == 1


def test_a_process_that_was_killed_has_not_given_the_device_back(path):
    program = (
        "import sys, pathlib; from calculet_trio.shell.fault_history import FaultHistory\n"
        "history = FaultHistory(pathlib.Path(sys.argv[1])); history.begin(); history.reset_begun()\n"
        "print('begun', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        shared = FaultHistory(path)
        assert shared.notes == ("another process keeps this fault history",)
        shared.reset_begun()
        process.send_signal(signal.SIGKILL)
    later = FaultHistory(path)
    assert later.notes == ()
    assert later.must_be_quiet
    assert later.why_quiet == "the process before ended without giving the device back"
    assert len(later.reset_ages_s()) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\x00" * 100,
        b'{"schema": "calculet-faults/v2"}',
        b'{"schema": "calculet-evidence/v1"}',
        b'{"schema": "calculet-faults/v1", "colour": 1}',
        b'{"schema": "calculet-faults/v1", "restarts": -1}',
        b'{"schema": "calculet-faults/v1", "resets": [{"began_unix_s": 1e400}]}',
        b'{"schema": "calculet-faults/v1", "resets": [{"began_unix_s": -5}]}',
        b'{"schema": "calculet-faults/v1", "faults": [{"happened_unix_s": 1, "reason": "tuesday"}]}',
        b"[" * 100_000,
        b'"' + b"x" * 5_000_000 + b'"',
        json.dumps({"schema": "calculet-faults/v1", "resets": [{"began_unix_s": 1.0}] * 129}).encode(),
    ],
)
def test_what_cannot_be_read_is_set_aside_and_reported(path, content):
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    history = opened(path)
    assert history.notes == ("the fault history could not be read and was set aside",)
    assert history.must_be_quiet
    assert history.why_quiet == "the fault history could not be read"
    assert [aside.read_bytes() for aside in set_aside_files(path)] == [content]
    history.begin()
    assert read_memory(path).holding is not None


def test_few_are_kept_aside(path):
    path.parent.mkdir(parents=True)
    for number in range(SET_ASIDE_MAX + 3):
        path.write_text("no")
        opened(path, Clock(NOW + number)).close()
    assert [aside.suffix for aside in set_aside_files(path)] == [
        f".set-aside-{int(NOW) + number}" for number in range(3, SET_ASIDE_MAX + 3)
    ]


def test_a_directory_in_its_place_is_no_reason_not_to_start(path):
    path.mkdir(parents=True)
    history = opened(path)
    history.begin()
    assert read_memory(path).holding is not None


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_file_as_it_was(path, step, monkeypatch):
    history = opened(path)
    history.begin()
    before = path.read_bytes()

    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((os, "fsync") if step == "fsync" else (durable_file.Path, "replace")), full)
    history.reset_begun()
    history.reset_begun()
    assert path.read_bytes() == before
    assert sorted(each.name for each in path.parent.iterdir()) == ["host-m.json", "host-m.lock"]
    assert history.notes == ("the fault history cannot be written",)
    assert len(history.reset_ages_s()) == 2, "this process still counts"


def test_a_state_directory_that_cannot_be_made_is_reported(tmp_path):
    (tmp_path / "state").write_text("a file")
    history = opened(tmp_path / "state" / "host-m.json")
    assert history.notes == ("the fault history cannot be written",)
    history.begin()
    history.leave_behind(LOST)
    assert history.memory.restarts == 1


def test_what_stands_on_a_disk_that_became_read_only_holds_all_the_same(path, monkeypatch):
    history = opened(path)
    history.begin()
    history.reset_begun()
    history.leave_behind(LOST)
    history.close()
    before = path.read_bytes()
    real = os.open

    def read_only(name, flags, *rest, **named):
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(30, "Read-only file system")
        return real(name, flags, *rest, **named)

    monkeypatch.setattr(os, "open", read_only)
    history = opened(path)
    assert history.notes == ("the fault history cannot be written",)
    assert (len(history.reset_ages_s()), history.must_be_quiet) == (1, True)
    assert history.why_quiet == "the process before left because of a fault: unknown_dma"
    history.begin()
    assert not history.must_be_quiet
    assert path.read_bytes() == before


def test_the_disk_has_file_and_name_before_it_says_so(path, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda number: (synced.append(str(Path(f"/proc/self/fd/{number}").readlink())), fsync(number))
    )
    history = opened(path)
    history.begin()
    assert synced == [str(path.with_name(f".{path.name}.new")), str(path.parent)]
    assert path.parent.stat().st_mode & 0o077 == 0


def test_without_a_path_it_remembers_for_this_process():
    history = FaultHistory()
    history.begin()
    history.reset_begun()
    history.fault_happened(LOST)
    assert len(history.reset_ages_s()) == 1
    assert history.memory.faults == (LOST,)
