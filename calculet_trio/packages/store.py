"""The packages on this machine, each under the digest of its manifest, and names that stand for one of them each.

``NAME`` is a link to ``.content/DIGEST``, the package; what is there is never changed. A package appears whole or not
at all: it is made in the store's own ``.staging`` (so that the last steps are renames on one file system) under the
store's lock, and whatever lies in ``.staging`` when the lock is taken was left by somebody who died, and is removed.
Replacing a package makes its name stand for another; whoever reads or runs the old one is not disturbed, and it can be
gone back to until `calculet_trio.packages.store_collection` removes it. A directory that somebody put under a name
himself is a package, too, for as long as nothing replaces it.

Source: SPEC section 8 ("keep the old signed artefact for rollback"; S §11 steps 1 and 11).
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
from calculet_trio.packages.digests import OnBytes, sha256_of
from calculet_trio.packages.manifest import MANIFEST_FILE, SIGNATURE_FILE, Manifest
from calculet_trio.packages.store_history import Histories
from calculet_trio.packages.verification import OnFile, Seal, check_files, ignore_file

NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
"""What a package may be called: it is a directory's name, an alias in requests and a label of metrics."""
DIGEST: Final = re.compile(r"[0-9a-f]{64}")
NAME_RULE: Final = "1 to 64 of a-z 0-9 . _ -, beginning with a letter or digit"
CONTENT: Final = ".content"
HISTORY: Final = ".history"
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


def _may_be_package(directory: Path) -> bool:
    """Whether a manifest is there; where nobody may look, reading it says so."""
    try:
        return (directory / MANIFEST_FILE).is_file()
    except OSError:
        return True


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
        self.histories = Histories(root / HISTORY)

    # ---- reading --------------------------------------------------------------------------------

    def names(self) -> tuple[str, ...]:
        """The names of its packages, sorted."""
        try:
            entries = sorted(self.root.iterdir())
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise PackageError(f"the store {self.root} cannot be read: {error.strerror}") from error
        return tuple(entry.name for entry in entries if NAME.fullmatch(entry.name) and _may_be_package(entry))

    def packages(self) -> tuple[StoredPackage, ...]:
        """Every package with its manifest; one that cannot be read is listed with its problem."""
        return tuple(self._look_at(name) for name in self.names())

    def _look_at(self, name: str) -> StoredPackage:
        directory = self._place(name)
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
            if not _may_be_package(directory):
                what = f"it has no {MANIFEST_FILE}" if directory.is_dir() else "there is no such directory"
                raise PackageError(
                    f"{reference} is not a package: {what}",
                    hint="give a package's name or directory",
                )
            return directory
        if NAME.fullmatch(reference) and _may_be_package(self.root / reference):
            return self._place(reference)
        raise PackageError(f"there is no package {reference[:80]!r} in the store {self.root}", hint=self._those_there())

    def only(self) -> Path:
        """The one package that the store holds.

        Raises:
            PackageError: it holds none, or more than one; the message names them.
        """
        names = self.names()
        if len(names) == 1:
            return self._place(names[0])
        if names:
            raise PackageError(
                f"the store {self.root} holds {len(names)} packages, and none was chosen", hint=self._those_there()
            )
        raise PackageError(f"the store {self.root} is empty", hint=PULL_HINT)

    def _place(self, name: str) -> Path:
        """The directory that a name stands for now; it stays what it is when the name moves on."""
        digest = self.digest_of(name)
        return self.root / name if digest is None else self.root / CONTENT / digest

    def digest_of(self, name: str) -> str | None:
        """The digest of what a name stands for; None where that is a directory that somebody put there."""
        try:
            target = (self.root / name).readlink()
        except OSError:
            return None
        return target.name if target.parent == Path(CONTENT) and DIGEST.fullmatch(target.name) else None

    def contents(self) -> tuple[Path, ...]:
        """Every package that it holds, named or not, by digest."""
        try:
            entries = sorted((self.root / CONTENT).iterdir())
        except FileNotFoundError:
            return ()
        return tuple(entry for entry in entries if DIGEST.fullmatch(entry.name))

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
    def changing(self) -> Iterator[None]:
        """The right to change the store, until it is left.

        Raises:
            Unavailable: another process is changing this store.
            PackageError: the store cannot be written to.
        """
        lock = self._lock()
        try:
            self._recover()
            yield
        finally:
            os.close(lock)

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """An empty directory on the store's file system, and the right to `install` from it; raises as `changing`."""
        with self.changing():
            scratch = self.root / STAGING
            scratch.mkdir()
            try:
                yield scratch
            finally:
                shutil.rmtree(scratch, ignore_errors=True)

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
            if not os.path.lexists(self.root / old.name):
                old.rename(self.root / old.name)  # it died before the name stood for the new one
        shutil.rmtree(replaced, ignore_errors=True)

    def install(self, built: Path, *, replace: bool = False) -> Path:
        """Take in a package that was made in `staging`, and let its name stand for it, in one step.

        Args:
            built: the package, below the directory that `staging` gave.
            replace: whether another package of its name gives way.

        Returns:
            Its directory from now on.

        Raises:
            PackageError: the name is taken, the version is older than one that was here, or what was built is not a
                whole package.
        """
        assert built.is_relative_to(self.root / STAGING), "only a rename within one file system is one step"
        manifest = self.check(built, thorough=False)
        name, digest = manifest.name, sha256_of(built / MANIFEST_FILE)
        if os.path.lexists(self.root / name) and self.digest_of(name) != digest and not replace:
            self._seal_path(built).unlink(missing_ok=True)
            raise taken(name)
        self.histories.bring_in(name, manifest.package_version)
        target = self._keep(built, digest)
        self._point(name, digest)
        return target

    def _keep(self, built: Path, digest: str) -> Path:
        """The package under its digest. If it is there already, whole, only its signature may be another one."""
        target = self.root / CONTENT / digest
        seal = self._seal_path(built)
        if target.exists() and self._is_whole(target):
            seal.unlink(missing_ok=True)
            if (built / SIGNATURE_FILE).exists():
                (built / SIGNATURE_FILE).replace(target / SIGNATURE_FILE)
            return target
        _synchronise(built)
        target.parent.mkdir(exist_ok=True)
        if target.exists():
            target.rename(self.root / STAGING / f"{digest}.damaged")
        built.rename(target)
        if seal.exists():  # the rename touched no file: what was hashed need not be hashed again at the first start
            seal.replace(self._seal_path(target))
        return target

    def _is_whole(self, directory: Path) -> bool:
        try:
            self.check(directory, thorough=False)
        except PackageError:
            return False
        return True

    def _point(self, name: str, digest: str) -> None:
        place = self.root / name
        if place.is_dir() and not place.is_symlink():
            (self.root / REPLACED).mkdir(exist_ok=True)
            place.rename(self.root / REPLACED / name)
        link = self.root / STAGING / f"{name}.link"
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(Path(CONTENT, digest))
        link.replace(place)
        shutil.rmtree(self.root / REPLACED, ignore_errors=True)

    def discard(self, directory: Path) -> None:
        """Remove a package that nothing wants any more; the caller is `changing` the store."""
        self._seal_path(directory).unlink(missing_ok=True)
        scratch = self.root / STAGING
        scratch.mkdir(exist_ok=True)
        directory.rename(scratch / directory.name)
        shutil.rmtree(scratch)

    # ---- what served --------------------------------------------------------------------------------

    def record_served(self, directory: Path) -> None:
        """The package in ``directory`` has been proven and serves: it is good. Others' packages are not recorded.

        Raises:
            PackageError: the store cannot be written to, or its history not be read.
        """
        if directory.parent == self.root / CONTENT:
            manifest = Manifest.load(directory)
            self.histories.record_served(manifest.name, manifest.package_version, directory.name)

    def roll_back(self, name: str) -> Path:
        """Let ``name`` stand for its last good package again.

        The caller has made sure of it (`last_good` says where it is); after it served, the one that was given up is
        what another rollback goes back to, if it ever served.

        Raises:
            PackageError: there is none.
            Unavailable: another process is changing this store.
        """
        with self.changing():
            target = self.last_good(name)
            try:
                self._point(name, target.name)
            finally:
                shutil.rmtree(self.root / STAGING, ignore_errors=True)
        return target

    def last_good(self, name: str, *, once_served: str | None = None) -> Path:
        """The package that a rollback of ``name`` goes back to.

        Args:
            name: in the store.
            once_served: the digest of a package that is about to serve under it; None for what it stands for now.

        Raises:
            PackageError: no other package has served under it, or it was removed.
        """
        lineage = self.histories.of(name)
        if lineage is not None and once_served is not None:
            lineage = lineage.after_serving(once_served)
        digest = None if lineage is None else lineage.last_good(once_served or self.digest_of(name))
        if digest is None:
            raise PackageError(
                f"no other package has served under the store's name {name!r}: there is nothing to go back to",
                hint="a rollback undoes what this daemon has loaded in another's place, `package pull --force` and "
                "`import --force`; `calculet-trio models load ALIAS --package NAME` loads any other",
            )
        if not (self.root / CONTENT / digest / MANIFEST_FILE).is_file():
            raise PackageError(f"what served as {name!r} before, {digest[:16]}…, is not in the store any more")
        return self.root / CONTENT / digest


def _synchronise(directory: Path) -> None:
    """Have the disk hold every file before a name stands for them."""
    for path in (*directory.rglob("*"), directory):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def taken(name: str) -> PackageError:
    """The refusal to put a package where one of that name already is."""
    return PackageError(
        f"the store already has a package {name!r}", hint="--force replaces it; --name gives another name"
    )
