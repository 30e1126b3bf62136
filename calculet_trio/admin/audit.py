"""AuditLog: who asked the daemon for what, and what became of it, in a file that shows where it was changed.

One JSON object a line. Each record names the digest of the one before it, so that a record which was altered, taken
out or put in breaks the chain at its place. What a chain cannot show is that its *end* was cut off, or that all of
it was written anew: note the head that ``audit verify`` prints somewhere else, and hand it to ``--head`` later.

A line is whole or absent: it is written in one call and synchronised before the operation it announces begins. One
that a power failure tore is set aside when the log is opened next, and a record says so.

Source: API.md "Admin endpoints"; SPEC section 15.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final

import attrs

from calculet_trio.errors import Unavailable

SEGMENT_BYTES: Final = 8 * 2**20
SEGMENTS_KEPT: Final = 16
LINE_BYTES: Final = 16 * 2**10
"""Longer records than our own would not be ours; arguments are cut to fit, by what they take in a line."""

ARGUMENTS: Final = 16
ARGUMENT_BYTES: Final = 512
NAME_BYTES: Final = 64
NUMBER_MAX: Final = 2**63
"""Larger numbers, and what is none, are recorded as texts."""
GENESIS: Final = "0" * 64


@attrs.frozen
class Verdict:
    """What reading the whole log came to.

    Args:
        records: how many there are, up to the first that is wrong.
        head: digest of the last good one.
        problem: what is wrong and where, or None.
        note: what is worth knowing although nothing is wrong, or None.
    """

    records: int
    head: str
    problem: str | None = None
    note: str | None = None


class AuditLog:
    """Appends records. Blocks; safe from any thread of one process, and only one process may hold it.

    Args:
        directory: its own; made, open to its owner alone.

    Raises:
        calculet_trio.errors.Unavailable: another process holds it, the directory cannot be written, or the log in it
            was changed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._held = _held(directory)
        except OSError as error:
            raise _unwritable(directory, error) from error
        try:
            torn = _set_torn_aside(directory)
            self._number, self._head = _end_of(directory)
            if torn is not None:
                self.append({"event": "torn_line_set_aside", "file": torn})
        except OSError as error:
            self.close()
            raise _unwritable(directory, error) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let another process have it."""
        self._held.close()

    @property
    def directory(self) -> Path:
        """Where its files are."""
        return self._directory

    def append(self, fields: Mapping[str, Any]) -> str:
        """Write one record and return its digest; it is on the disk when this returns.

        Raises:
            OSError: it is not; nothing of it is left to be taken for a part of the next.
        """
        with self._lock:
            number = self._number + 1
            record = {"n": number, "at": _now(), **{name: _bounded(value) for name, value in fields.items()}}
            line, digest = _line({**record, "before": self._head})
            path = self._segment(number, len(line))
            with _private(path, os.O_APPEND) as file:
                _append_whole(file.fileno(), line)
            self._number, self._head = number, digest
            return digest

    def _segment(self, number: int, line_bytes: int) -> Path:
        """The file that record ``number`` goes to; begins a new one, and lets the oldest go, by size."""
        files = segments(self._directory)
        if files and files[-1].stat().st_size + line_bytes <= SEGMENT_BYTES:
            return files[-1]
        for old in files[: max(0, len(files) + 1 - SEGMENTS_KEPT)]:
            old.unlink()
        return self._directory / f"audit-{number:012d}.jsonl"


def segments(directory: Path) -> list[Path]:
    """The log's files, the oldest first; each is named for its first record."""
    return sorted(directory.glob("audit-*.jsonl"))


def records(directory: Path) -> Iterator[Mapping[str, Any]]:
    """Every record, the oldest first; stops at the first line that is none. Blocks; raises OSError."""
    for _, line in _lines(directory):
        record = _parse(line)
        if record is None:
            return
        yield record


def verify(directory: Path, *, head: str | None = None) -> Verdict:
    """Read the whole log and check its chain. Blocks; raises OSError.

    Args:
        directory: the log's.
        head: a digest that an earlier verification printed; it must still be there.
    """
    count, number, last, note = 0, 0, GENESIS, None
    is_head_there = head in (None, GENESIS)
    for path, line in _lines(directory):
        record = _parse(line)
        place = f"{path.name}, after record {number}"
        if record is None:
            return Verdict(count, last, f"{place}: a line that is no record, or one that was changed")
        if not count and record["n"] > 1:
            number, last = record["n"] - 1, record["before"]
            note = f"the records up to {number} were let go when the log grew past its bound"
        if record["before"] != last or record["n"] != number + 1:
            return Verdict(count, last, f"{place}: a record that does not follow it")
        number, count, last = number + 1, count + 1, record["digest"]
        is_head_there = is_head_there or last == head
    if not is_head_there:
        return Verdict(count, last, f"the record with the digest {head} is no longer there")
    return Verdict(count, last, note=note)


# ---- lines --------------------------------------------------------------------------------------------


def _lines(directory: Path) -> Iterator[tuple[Path, bytes]]:
    for path in segments(directory):
        with path.open("rb") as file:
            while line := file.readline(LINE_BYTES):
                yield path, line


def _line(record: Mapping[str, Any]) -> tuple[bytes, str]:
    # ASCII: no character that any reader of lines could take for a line's end survives.
    digest = sha256(_canonical(record)).hexdigest()
    return _canonical({**record, "digest": digest}) + b"\n", digest


def _canonical(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":")).encode()


def _parse(line: bytes) -> dict[str, Any] | None:
    """The record in a line whose digest is its own; None for anything else."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
        digest = record.pop("digest", None)
        own = sha256(_canonical(record)).hexdigest()
    except (ValueError, RecursionError, AttributeError, TypeError):
        return None
    if digest != own or not isinstance(record.get("n"), int) or not isinstance(record.get("before"), str):
        return None
    return {**record, "digest": digest}


def _bounded(value: Any) -> Any:
    """A scalar or an object of scalars, short enough for a line."""
    if isinstance(value, Mapping):
        return {
            _cut(str(name), NAME_BYTES): _bounded(inner)
            for name, inner in list(value.items())[:ARGUMENTS]
            if not isinstance(inner, Mapping)
        }
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)) and abs(value) <= NUMBER_MAX:
        return value
    return _cut(str(value), ARGUMENT_BYTES)


def _cut(text: str, most_bytes: int) -> str:
    """``text``, if it takes so many bytes in a record; else what does of its beginning, and how long it is."""
    if _size_bytes(text) <= most_bytes:
        return text
    kept = text[:most_bytes]
    while _size_bytes(kept) > most_bytes:
        kept = kept[: len(kept) * most_bytes // _size_bytes(kept)]
    return f"{kept}… ({len(text)} characters)"


def _size_bytes(text: str) -> int:
    """What it takes in a record; a character takes up to twelve."""
    return len(json.dumps(text, ensure_ascii=True))


def _now() -> str:
    moment = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)) + f".{int(moment % 1 * 1000):03d}Z"


# ---- opening ------------------------------------------------------------------------------------------


def _held(directory: Path) -> BinaryIO:
    """The lock of the one that writes; the system lets it go when its process ends."""
    lock = _private(directory / ".lock", os.O_APPEND)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise Unavailable(
            f"another process writes the audit log in {directory}", hint="give each daemon its own state directory"
        ) from None
    return lock


def _end_of(directory: Path) -> tuple[int, str]:
    """Number and digest of the last record; the rest is verified by who asks for it."""
    files = segments(directory)
    if not files:
        return 0, GENESIS
    with files[-1].open("rb") as file:
        file.seek(-min(LINE_BYTES, files[-1].stat().st_size), os.SEEK_END)
        last = _parse(file.read().splitlines(keepends=True)[-1])
    if last is None:
        raise Unavailable(
            f"the audit log {files[-1]} holds a line that is no record of ours, or one that was changed",
            hint="calculet-trio audit verify shows where; move the directory away to begin a new log",
        )
    return last["n"], last["digest"]


def _set_torn_aside(directory: Path) -> str | None:
    """Cut an unfinished last line off into a file of its own, and say its name."""
    files = segments(directory)
    if not files:
        return None
    with files[-1].open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LINE_BYTES))
        tail = file.read()
        whole = tail.rfind(b"\n") + 1
        if not size:  # a disk was full, or the power failed, before anything was in it
            files[-1].unlink()
        if whole == len(tail):
            return None
        torn = directory / f"{files[-1].stem}.torn-{size}"
        with _private(torn, os.O_TRUNC) as aside:
            aside.write(tail[whole:])
        file.truncate(size - len(tail) + whole)
        os.fsync(file.fileno())
    if not files[-1].stat().st_size:
        files[-1].unlink()
    return torn.name


def _append_whole(descriptor: int, line: bytes) -> None:
    size = os.fstat(descriptor).st_size
    try:
        left = line
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    except OSError:
        with suppress(OSError):
            os.ftruncate(descriptor, size)
        raise


def _unwritable(directory: Path, error: OSError) -> Unavailable:
    return Unavailable(
        f"the audit log in {directory} cannot be written: {error.strerror or error}",
        hint="without it no operator's call would be on record",
    )


def _private(path: Path, how: int) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o600), "wb")
