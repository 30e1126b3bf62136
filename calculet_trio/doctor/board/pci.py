"""``pci``: whether a board is on the bus. None is no fault: this machine then serves on its CPU.

Source: SPEC section 1 (A §2): PCIe ``20f5:c001``; the kernel's sysfs-bus-pci documentation.
"""

from __future__ import annotations

from typing import Final

import attrs

from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, failure, ok, warning
from calculet_trio.doctor.host_tree import HostTree
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.doctor.wording import count, listing

DEVICES: Final = "sys/bus/pci/devices"
VENDOR: Final = "0x20f5"
BOARD: Final = "0xc001"
DRIVER_MODULE: Final = "sys/module/calculet_pci"
NO_BOARD: Final = "no board to look at"


@attrs.frozen
class PciDevice:
    """A device of the vendor: its address on the bus, and its device id."""

    address: str
    device: str

    @property
    def directory(self) -> str:
        return f"{DEVICES}/{self.address}"


def vendor_devices(tree: HostTree) -> list[PciDevice]:
    """Every device of the vendor, boards or not, in the bus's order."""
    return [
        PciDevice(address, tree.text(f"{DEVICES}/{address}/device") or "")
        for address in tree.names(DEVICES)
        if tree.text(f"{DEVICES}/{address}/vendor") == VENDOR
    ]


def boards_of(tree: HostTree) -> list[PciDevice]:
    """The boards that this version knows."""
    return [device for device in vendor_devices(tree) if device.device == BOARD]


def _examine(surroundings: Surroundings) -> Finding:
    tree = surroundings.tree
    boards = boards_of(tree)
    strange = [
        f"{each.device or 'unreadable'} at {each.address}" for each in vendor_devices(tree) if each not in boards
    ]
    if strange:
        return warning(
            f"a device of the board's vendor that this version does not know: {listing(strange)}",
            todo="ask for a release that knows it; it is left alone until then",
        )
    if boards:
        return _several_or_one(boards)
    left_over = [path for path in ("dev/calculet0", DRIVER_MODULE) if tree.exists(path)]
    if left_over:
        return failure(
            f"no board on the bus, yet there is /{' and /'.join(left_over)}: a board was set up and is gone",
            todo="power the host off and on, reseat the board, and see `lspci -nn -d 20f5:` and `sudo dmesg`",
        )
    return ok("no board (PCI 20f5:c001) on the bus: this machine serves on its CPU")


def _several_or_one(boards: list[PciDevice]) -> Finding:
    seen = f"{count(len(boards), 'board')} at {listing([board.address for board in boards])}"
    if len(boards) > 1:
        return warning(
            f"{seen}; a process opens one, and which one cannot be chosen yet",
            todo="serve from the first; the runtime library has to offer the choice before the others can be used",
        )
    return ok(seen)


CHECK = Check(
    name="pci",
    group=Group.BOARD,
    why="a board that the bus does not show cannot be opened; without one, models run on the CPU",
    examine=_examine,
)
