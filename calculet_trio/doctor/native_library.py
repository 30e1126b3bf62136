"""The binding's library and the vendor's behind it, as a daemon would load them: found, read, and loaded elsewhere.

First the files are read (`calculet_trio.doctor.elf`); then a process of its own loads them
(`calculet_trio.doctor.library_process`). What is not seen to be the emulator is not even loaded while somebody holds
the board: what a vendor's constructor does to a device, its vendor knows.

Source: SPEC section 14; binding/README.md.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from calculet_trio.doctor import library_process
from calculet_trio.doctor.bounded_process import one_line
from calculet_trio.doctor.elf import Elf, NoElf, OtherMachine, read_library
from calculet_trio.doctor.library_process import BEGUN
from calculet_trio.doctor.wording import listing
from calculet_trio.regular_file import open_regular
from calculet_trio.runtimes.calrt_abi import ABI_VERSION, CALLS, MARKER
from calculet_trio.runtimes.calrt_library import BUILD_HINT, Place

PROCESS_S: Final = 5.0
"""To start Python and to load a library take some 0.1 s together on an idle machine."""
LOCK: Final = Path("/run/lock/calculet0.lock")
"""The binding's own, where no device file is configured."""
RECORD_LOCK: Final = struct.Struct("hhqqi4x")
"""``struct flock`` of a 64-bit Linux, as ``F_GETLK`` takes and gives it."""
VENDOR: Final = "libcalrt"
VERSION: Final = re.compile(r"\.so\.(\d+\.\d+\.\d+)\Z")
LATER: Final = "see whether memory and processes are left on this machine, then call the doctor again"
AGAIN: Final = f"build it again where the vendor's library is: {BUILD_HINT}"


ABI_CALL: Final = "abi_version"
"""What every version of the binding has had, and will have."""


class Unusable(Exception):
    """A daemon could not use it.

    Args:
        seen: why, in one sentence.
        todo: what a person does about it.
    """

    def __init__(self, seen: str, todo: str = AGAIN) -> None:
        super().__init__(seen)
        self.seen = seen
        self.todo = todo


@attrs.frozen(kw_only=True)
class Sighting:
    """What was seen.

    Args:
        place: the library that a daemon would load; None if there is none.
        passed: the places before it, and why each was passed over.
        unusable: why a daemon could not use it; None if it could.
        is_loaded: whether a process has loaded it to see.
        is_emulator: whether the library that it is linked with carries the emulator's marker.
        vendor: the vendor library's file; None where it is not known.
        vendor_soname: what that calls itself, or what is asked for where its file is not known.
        versions: what is known of `calculet_trio.packages.compatibility.COMPONENTS`.
    """

    place: Place | None = None
    passed: tuple[str, ...] = ()
    unusable: Unusable | None = None
    is_loaded: bool = False
    is_emulator: bool = False
    vendor: Path | None = None
    vendor_soname: str = ""
    versions: Mapping[str, str] = attrs.field(factory=dict)


class NativeLibrary:
    """Looks once, however many checks ask.

    Args:
        places: where the library may be, the likeliest first; none where the host is a recorded tree.
        lock: the file that keeps other processes off the board.
        environment: the daemon's.
        process_s: how long the process that loads it may take.
    """

    def __init__(
        self,
        places: tuple[Place, ...] = (),
        *,
        lock: Path = LOCK,
        environment: Mapping[str, str] = os.environ,
        process_s: float = PROCESS_S,
    ) -> None:
        self._places = places
        self._lock = lock
        self._environment = environment
        self._process_s = process_s
        self._turn = threading.Lock()
        self._seen: Sighting | None = None

    @property
    def is_named(self) -> bool:
        """Whether somebody has said which library it is, so that it must work."""
        return any(place.is_named for place in self._places)

    def look(self, *, is_held: bool = False) -> Sighting:
        """What there is; blocks for as long as the process may take.

        Args:
            is_held: whether a program has the board open; the lock is asked beside.
        """
        with self._turn:
            if self._seen is None:
                self._seen = self._first_look(is_held)
            return self._seen

    def _first_look(self, is_held: bool) -> Sighting:
        passed: list[str] = []
        for place in self._places:
            if os.access(place.path, os.F_OK) and place.path.is_file():
                seen = Sighting(place=place, passed=tuple(passed))
                try:
                    return self._look_at(place.path.absolute(), seen, is_held)
                except Unusable as unusable:
                    return attrs.evolve(seen, unusable=unusable)
            passed.append(f"{place.path} ({place.because}{_why_not(place.path)})")
        return Sighting(passed=tuple(passed))

    def _look_at(self, path: Path, seen: Sighting, is_held: bool) -> Sighting:
        shim = _whole(path)
        _require_calls(path, _absent(shim, (ABI_CALL,)))
        seen = self._read(seen, shim)
        if seen.is_emulator or not (is_held or is_locked(self._lock)):
            return self._load(seen, path)
        _require_calls(path, _absent(shim, tuple(CALLS)))
        return seen

    # ---- its file, and the vendor's -----------------------------------------------------------------

    def _read(self, seen: Sighting, shim: Elf) -> Sighting:
        wanted = next((each for each in shim.needed if each.startswith(VENDOR)), "")
        vendor = self._found(wanted, shim) if wanted else None
        if vendor is None:  # the loader knows other places, too, and will say where there is none
            return attrs.evolve(seen, vendor_soname=wanted, versions=_version_in(wanted))
        behind = _whole(vendor)
        soname = behind.soname or wanted
        return attrs.evolve(
            seen,
            vendor=vendor,
            vendor_soname=soname,
            versions=_version_in(soname),
            is_emulator=behind.mentions(MARKER),
        )

    def _found(self, wanted: str, shim: Elf) -> Path | None:
        """The vendor's library where the loader looks first: its variable, then what the shim itself says."""
        named = (Path(each) for each in self._environment.get("LD_LIBRARY_PATH", "").split(":") if each)
        files = (directory / wanted for directory in (*named, *shim.search))
        there = [file for file in files if os.access(file, os.F_OK)]
        return next((file for file in there if not _is_of_other_machine(file)), there[0] if there else None)

    # ---- in a process of its own --------------------------------------------------------------------

    def _load(self, seen: Sighting, path: Path) -> Sighting:
        try:
            with tempfile.TemporaryDirectory(prefix="calculet-doctor-") as scratch:
                answer = self._asked(path, f"{scratch}/lock")
        except OSError:  # a full disk must not hide what the library is; without a lock file, no device is made
            answer = self._asked(path, "")
        if "error" in answer:
            raise Unusable(f"{path} cannot be loaded: {answer['error']}")
        if answer.get("abi", ABI_VERSION) != ABI_VERSION:  # first: another ABI has other calls
            raise Unusable(f"{path} has ABI {answer['abi']}; this version speaks {ABI_VERSION}")
        _require_calls(path, answer["missing"])
        vendor = seen.vendor if answer["vendor"] is None else Path(answer["vendor"])
        return attrs.evolve(
            seen,
            is_loaded=True,
            is_emulator=answer["is_emulator"],
            vendor=vendor,
            versions={**seen.versions, **answer.get("versions", {})},
        )

    def _asked(self, path: Path, lock: str) -> dict[str, Any]:
        alarm_s = int(self._process_s) + 2  # should this process be gone by then
        command = [sys.executable, "-P", "-m", library_process.__name__, str(path), lock, str(alarm_s)]
        try:
            ended = one_line(command, self._environment, self._process_s)
        except (OSError, ValueError) as error:
            raise Unusable(f"no process could be started to load {path}: {error}", LATER) from None
        if not ended.said.startswith(BEGUN):
            how = ended.how or "said something else"
            raise Unusable(f"the process that was to load {path} {how} before it came to that", LATER)
        if ended.how:
            raise Unusable(f"a process that loaded {path} to look at it {ended.how}; so would a daemon")
        return _answer(ended.said.removeprefix(BEGUN), path)


def _answer(said: bytes, path: Path) -> dict[str, Any]:
    try:
        answer = json.loads(said)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or not ("error" in answer or answer.keys() >= {"missing", "is_emulator", "vendor"}):
        raise Unusable(f"{path} meddles with the process that loads it, which answers {said[:40]!r}")
    return answer


def _is_of_other_machine(path: Path) -> bool:
    try:
        read_library(path)
    except OtherMachine:
        return True
    except (OSError, NoElf):
        return False
    return False


def _whole(path: Path) -> Elf:
    try:
        return read_library(path)
    except NoElf as problem:
        raise Unusable(f"{path} {problem}") from None
    except OSError as error:
        raise Unusable(
            f"{path} cannot be read: {error.strerror}", f"make it readable for the account that serves, or {AGAIN}"
        ) from None


def _absent(shim: Elf, names: tuple[str, ...]) -> list[str]:
    return [f"calculet_{name}" for name in names if not shim.mentions(f"calculet_{name}")]


def _require_calls(path: Path, missing: list[str]) -> None:
    if missing:
        raise Unusable(f"{path} is not the binding of this version: it has no {listing(missing)}")


def _version_in(soname: str) -> dict[str, str]:
    """CalRT's version as the library is called: it cannot be asked without opening the board."""
    found = VERSION.search(soname)
    return {} if found is None else {"calrt": found[1]}


def _why_not(path: Path) -> str:
    """Words for what is no file that could be taken; none where nothing is."""
    try:
        path.stat()
    except FileNotFoundError:
        return ": a link to nothing" if path.is_symlink() else ""
    except OSError as error:
        return f": {error.strerror}"
    return ": there, and not a file"


def is_locked(lock: Path) -> bool:
    """Whether a process holds the board's lock, in this container or another; it is not taken to find out.

    Source: fcntl(2), ``F_GETLK``; binding/src/device_lock.cpp.
    """
    try:
        with open_regular(lock) as file:
            told = fcntl.fcntl(file, fcntl.F_GETLK, RECORD_LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except FileNotFoundError:
        return False
    except OSError:  # nobody can say, so the careful answer
        return True
    return bool(RECORD_LOCK.unpack(told)[0] != fcntl.F_UNLCK)
