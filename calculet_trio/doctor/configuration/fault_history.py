"""``fault-history``: what is remembered of faults, whether it can be read, and whether a device was left behind.

Source: SPEC section 9 ("Budgets, quarantine and history survive restarts").
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from calculet_trio.core.fault_record import FaultMemory
from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, ok, warning
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.doctor.wording import count, listing
from calculet_trio.shell.fault_history import UnreadableHistory, read_memory

RECENT_S: Final = 7 * 86_400.0
FILES_MAX: Final = 64


def _examine(surroundings: Surroundings) -> Finding:
    try:
        files = sorted(surroundings.histories.glob("*.json"))[:FILES_MAX]
        aside = sorted(surroundings.histories.glob("*.json.set-aside-*"))
    except OSError as error:
        return warning(
            f"{surroundings.histories} cannot be read: {error.strerror}", todo="run doctor as the service's account"
        )
    damaged = []
    known: dict[Path, FaultMemory] = {}
    for file in files:
        try:
            known[file] = read_memory(file)
        except UnreadableHistory as unreadable:
            damaged.append(str(unreadable))
    if damaged or aside:
        seen = [*damaged, *(f"{each.name} was set aside, since it could not be read" for each in aside)]
        return warning(
            listing(seen),
            todo=f"look at it and remove it from {surroundings.histories}; the disk may have an error, see `dmesg`",
        )
    left = [
        f"{file.stem}: {memory.holding.lost_to.value}"
        for file, memory in known.items()
        if memory.holding and memory.holding.lost_to
    ]
    if left:
        return warning(
            f"the last process left its device at work: {listing(left)}",
            todo="start the service: it configures the device only when it is quiet",
        )
    return ok(_summary(known))


def _summary(known: dict[Path, FaultMemory]) -> str:
    if not known:
        return "nothing is on record yet"
    since_s = time.time() - RECENT_S
    faults = sum(fault.happened_unix_s >= since_s for memory in known.values() for fault in memory.faults)
    resets = sum(reset.began_unix_s >= since_s for memory in known.values() for reset in memory.resets)
    return f"{count(faults, 'fault')} and {count(resets, 'reset')} in the last 7 days"


CHECK = Check(
    name="fault-history",
    group=Group.CONFIGURATION,
    why="without it a service that restarts again and again resets its board without end",
    examine=_examine,
)
