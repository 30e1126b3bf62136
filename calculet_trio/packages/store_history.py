"""What a name of the store has stood for: how new it has been, and which packages have served under it.

A package is good when a daemon has proven it and opened it to requests; having been built or brought in is not enough.
The last good one is what a rollback goes back to, and what garbage collection leaves alone.

Source: SPEC section 8 ("keep the old signed artefact for rollback"; S §11 step 11).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs
from packaging.version import Version as Ordered

from calculet_trio.errors import PackageError
from calculet_trio.packages import manifest_json
from calculet_trio.packages.manifest_parts import Sha256, Version

SCHEMA: Final = "calculet-lineage/v1"
LOCK: Final = ".lock"


@attrs.frozen(kw_only=True)
class Lineage:
    """The history of one name.

    Args:
        newest_version: the highest ``package_version`` that was ever brought in; nothing older comes in after it.
        served: the package that served last, by the digest of its manifest; None before any has.
        served_before: the one before that.
    """

    newest_version: Version
    served: Sha256 | None = None
    served_before: Sha256 | None = None
    schema: str = SCHEMA

    def is_newer_than(self, version: str) -> bool:
        """Whether ``version`` would be a step back."""
        return Ordered(version) < Ordered(self.newest_version)

    def after_bringing_in(self, version: str) -> Lineage:
        return self if self.is_newer_than(version) else attrs.evolve(self, newest_version=version)

    def after_serving(self, digest: str) -> Lineage:
        return self if digest == self.served else attrs.evolve(self, served=digest, served_before=self.served)

    def last_good(self, live: str | None) -> str | None:
        """What to go back to from ``live``: what served last, or, where that is it, what served before."""
        return self.served_before if live == self.served else self.served


class Histories:
    """The lineages of a store's names, a file each below ``root``; the directory need not exist yet.

    They have a lock of their own, since a build holds the store's for minutes and a daemon that has just begun to
    serve does not wait for it. What is done under this one takes no time.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> tuple[str, ...]:
        """Every name that ever stood for something."""
        return tuple(sorted(path.stem for path in self.root.glob("*.json")))

    def of(self, name: str) -> Lineage | None:
        """What the name has stood for; None if it never stood for anything.

        Raises:
            PackageError: it cannot be read. Nothing is made up in its place: it guards against a downgrade.
        """
        path = self._path(name)
        if not path.exists():
            return None
        found = manifest_json.structure(manifest_json.read(path), Lineage, path)
        if found.schema != SCHEMA:
            raise PackageError(f"{path}: schema is {found.schema[:80]!r}; this version reads {SCHEMA!r}")
        return found

    def change(self, name: str, change: Callable[[Lineage | None], Lineage]) -> None:
        """Write down what ``change`` makes of a name's history.

        Raises:
            PackageError: it cannot be read or written; and whatever ``change`` raises.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise PackageError(f"{self.root} cannot be written to: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = self.of(name)
            after = change(before)
            if after != before:
                manifest_json.write(manifest_json.unstructure(after), self._path(name))
        except OSError as error:
            raise PackageError(f"{self.root} cannot be written to: {error.strerror}") from error
        finally:
            os.close(lock)

    def _path(self, name: str) -> Path:
        return self.root / f"{name}.json"
