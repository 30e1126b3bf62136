"""Garbage collection: which packages of the store are still wanted, and why; the others are removed.

Wanted is what a name stands for, what a running process holds, and what would be rolled back to. The rest was
replaced, and takes the room that the next pull needs.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import attrs

from calculet_trio.errors import PackageError
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.store import Store
from calculet_trio.packages.store_lease import is_leased


class Reason(Enum):
    """Why a package is kept."""

    LIVE = "its name stands for it"
    HELD = "a running process holds it"
    LAST_GOOD = "it is the last good one, for a rollback"


@attrs.frozen
class Kept:
    """A package that is wanted."""

    digest: str
    name: str
    reason: Reason


@attrs.frozen
class Removed:
    """A package that nothing wants; with a dry run it is still there."""

    digest: str
    name: str
    size_bytes: int


@attrs.frozen
class Collection:
    """What one run came to."""

    kept: tuple[Kept, ...]
    removed: tuple[Removed, ...]

    @property
    def freed_bytes(self) -> int:
        return sum(each.size_bytes for each in self.removed)


def collect(store: Store, *, dry_run: bool) -> Collection:
    """Remove what nothing wants.

    Args:
        store: the store; nobody else changes it meanwhile.
        dry_run: only say what would be removed.

    Raises:
        calculet_trio.errors.Unavailable: another process is changing this store.
        calculet_trio.errors.PackageError: a history cannot be read, and with it what a rollback needs; nothing
            is removed.
    """
    kept, removed = [], []
    with store.changing():
        reasons = _reasons(store)
        for directory in store.contents():
            digest = directory.name
            reason = reasons.get(digest) or (Reason.HELD if is_leased(directory) else None)
            if reason is not None:
                kept.append(Kept(digest, _name(directory), reason))
                continue
            removed.append(Removed(digest, _name(directory), _size_bytes(directory)))
            if not dry_run:
                store.discard(directory)
    return Collection(tuple(kept), tuple(removed))


def _reasons(store: Store) -> dict[str, Reason]:
    live = {name: store.digest_of(name) for name in store.names()}
    found = {digest: Reason.LIVE for digest in live.values() if digest is not None}
    for name in store.histories.names():
        lineage = store.histories.of(name)
        if lineage is not None and (good := lineage.last_good(live.get(name))) is not None:
            found.setdefault(good, Reason.LAST_GOOD)
    return found


def _name(directory: Path) -> str:
    try:
        return Manifest.load(directory).name
    except PackageError:
        return "(unreadable)"


def _size_bytes(directory: Path) -> int:
    return sum(path.lstat().st_size for path in directory.rglob("*") if not path.is_dir())
