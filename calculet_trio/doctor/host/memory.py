"""``memory``: whether the models in the store fit the memory that is there.

A model needs what its manifest says: its files, and the keys and values of every lane at full length.
"""

from __future__ import annotations

import attrs

from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, failure, ok, warning
from calculet_trio.doctor.host_tree import HostTree
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.doctor.wording import amount
from calculet_trio.packages.manifest import Manifest

CPU_TARGET = "cpu"


@attrs.frozen
class Memory:
    """What this machine, or the container around us, has in all, and what of it is to be had now."""

    total_bytes: int
    available_bytes: int


def memory_of(tree: HostTree) -> Memory | None:
    """By ``/proc/meminfo`` and the cgroup's limit, whichever is less; None if the kernel does not say.

    Source: proc(5) ``MemAvailable``; the kernel's cgroup-v2 documentation, ``memory.max``.
    """
    found = {}
    for line in tree.lines("proc/meminfo"):
        name, _, value = line.partition(":")
        number = value.removesuffix("kB").strip()
        if number.isdecimal():
            found[name] = int(number) * 1024
    if "MemTotal" not in found or "MemAvailable" not in found:
        return None
    total, available = found["MemTotal"], found["MemAvailable"]
    limit = tree.text("sys/fs/cgroup/memory.max") or ""
    used = tree.text("sys/fs/cgroup/memory.current") or ""
    if limit.isdecimal():
        total = min(total, int(limit))
        available = min(available, max(0, int(limit) - (int(used) if used.isdecimal() else 0)))
    return Memory(total, available)


def need_bytes(manifest: Manifest) -> int:
    """The memory that serving the package on the CPU takes, by its manifest."""
    files = sum(record.size_bytes for record in manifest.files.values())
    return files + manifest.kv.lanes * manifest.kv.max_seq * manifest.kv.bytes_per_token


def _examine(surroundings: Surroundings) -> Finding:
    memory = memory_of(surroundings.tree)
    if memory is None:
        return failure(
            "/proc/meminfo does not say how much memory there is",
            todo="run on Linux with /proc mounted; nothing else is supported",
        )
    seen = f"{amount(memory.available_bytes)} of {amount(memory.total_bytes)} available"
    needs = {
        stored.name: need_bytes(stored.manifest)
        for stored in surroundings.packages()
        if stored.manifest is not None and stored.manifest.target == CPU_TARGET
    }
    if not needs:
        return ok(seen)
    largest = max(needs, key=lambda name: needs[name])
    seen = f"{seen}; the largest model of the store, {largest}, takes {amount(needs[largest])}"
    if min(needs.values()) > memory.total_bytes:
        return failure(
            seen, todo="no model of the store fits this machine: build one with fewer lanes or a smaller --max-seq"
        )
    if needs[largest] > memory.total_bytes:
        return warning(
            seen, todo=f"{largest} does not fit this machine: build it with fewer lanes or a smaller --max-seq"
        )
    if needs[largest] > memory.available_bytes:
        return warning(
            seen, todo=f"end other programs before serving {largest}; if it is being served now, all is well"
        )
    return ok(seen)


CHECK = Check(
    name="memory",
    group=Group.HOST,
    why="a model that does not fit is ended by the kernel in the middle of a reply",
    examine=_examine,
)
