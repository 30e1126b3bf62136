"""The packages on this machine: a directory with one directory per package, by name.

A package appears whole or not at all. It is made in the store's own ``.staging`` (so that the last step is a
rename on one file system) under the store's lock; whatever lies in ``.staging`` when the lock is taken was
left by somebody who died, and is removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs

from calculet_trio.errors import PackageError, Unavailable
from calculet_trio.packages.digests import OnBytes
from calculet_trio.packages.manifest import MANIFEST_FILE, Manifest
from calculet_trio.packages.verification import OnFile, Seal, check_files, ignore_file

NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
"""What a package may be called: it is a directory's name, an alias in requests and a label of metrics."""
NAME_RULE: Final = "1 to 64 of a-z 0-9 . _ -, beginning with a letter or digit"
STAGING: Final = ".staging"
REPLACED: Final = ".replaced"
SEALS: Final = ".verified"
LOCK: Final = ".lock"
NAMES_SHOWN_MAX: Final = 8
PULL_HINT: Final = "calculet-trio package pull smollm2 gets a small model"


@attrs.frozen
class StoredPackage:
    """One package of the store; ``problem`` says why its manifest cannot be read, if it cannot."""

    name: str
    directory: Path
    manifest: Manifest | None
    problem: str | None = None


def require_name(name: str) -> str:
    """``name``, if a package may be called so.

    Raises:
        PackageError: naming the rule.
    """
    if not NAME.fullmatch(name):
        raise PackageError(f"a package cannot be called {name[:80]!r}", hint=f"a name is {NAME_RULE}")
    return name


def name_from_file(path: Path) -> str:
    """A package name out of a model file's name: ``Qwen3 0.6B-Q8_0.gguf`` → ``qwen3-0.6b-q8_0``."""
    name = re.sub(r"[^a-z0-9._-]+", "-", path.stem.lower()).strip("-._")[:64]
    return require_name(name or "model")


class Store:
    """The store at ``root``; the directory need not exist yet.

    Args:
        root: its directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    # ---- reading --------------------------------------------------------------------------------

    def names(self) -> tuple[str, ...]:
        """The names of its packages, sorted."""
        try:
            entries = sorted(self.root.iterdir())
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise PackageError(f"the store {self.root} cannot be read: {error.strerror}") from error
        return tuple(
            entry.name for entry in entries if NAME.fullmatch(entry.name) and (entry / MANIFEST_FILE).is_file()
        )

    def packages(self) -> tuple[StoredPackage, ...]:
        """Every package with its manifest; one that cannot be read is listed with its problem."""
        return tuple(self._look_at(name) for name in self.names())

    def _look_at(self, name: str) -> StoredPackage:
        directory = self.root / name
        try:
            return StoredPackage(name, directory, Manifest.load(directory))
        except PackageError as error:
            return StoredPackage(name, directory, None, problem=error.message)

    def resolve(self, reference: str) -> Path:
        """The directory of a package that is named, or given by its path (anything with a ``/``, or ``.``).

        Raises:
            PackageError: no such package; the message names those that exist.
        """
        if "/" in reference or reference in (".", ".."):
            directory = Path(reference).expanduser()
            if not (directory / MANIFEST_FILE).is_file():
                raise PackageError(
                    f"{reference} is not a package: it has no {MANIFEST_FILE}",
                    hint="give a package's name or directory",
                )
            return directory
        if NAME.fullmatch(reference) and (self.root / reference / MANIFEST_FILE).is_file():
            return self.root / reference
        raise PackageError(f"there is no package {reference[:80]!r} in the store {self.root}", hint=self._those_there())

    def only(self) -> Path:
        """The one package that the store holds.

        Raises:
            PackageError: it holds none, or more than one; the message names them.
        """
        names = self.names()
        if len(names) == 1:
            return self.root / names[0]
        if names:
            raise PackageError(
                f"the store {self.root} holds {len(names)} packages, and none was chosen", hint=self._those_there()
            )
        raise PackageError(f"the store {self.root} is empty", hint=PULL_HINT)

    def _those_there(self) -> str:
        names = self.names()
        if not names:
            return f"the store is empty; {PULL_HINT}"
        more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
        return f"it has: {', '.join(names[:NAMES_SHOWN_MAX])}{more}"

    def check(
        self,
        directory: Path,
        *,
        thorough: bool,
        on_file: OnFile = ignore_file,
        on_bytes: OnBytes | None = None,
    ) -> Manifest:
        """Read a package's manifest and make sure of its files, in the store or elsewhere.

        Args:
            directory: the package.
            thorough: hash every file; else only those that changed since they were last hashed here.
            on_file: told what is hashed.
            on_bytes: told how far it has come.

        Raises:
            PackageError: naming the first file that is not right.
        """
        manifest = Manifest.load(directory)
        seal = Seal.read(self._seal_path(directory))
        if thorough:
            seal = attrs.evolve(seal, marks={})
        check_files(directory, manifest, seal=seal, on_file=on_file, on_bytes=on_bytes)
        return manifest

    def _seal_path(self, directory: Path) -> Path:
        key = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:32]
        return self.root / SEALS / f"{key}.json"

    # ---- writing --------------------------------------------------------------------------------

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """An empty directory on the store's file system, and the right to `install` from it.

        Raises:
            Unavailable: another process is changing this store.
            PackageError: the store cannot be written to.
        """
        lock = self._lock()
        try:
            self._recover()
            scratch = self.root / STAGING
            scratch.mkdir()
            yield scratch
        finally:
            shutil.rmtree(self.root / STAGING, ignore_errors=True)
            os.close(lock)

    def _lock(self) -> int:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise PackageError(f"the store {self.root} cannot be written to: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise Unavailable(
                f"the store {self.root} is being changed by another command", hint="wait until it has finished"
            ) from None
        return lock

    def _recover(self) -> None:
        """Finish or undo what a process that died was doing."""
        shutil.rmtree(self.root / STAGING, ignore_errors=True)
        replaced = self.root / REPLACED
        for old in replaced.iterdir() if replaced.is_dir() else ():
            if not (self.root / old.name).exists():
                old.rename(self.root / old.name)  # it died between the two renames of `install`
        shutil.rmtree(replaced, ignore_errors=True)

    def install(self, built: Path, name: str, *, replace: bool = False) -> Path:
        """Move a package that was made in `staging` to its place, in one step.

        Args:
            built: the package, below the directory that `staging` gave.
            name: what it is called from now on.
            replace: whether a package of that name gives way.

        Raises:
            PackageError: the name is taken, or what was built is not a whole package.
        """
        require_name(name)
        assert built.is_relative_to(self.root / STAGING), "only a rename within one file system is one step"
        self.check(built, thorough=True)
        target = self.root / name
        seal = self._seal_path(built)
        if not target.exists():
            built.rename(target)
        elif replace:
            old = self.root / REPLACED / name
            old.parent.mkdir(exist_ok=True)
            target.rename(old)
            built.rename(target)
            shutil.rmtree(old.parent)
        else:
            seal.unlink(missing_ok=True)
            raise taken(name)
        if seal.exists():  # the rename touched no file: what was hashed need not be hashed again at the first start
            seal.replace(self._seal_path(target))
        return target


def taken(name: str) -> PackageError:
    """The refusal to put a package where one of that name already is."""
    return PackageError(
        f"the store already has a package {name!r}", hint="--force replaces it; --name gives another name"
    )
