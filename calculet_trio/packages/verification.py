"""Whether a package's files are the ones that its manifest names, and its graphs find their weights in them.

Hashing 150 MB takes longer than a daemon may need to start, and 18 GB longer than a recovery may. What was hashed and
looked into once is therefore remembered, as a `Seal`: for each file its digest with inode, size and times. A file that
anybody wrote since has another change time, which no ordinary program can set, and is hashed again.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

import attrs

from calculet_trio.errors import PackageError
from calculet_trio.packages.digests import OnBytes, sha256_of
from calculet_trio.packages.graph_tensors import check_graph
from calculet_trio.packages.manifest import MANIFEST_FILE, SIGNATURE_FILE, Manifest
from calculet_trio.packages.static_validation import HOST_TARGET

REBUILD_HINT: Final = "pull or build the package again; what is damaged cannot be mended in place"
SEAL_BYTES_MAX: Final = 1 << 20
EXAMINATION: Final = 2
"""Counts what is looked at beside the hashes; what an earlier one has sealed is looked at again."""

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
        PackageError: naming the first file that is missing, strange, changed, or not in the manifest, or the tensor
            that is not where its graph says.
    """
    require_nothing_else(directory, manifest)
    marks: dict[str, list[object]] = {}
    fresh = False
    for name, record in manifest.files.items():
        found = _status(directory, name)
        if found.st_size != record.size_bytes:
            raise _damaged(manifest, name, f"it has {found.st_size} bytes, the manifest says {record.size_bytes}")
        times = (found.st_mtime_ns, found.st_ctime_ns)
        mark: list[object] = [EXAMINATION, record.sha256, found.st_ino, found.st_size, *times]
        if seal is None or seal.marks.get(name) != mark:
            fresh = True
            on_file(name, record.size_bytes)
            _hash(directory, manifest, name, on_bytes)
        marks[name] = mark
    if fresh and manifest.target == HOST_TARGET:
        for graph in sorted({submodel.graph for submodel in manifest.submodels}):
            check_graph(directory, graph, manifest)
    if seal is not None and seal.marks != marks:
        attrs.evolve(seal, marks=marks).write()


def require_nothing_else(directory: Path, manifest: Manifest) -> None:
    """Make sure that nothing lies in the package but what its manifest names, and its signature.

    Raises:
        PackageError: naming the first that does; there may be millions of them.
    """
    known = {MANIFEST_FILE, SIGNATURE_FILE, *manifest.files}
    leading = {parent.as_posix() for name in manifest.files for parent in PurePosixPath(name).parents}
    waiting = ["."]
    while waiting:
        within = waiting.pop()
        for name, is_directory in _entries(directory, within):
            if is_directory and name in leading:
                waiting.append(name)
            elif is_directory or name not in known:
                raise PackageError(
                    f"{directory / name} is not named in the package's manifest", hint="move it out of the package"
                )


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


def _entries(directory: Path, within: str) -> Iterator[tuple[str, bool]]:
    """What lies in a directory of the package, by its path there; whether each is a directory, and no link to one."""
    try:
        with os.scandir(directory / within) as entries:
            for entry in entries:
                yield (PurePosixPath(within) / entry.name).as_posix(), entry.is_dir(follow_symlinks=False)
    except OSError as error:
        raise PackageError(f"{directory / within} cannot be read: {error.strerror}", hint=REBUILD_HINT) from error


def _damaged(manifest: Manifest, name: str, what: str) -> PackageError:
    return PackageError(f"the package {manifest.name!r} is damaged: {name}: {what}", hint=REBUILD_HINT)
