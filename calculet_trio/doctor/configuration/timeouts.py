"""``timeouts``: whether each timeout is longer than what it waits for, up to the unit's ``TimeoutStopSec``.

The unit is read as a file, with its drop-ins: what systemd itself holds may be older, until ``daemon-reload``.

Source: SPEC section 9; systemd.unit(5).
"""

from __future__ import annotations

import re
from typing import Final

import attrs

from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, failure, ok
from calculet_trio.doctor.host_tree import HostTree
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.settings.time_span import span_s

UNIT: Final = "calculet-trio.service"
SYSTEM_UNITS: Final = ("etc/systemd/user", "etc/systemd/system", "usr/lib/systemd/user", "usr/lib/systemd/system")


def unit_files(tree: HostTree, home: str | None) -> list[str]:
    """The unit that counts and its drop-ins, in the order in which they hold; none if it is not installed."""
    places = [*([f"{home.strip('/')}/.config/systemd/user"] if home else []), *SYSTEM_UNITS]
    for place in places:
        if tree.exists(f"{place}/{UNIT}"):
            drop_ins = f"{place}/{UNIT}.d"
            return [
                f"{place}/{UNIT}",
                *(f"{drop_ins}/{name}" for name in tree.names(drop_ins) if name.endswith(".conf")),
            ]
    return []


def stop_text(tree: HostTree, files: list[str]) -> str | None:
    """The last ``TimeoutStopSec``, or ``TimeoutSec``, that is set in them."""
    found = None
    for file in files:
        for line in tree.lines(file):
            if match := re.fullmatch(r"\s*Timeout(?:Stop)?Sec\s*=\s*(.*?)\s*", line):
                found = match[1]
    return found


def _examine(surroundings: Surroundings) -> Finding:
    home = surroundings.account.home
    text = stop_text(surroundings.tree, unit_files(surroundings.tree, home))
    stop_s = None if text is None else span_s(text)
    order = attrs.evolve(surroundings.timeouts, stop_s=stop_s)
    disorders = [str(disorder) for disorder in order.disorders()]
    if disorders:
        return failure(
            "; ".join(disorders), todo="set timeouts.watchdog_s and drain_s to null, which follows the longest job"
        )
    unit = "" if text is None else f", the unit's TimeoutStopSec={text}"
    return ok(
        f"longest job {order.longest_job_s:g} s, watchdog {order.watchdog_s:g} s, drain {order.drain_s:g} s{unit}"
    )


CHECK = Check(
    name="timeouts",
    group=Group.CONFIGURATION,
    why="a timeout that is shorter than what it waits for takes slow work for dead, and the service refuses it",
    examine=_examine,
)
