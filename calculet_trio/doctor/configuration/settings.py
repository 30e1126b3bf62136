"""``settings``: whether the service's file, and the schedulers' files that it names, would be taken."""

from __future__ import annotations

from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, failure, ok
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.doctor.wording import listing
from calculet_trio.settings.configuration import check_file


def _examine(surroundings: Surroundings) -> Finding:
    path = surroundings.settings_file
    if path is None:
        return ok("no service.yaml, so the defaults hold")
    faults = check_file(path)
    if faults:
        return failure(
            listing([str(fault) for fault in faults]), todo=f"mend it; `calculet-trio config check {path}` shows all"
        )
    return ok(str(path))


CHECK = Check(
    name="settings",
    group=Group.CONFIGURATION,
    why="a configuration with a fault is refused as a whole, and the service does not start",
    examine=_examine,
)
