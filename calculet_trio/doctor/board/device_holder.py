"""``device-holder``: which programs have the board open. Those of other users show only to root.

Source: SPEC section 1: one process opens one device, and the server that came before opens it, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from calculet_trio.doctor.board.pci import boards_of
from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, failure, ok
from calculet_trio.doctor.host_tree import HostTree
from calculet_trio.doctor.installation import PROGRAM
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.doctor.wording import listing

DEVICE_PREFIX: Final = "/dev/calculet"


def holders(tree: HostTree) -> Iterator[tuple[str, str]]:
    """Process id and name of each program that has a board's node open."""
    for process in tree.names("proc"):
        if not process.isdecimal():
            continue
        files = tree.names(f"proc/{process}/fd")
        if any((tree.link(f"proc/{process}/fd/{file}") or "").startswith(DEVICE_PREFIX) for file in files):
            yield process, tree.text(f"proc/{process}/comm") or "?"


def is_held(tree: HostTree) -> bool:
    """Whether a program that this account can see has the board open."""
    return next(holders(tree), None) is not None


def _examine(surroundings: Surroundings) -> Finding:
    tree = surroundings.tree
    if not boards_of(tree):
        return ok("no board that anybody could hold")
    found = list(holders(tree))
    if not found:
        return ok("no program that this account can see has the board open")
    seen = f"the board is open in {listing([f'{name} (pid {process})' for process, name in found])}"
    strangers = [process for process, name in found if name != PROGRAM]
    if strangers:
        return failure(seen, todo=f"end it before serving from the board: `kill {strangers[0]}`, or stop its container")
    return ok(seen)


CHECK = Check(
    name="device-holder",
    group=Group.BOARD,
    why="one process owns the board; a second one is refused, or disturbs the first",
    examine=_examine,
)
