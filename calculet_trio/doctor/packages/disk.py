"""``disk``: room for what the service writes, and for one more of its largest package."""

from __future__ import annotations

from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, failure, ok, warning
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.doctor.wording import amount
from calculet_trio.packages.verification import SEAL_BYTES_MAX

ROOM_BYTES_MIN = SEAL_BYTES_MAX
"""The largest file that the service writes by itself; with less, it cannot keep what it learned."""


def _examine(surroundings: Surroundings) -> Finding:
    store = surroundings.store
    free_bytes = surroundings.free_bytes(store.root)
    seen = f"{amount(free_bytes)} free for {store.root}"
    if free_bytes < ROOM_BYTES_MIN:
        return failure(f"{seen}: nothing can be written", todo="make room there; `package list` shows what takes it")
    sizes = {
        stored.name: sum(record.size_bytes for record in stored.manifest.files.values())
        for stored in surroundings.packages()
        if stored.manifest is not None
    }
    largest = max(sizes, key=lambda name: sizes[name], default=None)
    if largest is not None and sizes[largest] > free_bytes:
        return warning(
            f"{seen}; another version of {largest} takes {amount(sizes[largest])}",
            todo="make room before the next pull; a new version stands beside the old one until it is whole",
        )
    return ok(seen)


CHECK = Check(
    name="disk",
    group=Group.PACKAGES,
    why="a package is replaced only once the new one is whole beside it, and a full disk keeps no record of a fault",
    examine=_examine,
)
