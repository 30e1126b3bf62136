"""``calbins``: what each board package's calbin says of itself, and whether its manifest answers for its defects.

Headers and metadata alone are read; parameters are gigabytes. A calbin in the vendor's own format is read by the
board's runtime and by nothing else, and the doctor opens no board: then it is said what was not looked at.

Source: SPEC section 14 (A §4: known defects, overridden by the manifest alone), 16.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import attrs

from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, failure, ok
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.doctor.wording import count, listing
from calculet_trio.errors import PackageError
from calculet_trio.packages.calbin import Calbin, is_emulated, read_calbin
from calculet_trio.packages.calbin_agreement import require_agreement
from calculet_trio.packages.calbin_defects import found_defects
from calculet_trio.packages.compatibility import BOARD, EMULATOR
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.manifest_parts import DeviceBinary


@attrs.frozen
class Boxed:
    """A package for a board or its emulator: how it is called here, where it lies, what its manifest says."""

    name: str
    directory: Path
    manifest: Manifest


def _packages(surroundings: Surroundings, problems: list[PackageError]) -> Iterator[Boxed]:
    """Of the store and of the configuration; what cannot be read there is a problem.

    The check `store` says what is wrong with a manifest in the store.
    """
    for each in surroundings.packages():
        if each.manifest is not None:
            yield Boxed(each.name, each.directory, each.manifest)
    for directory in surroundings.packages_elsewhere:
        try:
            yield Boxed(str(directory), directory, Manifest.load(directory))
        except PackageError as error:
            problems.append(error)


def _said(package: Boxed) -> str:
    """What is well with it, in a few words.

    Raises:
        PackageError: what is not.
    """
    binary = package.manifest.binary
    if binary is None:
        raise PackageError(f"{package.name}: binary is null; a package for {package.manifest.target} has a calbin")
    if not binary.shards:
        raise PackageError(f"{package.name}: binary.shards is empty; a calbin has a file or more")
    shards = tuple(package.directory / shard for shard in binary.shards)
    for name, shard in zip(binary.shards, shards, strict=True):
        _require_whole(shard, package.manifest.files[name].size_bytes)
    if not is_emulated(shards[0]):
        return _unread(package, binary)
    if package.manifest.target != EMULATOR:
        raise PackageError(f"{package.name} is for {package.manifest.target!r}, and its calbin is the emulator's")
    calbin = read_calbin(shards)
    require_agreement(package.manifest, calbin, package.directory)
    _require_versions(package, binary, calbin)
    return f"{package.name}: calbin {calbin.version}, {count(len(shards), 'shard')}, {_defects(binary, calbin)}"


def _require_whole(shard: Path, size_bytes: int) -> None:
    try:
        found = shard.lstat()
    except OSError as error:
        raise PackageError(f"{shard} cannot be used: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise PackageError(f"{shard} is not a regular file")
    if found.st_size != size_bytes:
        raise PackageError(f"{shard} has {found.st_size} bytes; its manifest says {size_bytes}")


def _unread(package: Boxed, binary: DeviceBinary) -> str:
    if package.manifest.target != BOARD:
        raise PackageError(
            f"{package.directory / binary.shards[0]} is not an emulated calbin, and its package is for "
            f"{package.manifest.target!r}"
        )
    overridden = listing([defect.value for defect in binary.overridden]) or "none"
    return (
        f"{package.name}: {count(len(binary.shards), 'shard')} of the vendor's format, which only the board's runtime "
        f"reads, as large as they should be; known defects that its manifest overrides: {overridden}"
    )


def _require_versions(package: Boxed, binary: DeviceBinary, calbin: Calbin) -> None:
    compiler = f"{calbin.compiler} {calbin.compiler_version}".strip()
    pairs = (
        ("version", binary.version, calbin.version),
        ("compiler", binary.compiler, compiler),
        ("calcore_rt", binary.calcore_rt, calbin.calcore_rt),
    )
    for key, said, found in pairs:
        if said != found:
            raise PackageError(f"{package.name}: binary.{key} is {said!r}; the calbin says {found!r}")


def _defects(binary: DeviceBinary, calbin: Calbin) -> str:
    """Each known defect, which the manifest overrides, or it would have been refused; and what it overrides in vain."""
    found = [each.defect for each in found_defects(calbin)]
    words = [f"known defects, overridden: {listing([each.value for each in found])}" if found else "no known defect"]
    vain = [each.value for each in binary.overridden if each not in found]
    if vain:
        words.append(f"overridden without need: {listing(vain)}")
    return ", ".join(words)


def _examine(surroundings: Surroundings) -> Finding:
    said: list[str] = []
    problems: list[PackageError] = []
    for package in _packages(surroundings, problems):
        if package.manifest.target not in (BOARD, EMULATOR):
            continue
        try:
            said.append(_said(package))
        except PackageError as error:
            problems.append(error)
    if problems:
        hints = [problem.hint for problem in problems if problem.hint]
        return failure(
            listing([problem.message for problem in problems]),
            todo=hints[0] if hints else "get its shards again, and build it with `calculet-trio package build`",
        )
    return ok("; ".join(said) if said else "no package for a board")


CHECK = Check(
    name="calbins",
    group=Group.PACKAGES,
    why="today's compiler leaves known faults in its artefacts; what no manifest answers for is not put on a board",
    examine=_examine,
)
