"""FaultHistory: what is known of the device's faults and resets across restarts, in one small file.

    open ─▶ begin ─▶ reset_begun, reset_ended, fault_happened … ─▶ give_back   (in order)
                                                                └─▶ leave_behind (exit code 75)

A process that ends without either, killed or without power, leaves its ``begin`` in the file. Whoever finds that,
or finds a device left behind, must see it quiet before it configures anything. A file that cannot be
read is set aside under another name and reported, and the device is shown quiet as well; a disk that cannot be
written is reported, and what stands on it holds all the same. Neither keeps the service from starting.

Every method may block on the disk, and may be called from any thread.

Source: SPEC section 9; CLI.md "Paths".
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs
import structlog

from calculet_trio.core.fault_record import FAULTS_MAX, RESETS_MAX, SCHEMA, FaultMemory, FaultRecord
from calculet_trio.errors import PackageError
from calculet_trio.packages import manifest_json
from calculet_trio.shell.durable_file import sync_directory, write_durably

SET_ASIDE_MAX: Final = 4
"""Unreadable files that are kept for a person to look at; the oldest goes first."""
_FUTURE_UNIX_S: Final = 1e11
"""The year 5138: a time beyond it is none."""

_log = structlog.get_logger(__name__)


class FaultHistory:
    """One device's history.

    Args:
        path: its file; None to remember nothing beyond this process.
        clock: Unix seconds.

    Attributes:
        notes: what a person should know of the file itself, a sentence each.
    """

    def __init__(self, path: Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._path: Path | None = None
        self._clock = clock
        self._turn = threading.Lock()
        self._memory = FaultMemory()
        self._lock_descriptor: int | None = None
        self._was_unreadable = False
        self.notes: tuple[str, ...] = ()
        if path is not None and self._claim(path):
            self._read(path)
        self._found = self._memory.holding

    # ---- what is known --------------------------------------------------------------------------

    @property
    def memory(self) -> FaultMemory:
        """Everything, as it is now."""
        return self._memory

    @property
    def must_be_quiet(self) -> bool:
        """Whether the process before did not give the device back, as far as anybody knows."""
        return self._found is not None or self._was_unreadable

    @property
    def was_left_to_a_fault(self) -> bool:
        """Whether the process before left because of a fault, and the device has not been shown quiet since."""
        return self._found is not None and self._found.lost_to is not None

    @property
    def why_quiet(self) -> str:
        """Why the device must be shown quiet, for people."""
        if self._found is None:
            return "the fault history could not be read" if self._was_unreadable else "it need not be"
        if self._found.lost_to is None:
            return "the process before ended without giving the device back"
        return f"the process before left because of a fault: {self._found.lost_to.value}"

    def reset_ages_s(self) -> tuple[float, ...]:
        """How long ago each reset that still counts against the budget began, oldest first."""
        return self._memory.reset_ages_s(self._clock())

    # ---- what happens ---------------------------------------------------------------------------

    def now_unix_s(self) -> float:
        """For the times of records."""
        return self._clock()

    def begin(self) -> None:
        """This process has the device, and it was shown quiet where that was asked for."""
        self._found = None
        self._was_unreadable = False
        self._keep(lambda memory: memory.held(self._clock()))

    def fault_happened(self, fault: FaultRecord) -> None:
        """Remember a fault that the service goes on after, or tries to."""
        self._keep(lambda memory: memory.with_fault(fault))

    def reset_begun(self) -> None:
        """Called before a reset, so that one which ends the process has been counted."""
        self._keep(lambda memory: memory.with_reset_begun(self._clock()))

    def reset_ended(self, *, succeeded: bool, took_s: float) -> None:
        """What the reset came to."""
        self._keep(lambda memory: memory.with_reset_ended(succeeded=succeeded, took_s=took_s))

    def give_back(self) -> None:
        """The device was closed, and nothing of ours is on it. A device that was never begun stays as it was."""
        if not self.must_be_quiet:
            self._keep(FaultMemory.given_back)

    def leave_behind(self, fault: FaultRecord) -> None:
        """The process ends because of ``fault``; the device may still be at work."""
        self._keep(lambda memory: memory.left_behind(fault))

    # ---- the file -------------------------------------------------------------------------------

    def _keep(self, change: Callable[[FaultMemory], FaultMemory]) -> None:
        with self._turn:
            self._memory = change(self._memory)
            if self._path is None:
                return
            text = json.dumps(manifest_json.unstructure(self._memory), indent=1, allow_nan=False)
            try:
                write_durably(self._path, f"{text}\n")
            except OSError as error:
                self._note("the fault history cannot be written", "fault_history_unwritable", error)

    def _claim(self, path: Path) -> bool:
        """One process at a time writes a history; the lock goes with the process, however it ends.

        Returns:
            Whether what it says is ours to go by: not that of a process that lives.
        """
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._note("the fault history cannot be written", "fault_history_unwritable", error)
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            self._note("another process keeps this fault history", "fault_history_shared", error)
            return False
        self._path, self._lock_descriptor = path, descriptor
        return True

    def close(self) -> None:
        """Let another process have the file; the end of this one does so, too."""
        if self._lock_descriptor is not None:
            os.close(self._lock_descriptor)
            self._lock_descriptor = None

    def _read(self, path: Path) -> None:
        try:
            if not path.exists():
                return
            self._memory = read_memory(path).settled_at(self._clock())
        except (OSError, UnreadableHistory) as error:
            self._was_unreadable = True
            self._set_aside(path, error)

    def _set_aside(self, path: Path, error: Exception) -> None:
        aside = path.with_name(f"{path.name}.set-aside-{int(self._clock())}")
        self._note("the fault history could not be read and was set aside", "fault_history_set_aside", error)
        with suppress(OSError):  # what cannot be renamed is written over, and was reported
            path.replace(aside)
            for old in set_aside_files(path)[:-SET_ASIDE_MAX]:
                old.unlink(missing_ok=True)
            sync_directory(path.parent)

    def _note(self, sentence: str, event: str, error: Exception) -> None:
        if sentence not in self.notes:  # said once: a full disk stays full
            self.notes = (*self.notes, sentence)
            _log.warning(event, means=sentence, error=str(error))


class UnreadableHistory(Exception):
    """The file is damaged, too large, or of another version; the message says where."""


def read_memory(path: Path) -> FaultMemory:
    """What a history's file says; for the daemon and for doctor.

    Raises:
        UnreadableHistory: it is not a history that this version reads.
    """
    try:
        value = manifest_json.read(path)
        schema = value.get("schema") if isinstance(value, dict) else None
        if schema != SCHEMA:
            raise UnreadableHistory(f"{path}: schema is {str(schema)[:80]!r}; this version reads {SCHEMA!r}")
        memory = manifest_json.structure(value, FaultMemory, path)
    except PackageError as error:
        raise UnreadableHistory(error.message) from None
    _refuse_nonsense(memory, path)
    return memory


def _refuse_nonsense(memory: FaultMemory, path: Path) -> None:
    """Numbers that nobody can have written: they would become budgets and ages."""
    times_s = [fault.happened_unix_s for fault in memory.faults] + [reset.began_unix_s for reset in memory.resets]
    times_s += [reset.took_s for reset in memory.resets if reset.took_s is not None]
    times_s += [] if memory.holding is None else [memory.holding.since_unix_s]
    quarantines = [fault.quarantine for fault in memory.faults]
    counts = [memory.restarts, *(count for each in quarantines for count in attrs.astuple(each))]
    if not all(0.0 <= time_s <= _FUTURE_UNIX_S for time_s in times_s):
        raise UnreadableHistory(f"{path}: a time is not between 0 and {_FUTURE_UNIX_S:g} s")
    if any(count < 0 for count in counts):
        raise UnreadableHistory(f"{path}: a count is negative")
    if len(memory.faults) > FAULTS_MAX or len(memory.resets) > RESETS_MAX:
        raise UnreadableHistory(f"{path}: more than {FAULTS_MAX} faults or {RESETS_MAX} resets")


def set_aside_files(path: Path) -> list[Path]:
    """The unreadable files that once were the history ``path``, oldest first."""
    return sorted(path.parent.glob(f"{path.name}.set-aside-*"))
