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

    def require_no_step_back(self, name: str, version: str) -> None:
        """Raises PackageError where a newer package has been here under that name."""
        lineage = self.of(name)
        if lineage is not None and lineage.is_newer_than(version):
            raise _older(name, version, lineage)

    def bring_in(self, name: str, version: str) -> None:
        """A package of that version is about to stand under the name.

        Raises:
            PackageError: a newer one has been here, or the history cannot be read or written.
        """

        def change(before: Lineage | None) -> Lineage:
            lineage = before or Lineage(newest_version=version)
            if lineage.is_newer_than(version):
                raise _older(name, version, lineage)
            return lineage.after_bringing_in(version)

        self._change(name, change)

    def record_served(self, name: str, version: str, digest: str) -> None:
        """The package of that digest serves under the name; raises PackageError as `bring_in` does of the history."""
        self._change(name, lambda before: (before or Lineage(newest_version=version)).after_serving(digest))

    def _change(self, name: str, change: Callable[[Lineage | None], Lineage]) -> None:
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


def _older(name: str, version: str, lineage: Lineage) -> PackageError:
    return PackageError(
        f"the package {name!r} is version {version}, and {lineage.newest_version} was here",
        hint="what served before is gone back to by a rollback; else build it with a higher --package-version",
    )
