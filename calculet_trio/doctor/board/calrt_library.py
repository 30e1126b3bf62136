"""``calrt-library``: the vendor's runtime library, and whether it is the version that was tried, alone.

Source: SPEC section 14 (A §3): ``/usr/local/lib/libcalrt-linux-x86_64.so.0.7.6``; several lie side by side.
"""

from __future__ import annotations

import re
from typing import Final

from calculet_trio.doctor.board.pci import NO_BOARD, boards_of
from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, ok, warning
from calculet_trio.doctor.host_tree import HostTree
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.doctor.wording import listing

DIRECTORIES: Final = ("usr/local/lib", "usr/lib", "usr/lib/x86_64-linux-gnu")
LIBRARY: Final = re.compile(r"libcalrt-linux-x86_64\.so\.(\d+\.\d+\.\d+)")
TRIED_VERSION: Final = "0.7.6"


def found_libraries(tree: HostTree) -> dict[str, str]:
    """Each library's file, and the version in its name."""
    return {
        f"/{directory}/{name}": match[1]
        for directory in DIRECTORIES
        for name in tree.names(directory)
        if (match := LIBRARY.fullmatch(name)) is not None
    }


def _examine(surroundings: Surroundings) -> Finding:
    if not boards_of(surroundings.tree):
        return ok(NO_BOARD)
    found = found_libraries(surroundings.tree)
    if not found:
        return warning(
            f"no libcalrt-linux-x86_64.so in /{', /'.join(DIRECTORIES)}",
            todo=f"install CalRT {TRIED_VERSION} on the host; a container's copy serves that container alone",
        )
    if set(found.values()) != {TRIED_VERSION}:
        return warning(
            f"{listing(list(found))}; this program was made against CalRT {TRIED_VERSION}",
            todo=f"keep {TRIED_VERSION} alone, so that nobody loads another by accident",
        )
    return ok(listing(list(found)))


CHECK = Check(
    name="calrt-library",
    group=Group.BOARD,
    why="the interface between library and driver is not versioned: what fits together was found by trying",
    examine=_examine,
)
