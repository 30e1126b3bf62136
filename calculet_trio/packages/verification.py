"""Whether a package's files are the ones that its manifest names.

Hashing 150 MB takes longer than a daemon may need to start. What was hashed once is therefore remembered, as
a `Seal`: for each file its digest with inode, size and times. A file that anybody wrote since has another
change time, which no ordinary program can set, and is hashed again.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs

from calculet_trio.errors import PackageError
from calculet_trio.packages.digests import OnBytes, sha256_of
from calculet_trio.packages.manifest import MANIFEST_FILE, Manifest

REBUILD_HINT: Final = "pull or build the package again; what is damaged cannot be mended in place"
SEAL_BYTES_MAX: Final = 1 << 20

OnFile = Callable[[str, int], None]
"""Told the name of each file that is to be hashed, and its size in bytes."""


def ignore_file(_name: str, _size_bytes: int) -> None:
    """An `OnFile` for nobody."""


@attrs.frozen
class Seal:
    """Files that were hashed and found right, and what the file system said of each at that time."""

    path: Path
    marks: dict[str, list[object]]

    @classmethod
    def read(cls, path: Path) -> Seal:
        """The seal kept at ``path``; an empty one if there is none that can be read."""
        try:
            if path.stat().st_size > SEAL_BYTES_MAX:
                return cls(path, {})
            marks = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return cls(path, {})
        return cls(path, marks if isinstance(marks, dict) else {})

    def write(self) -> None:
        """Keep it, if the place can be written to; a seal that is lost costs one more hashing."""
        scratch = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            scratch.write_text(json.dumps(self.marks), encoding="utf-8")
            scratch.replace(self.path)
        except OSError:
            with suppress(OSError):
                scratch.unlink()


def check_files(
    directory: Path,
    manifest: Manifest,
    *,
    seal: Seal | None = None,
    on_file: OnFile = ignore_file,
    on_bytes: OnBytes | None = None,
) -> None:
    """Every file of the package is there, of the size and the sha256 that the manifest says, and no other is.

    Args:
        directory: the package.
        manifest: its manifest.
        seal: what need not be hashed again; None hashes everything. It is brought up to date and written.
        on_file: called before a file is hashed.
        on_bytes: called while it is.

    Raises:
        PackageError: naming the first file that is missing, strange, changed, or not in the manifest.
    """
    _refuse_strangers(directory, manifest)
    marks: dict[str, list[object]] = {}
    for name, record in manifest.files.items():
        found = _status(directory, name)
        if found.st_size != record.size_bytes:
            raise _damaged(manifest, name, f"it has {found.st_size} bytes, the manifest says {record.size_bytes}")
        mark: list[object] = [record.sha256, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
        if seal is None or seal.marks.get(name) != mark:
            on_file(name, record.size_bytes)
            _hash(directory, manifest, name, on_bytes)
        marks[name] = mark
    if seal is not None and seal.marks != marks:
        attrs.evolve(seal, marks=marks).write()


def _hash(directory: Path, manifest: Manifest, name: str, on_bytes: OnBytes | None) -> None:
    path = directory / name
    expected = manifest.files[name].sha256
    try:
        actual = sha256_of(path, on_bytes) if on_bytes else sha256_of(path)
    except OSError as error:
        raise _damaged(manifest, name, f"it cannot be read ({error.strerror})") from error
    if actual != expected:
        raise _damaged(manifest, name, f"its sha256 is {actual}, the manifest says {expected}")


def _status(directory: Path, name: str) -> os.stat_result:
    path = directory / name
    if path.is_absolute() != directory.is_absolute() or ".." in Path(name).parts or Path(name).is_absolute():
        raise PackageError(f"{directory / MANIFEST_FILE}: files: {name!r} leads out of the package", hint=REBUILD_HINT)
    try:
        found = path.lstat()
    except OSError as error:
        raise PackageError(f"{path} cannot be used: {error.strerror}", hint=REBUILD_HINT) from error
    if not stat.S_ISREG(found.st_mode):
        raise PackageError(f"{path} is not a regular file", hint=REBUILD_HINT)
    return found


def _refuse_strangers(directory: Path, manifest: Manifest) -> None:
    known = {MANIFEST_FILE, *manifest.files}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if name not in known and not (path.is_dir() and not path.is_symlink()):
            raise PackageError(f"{path} is not named in the package's manifest", hint="move it out of the package")


def _damaged(manifest: Manifest, name: str, what: str) -> PackageError:
    return PackageError(f"the package {manifest.name!r} is damaged: {name}: {what}", hint=REBUILD_HINT)
