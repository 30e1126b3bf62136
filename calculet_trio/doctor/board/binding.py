"""``binding``: the native library that a daemon would load, the vendor's behind it, and whether both can be used.

No device is opened. What the library itself says comes from a process that loads it and ends.

Source: SPEC section 12 (the emulator's marker), 14; binding/README.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from calculet_trio.doctor.board.device_holder import is_held
from calculet_trio.doctor.board.pci import boards_of
from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, Mark, ok, warning
from calculet_trio.doctor.native_library import PROCESS_S, Sighting
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.packages.compatibility import EMULATOR
from calculet_trio.runtimes.calrt_abi import ABI_VERSION
from calculet_trio.runtimes.calrt_library import BUILD_HINT, FILE

CALLED: Final = {"calrt": "CalRT", "driver": "driver", "calcore_rt": "CalcoreRT"}


def _examine(surroundings: Surroundings) -> Finding:
    tree = surroundings.tree
    if not tree.is_live:
        return ok("this host was recorded elsewhere, and no library is loaded from a recording")
    seen = surroundings.native_library.look(is_held=is_held(tree))
    # What a service on the CPU would not use is no failure; what somebody has asked for, and would not get, is one.
    is_needed = surroundings.needs_board or surroundings.native_library.is_named
    bad = Mark.FAILURE if is_needed else Mark.WARNING
    passed = f"looked in {', '.join(seen.passed)}" if seen.passed else ""
    if seen.place is None:
        absent = f"there is no {FILE}; {passed or 'there is nowhere to look'}"
        if is_needed or boards_of(tree):
            return Finding(bad, absent, BUILD_HINT)
        return ok(f"{absent}; nothing here needs it")
    if seen.unusable is not None:
        return Finding(bad, f"{seen.unusable.seen} ({seen.place.because})", seen.unusable.todo)
    if seen.is_emulator and boards_of(tree):
        return warning(
            f"a board is there, and what would be loaded is its emulator: {_described(seen)}",
            todo="`calculet-trio binding build --calrt DIR` with the vendor's SDK, or name its library: device.library",
        )
    problem = _misnamed(seen)
    if problem is not None:
        return warning(f"{problem}; {_described(seen)}", todo=f"install one version alone, and {BUILD_HINT}")
    return ok(_described(seen))


def _described(seen: Sighting) -> str:
    return ", ".join(_words(seen))


def _words(seen: Sighting) -> Iterator[str]:
    assert seen.place is not None, "there is one"
    yield f"{seen.place.path.absolute()} ({seen.place.because})"
    yield f"ABI {ABI_VERSION}" if seen.is_loaded else "not loaded to see its ABI, since the board is held"
    yield f"with {seen.vendor or seen.vendor_soname or 'no library of the vendor beside it'}"
    yield from (f"{CALLED[component]} {version}" for component, version in sorted(seen.versions.items()))
    if not seen.is_emulator:
        yield "its board's CalcoreRT is known once it is opened"
    else:
        yield f"the emulator ({EMULATOR}): what it shows counts for no board"


def _misnamed(seen: Sighting) -> str | None:
    """The vendor's file is called one version, and calls itself, or says that it is, another."""
    if seen.vendor is None:
        return None
    name = seen.vendor.resolve().name
    if seen.vendor_soname not in ("", name):
        return f"the vendor's library is called {name} and calls itself {seen.vendor_soname}"
    version = seen.versions.get("calrt", "")
    if not name.endswith(version):
        return f"the vendor's library is called {name} and says that it is {version}"
    return None


CHECK = Check(
    name="binding",
    group=Group.BOARD,
    why="the daemon drives a board through it; one that does not fit ends the start, or the process in the middle",
    examine=_examine,
    extra_s=2 * PROCESS_S,
)
