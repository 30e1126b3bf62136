"""``link``: whether the board's PCIe link came up at its full speed and width.

Source: SPEC section 1 (A §2): Gen4 x4, 16 GT/s; the kernel's sysfs-bus-pci documentation (``current_link_*``).
"""

from __future__ import annotations

from typing import Final

from calculet_trio.doctor.board.pci import NO_BOARD, PciDevice, boards_of
from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, ok, warning
from calculet_trio.doctor.host_tree import HostTree
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.doctor.wording import listing

SPEED_GT_S: Final = 16.0
WIDTH_LANES: Final = 4
GENERATIONS: Final = {2.5: "Gen1", 5.0: "Gen2", 8.0: "Gen3", 16.0: "Gen4", 32.0: "Gen5"}


def _link(tree: HostTree, board: PciDevice) -> tuple[float, int] | None:
    """Speed in GT/s and width in lanes; None if the kernel does not know them."""
    speed = (tree.text(f"{board.directory}/current_link_speed") or "").partition(" ")[0]
    width = tree.text(f"{board.directory}/current_link_width") or ""
    try:
        return float(speed), int(width)
    except ValueError:  # "Unknown", or no such file
        return None


def _describe(board: PciDevice, link: tuple[float, int] | None) -> str:
    if link is None:
        return f"{board.address}: unknown"
    speed, width = link
    generation = f"{GENERATIONS[speed]} " if speed in GENERATIONS else ""
    return f"{board.address}: {generation}x{width} ({speed:g} GT/s)"


def _examine(surroundings: Surroundings) -> Finding:
    links = {board: _link(surroundings.tree, board) for board in boards_of(surroundings.tree)}
    if not links:
        return ok(NO_BOARD)
    seen = listing([_describe(board, link) for board, link in links.items()])
    if any(link is None for link in links.values()):
        return warning(seen, todo="see LnkSta in `sudo lspci -vv -d 20f5:`; the kernel should know the link")
    if any(link is not None and (link[0] < SPEED_GT_S or link[1] < WIDTH_LANES) for link in links.values()):
        return warning(
            f"{seen}; the board can do Gen4 x{WIDTH_LANES}",
            todo="reseat the board, try another slot and no riser, and set the slot to Gen4 in the firmware",
        )
    return ok(seen)


CHECK = Check(
    name="link",
    group=Group.BOARD,
    why="every token's logits cross this link; a slow one lengthens each step and the loading of a model",
    examine=_examine,
)
