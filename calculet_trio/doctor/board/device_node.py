"""``device-node``: ``/dev/calculet0`` is there, open to the service, and closed to everybody else.

Source: SPEC section 16 (A §2, §13): today's node is readable and writable by every user.
"""

from __future__ import annotations

import os
import re
import stat
from typing import Final

from calculet_trio.doctor.board.pci import NO_BOARD, boards_of
from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, failure, ok, warning
from calculet_trio.doctor.surroundings import Surroundings

NODE: Final = re.compile(r"calculet\d{1,3}")
RULE_FILE: Final = "/etc/udev/rules.d/70-calculet.rules"
RULE: Final = 'KERNEL=="calculet[0-9]*", GROUP="calculet", MODE="0660"'
OPEN_TO_OTHERS: Final = stat.S_IROTH | stat.S_IWOTH


def _examine(surroundings: Surroundings) -> Finding:
    tree, account = surroundings.tree, surroundings.account
    nodes = {name: tree.status(f"dev/{name}") for name in tree.names("dev") if NODE.fullmatch(name)}
    if not boards_of(tree) and not nodes:
        return ok(NO_BOARD)
    if not nodes:
        return failure("a board is there, but no /dev/calculet0", todo="see the check `driver`, and `sudo dmesg`")
    warnings = []
    for name, status in nodes.items():
        if status is None or not tree.is_device(status):
            return failure(f"/dev/{name} is not a device", todo=f"`sudo rm -r /dev/{name}` and load the driver again")
        if not _may_use(surroundings, name, status):
            return failure(
                f"/dev/{name} has mode {stat.S_IMODE(status.st_mode):04o}: the account {account.name} may not use it",
                todo=f"`sudo usermod --append --groups calculet {account.name}`, then log in again; "
                f"the node's group is set in {RULE_FILE}",
            )
        if status.st_mode & OPEN_TO_OTHERS:
            warnings.append(f"/dev/{name} has mode {stat.S_IMODE(status.st_mode):04o}: every user may use the board")
    if warnings:
        return warning(
            warnings[0],
            todo=f"`sudo groupadd --system calculet`, put {RULE} into {RULE_FILE}, "
            "then `sudo udevadm control --reload` and `sudo udevadm trigger`, "
            f"and add the account {account.name} to the group",
        )
    return ok(f"/dev/{', /dev/'.join(nodes)}: usable by {account.name} and not by everybody")


def _may_use(surroundings: Surroundings, name: str, status: os.stat_result) -> bool:
    account = surroundings.account
    if surroundings.tree.is_live and account.uid == os.getuid():
        return os.access(f"/dev/{name}", os.R_OK | os.W_OK)  # the kernel knows access lists, too
    return account.may_use(status)


CHECK = Check(
    name="device-node",
    group=Group.BOARD,
    why="the service needs the node, and anybody else who may open it can read other people's prompts off the board",
    examine=_examine,
)
