"""Every check there is, in the order of the report; and the choice among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from calculet_trio.doctor.board import (
    binding,
    calrt_library,
    compatibility,
    device_holder,
    device_node,
    dma_timeout,
    driver,
    link,
    pci,
)
from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.configuration import directories, fault_history, listen, settings, timeouts
from calculet_trio.doctor.host import account, linger, memory
from calculet_trio.doctor.packages import calbins, digests, disk, evidence, signatures, store
from calculet_trio.doctor.python import cpu_runtime, interpreter, libraries
from calculet_trio.doctor.service import health, port

CHECKS: Final[tuple[Check, ...]] = (
    memory.CHECK,
    account.CHECK,
    linger.CHECK,
    interpreter.CHECK,
    libraries.CHECK,
    cpu_runtime.CHECK,
    store.CHECK,
    signatures.CHECK,
    evidence.CHECK,
    digests.CHECK,
    calbins.CHECK,
    disk.CHECK,
    settings.CHECK,
    directories.CHECK,
    listen.CHECK,
    timeouts.CHECK,
    fault_history.CHECK,
    pci.CHECK,
    link.CHECK,
    driver.CHECK,
    dma_timeout.CHECK,
    device_node.CHECK,
    device_holder.CHECK,
    calrt_library.CHECK,
    binding.CHECK,
    compatibility.CHECK,
    port.CHECK,
    health.CHECK,
)


class UnknownCheck(LookupError):
    """No check or group has that name; the message names those that exist."""

    def __init__(self, name: str) -> None:
        groups = ", ".join(group.value for group in Group)
        names = ", ".join(check.name for check in CHECKS)
        super().__init__(f"there is no check or group {name[:80]!r}; groups: {groups}; checks: {names}")


def chosen(only: Sequence[str]) -> tuple[Check, ...]:
    """The checks that ``only`` names, by their own names or their groups', in the registry's order; all if it is empty.

    Raises:
        UnknownCheck: naming those that exist.
    """
    if not only:
        return CHECKS
    wanted: set[str] = set()
    for name in only:
        folded = name.strip().casefold()
        found = {check.name for check in CHECKS if folded in (check.name, check.group.value.casefold())}
        if not found:
            raise UnknownCheck(name)
        wanted |= found
    return tuple(check for check in CHECKS if check.name in wanted)
