"""The binding's library: where it is looked for, whether it fits, and errors that say so.

Source: SPEC section 14; binding/README.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from calculet_trio.errors import Unavailable
from calculet_trio.runtimes import calrt_abi as abi
from calculet_trio.runtimes.calrt_abi import Code

FILE: Final = "libcalculet_calrt.so"
ENVIRONMENT: Final = "CALCULET_CALRT_LIBRARY"
STANDARD: Final = tuple(
    Path(directory, FILE) for directory in ("/usr/local/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib")
)
BUILD_HINT: Final = "`calculet-trio binding build --calrt DIR` with the vendor's SDK, or `--emulator` without a board"


class CalrtError(Exception):
    """A call of the binding failed.

    Args:
        code: what it returned.
        text: its sentence, which names field and limit.
    """

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(f"{code.name.lower()}: {text}")
        self.code = code
        self.text = text


@attrs.frozen
class Place:
    """A file that may be the library, why one would think so, and whether somebody has said that it is."""

    path: Path
    because: str
    is_named: bool = False


@attrs.frozen
class CalrtLibrary:
    """The library, loaded and of the right ABI.

    Args:
        path: its file.
        calls: a function for each of `calrt_abi.CALLS`.
    """

    path: Path
    calls: Any

    @property
    def is_emulator(self) -> bool:
        """Whether the library it is linked with carries the emulator's marker."""
        return bool(self.calls.is_emulator)

    def check(self, code: int) -> None:
        """Raise `CalrtError` unless the code is OK; in the thread that made the call."""
        if code != Code.OK:
            raise self.error(code)

    def error(self, code: int) -> CalrtError:
        """The error of this thread's last call."""
        text: bytes = self.calls.error_text()
        known = Code(code) if code in set(Code) else Code.VENDOR_ERROR
        return CalrtError(known, text.decode("utf-8", "replace"))


def places(configured: Path | None, built: tuple[Path, ...], environment: Mapping[str, str]) -> Iterator[Place]:
    """Where the library may be, the likeliest first.

    Args:
        configured: ``device.library``; what is configured is meant, so nothing else is then looked at.
        built: where ``calculet-trio binding build`` puts it: for the vendor's library, then for the emulator.
        environment: the process's.
    """
    if configured is not None:
        yield Place(configured, "device.library", is_named=True)
        return
    if named := environment.get(ENVIRONMENT):
        yield Place(Path(named), ENVIRONMENT, is_named=True)
        return
    yield from (Place(path, "calculet-trio binding build") for path in built)
    yield from (Place(path, "a standard path") for path in STANDARD)


def load(configured: Path | None, built: tuple[Path, ...], environment: Mapping[str, str] = os.environ) -> CalrtLibrary:
    """The first library that is there.

    Raises:
        Unavailable: there is none, or the first one cannot be used; the message says where was looked and what to do.
    """
    looked = []
    for place in places(configured, built, environment):
        # What lies in another account's directory cannot be seen, and Path.is_file() raises there.
        if os.access(place.path, os.F_OK) and place.path.is_file():
            return _open(place)
        looked.append(f"{place.path} ({place.because})")
    raise Unavailable(f"the runtime calrt needs {FILE}, which is not in {', '.join(looked)}", hint=BUILD_HINT)


def _open(place: Place) -> CalrtLibrary:
    path = str(place.path.absolute())
    try:
        version = abi.version_of(path)
        calls = abi.bind(path) if version == abi.ABI_VERSION else None
    except OSError as error:
        raise Unavailable(
            f"{place.path} ({place.because}) cannot be loaded: {error}",
            hint=f"build it again where the vendor's library is: {BUILD_HINT}",
        ) from error
    except AttributeError as error:
        raise Unavailable(f"{place.path} is not the binding: {error}", hint=BUILD_HINT) from error
    if calls is None:
        raise Unavailable(
            f"{place.path} has ABI {version}; this version speaks {abi.ABI_VERSION}",
            hint=f"build it again: {BUILD_HINT}",
        )
    return CalrtLibrary(place.path, calls)
