"""``driver``: whether the kernel module is loaded, and is the version that was tried.

Source: SPEC section 1, 14 (A §2, §3): ``calculet_pci 1.0.0``, a DKMS module.
"""

from __future__ import annotations

from typing import Final

from calculet_trio.doctor.board.pci import DRIVER_MODULE, NO_BOARD, boards_of
from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, failure, ok, warning
from calculet_trio.doctor.surroundings import Surroundings

TRIED_VERSION: Final = "1.0.0"


def _examine(surroundings: Surroundings) -> Finding:
    tree = surroundings.tree
    if not boards_of(tree):
        return ok(NO_BOARD)
    if not tree.exists(DRIVER_MODULE):
        return failure(
            "a board is there, but the driver calculet_pci is not loaded",
            todo="`sudo modprobe calculet_pci`; after a kernel update `dkms status` says whether it was built again",
        )
    version = tree.text(f"{DRIVER_MODULE}/version")
    if version is None:
        return warning(
            "calculet_pci is loaded and does not say its version", todo=f"install the driver {TRIED_VERSION}"
        )
    if version != TRIED_VERSION:
        return warning(
            f"calculet_pci {version}; this program was made against {TRIED_VERSION}",
            todo=f"install the driver {TRIED_VERSION}, or run the conformance suite before serving with this one",
        )
    return ok(f"calculet_pci {version}")


CHECK = Check(
    name="driver",
    group=Group.BOARD,
    why="the runtime library and the driver change together; another driver may answer, and answer wrongly",
    examine=_examine,
)
