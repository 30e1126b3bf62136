"""Bringing a package that was made elsewhere into the store: copied, made sure of, and then there, in one step.

Nothing of the place it came from is believed. Only what the manifest names is copied, never through a link and never
more bytes than it says; what is then made sure of is the copy.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

from calculet_trio.errors import PackageError, Unavailable
from calculet_trio.packages.acceptance import accept
from calculet_trio.packages.digests import CHUNK_BYTES, OnBytes, ignore_bytes
from calculet_trio.packages.manifest import MANIFEST_FILE, SIGNATURE_FILE, Manifest
from calculet_trio.packages.manifest_json import BYTES_MAX
from calculet_trio.packages.package_signature import package_signer
from calculet_trio.packages.static_validation import validate
from calculet_trio.packages.store import Store
from calculet_trio.packages.trust import Trust
from calculet_trio.packages.verification import require_nothing_else

SPARE_BYTES = 64 << 20


def take_in(
    store: Store, source: Path, trust: Trust, *, replace: bool = False, on_bytes: OnBytes = ignore_bytes
) -> Path:
    """Copy the package in the directory ``source`` into the store.

    Args:
        store: where to.
        source: a package's directory, of anywhere.
        trust: whose signatures count.
        replace: whether a package of that name gives way.
        on_bytes: told how far copying and hashing have come; both together are twice the package's size.

    Returns:
        Its directory in the store.

    Raises:
        calculet_trio.packages.signing.SignatureRefused: nobody who is trusted has signed it.
        calculet_trio.errors.PackageError: it is damaged, holds what it does not name, contradicts itself, is older
            than what has been here, or its name is taken.
        calculet_trio.errors.Unavailable: another process is changing the store, or the disk has no room.
    """
    manifest = Manifest.load(source)
    package_signer(source, manifest, trust)
    validate(manifest).require()
    require_nothing_else(source, manifest)
    with store.staging() as scratch:
        _require_room(scratch, manifest)
        built = scratch / "package"
        built.mkdir()
        try:
            for name in (MANIFEST_FILE, SIGNATURE_FILE):
                _copy(source, name, built, size_bytes_max=BYTES_MAX, on_bytes=ignore_bytes)
            for name, record in manifest.files.items():
                _copy(source, name, built, size_bytes_max=record.size_bytes, on_bytes=on_bytes)
        except OSError as error:
            raise Unavailable(f"{source} cannot be copied into the store: {error.strerror}") from error
        accept(store, built, trust, thorough=True, on_bytes=on_bytes)
        return store.install(built, replace=replace)


def _require_room(place: Path, manifest: Manifest) -> None:
    needed_bytes = sum(record.size_bytes for record in manifest.files.values()) + SPARE_BYTES
    free_bytes = shutil.disk_usage(place).free
    if free_bytes < needed_bytes:
        raise Unavailable(
            f"the store has {free_bytes >> 20} MiB free; the package takes {needed_bytes >> 20} MiB",
            hint="`calculet-trio package gc` removes what nothing needs any more",
        )


def _copy(source: Path, name: str, target: Path, *, size_bytes_max: int, on_bytes: OnBytes) -> None:
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    path = source / name
    try:
        # Neither follows a link in the last place nor waits for the other end of a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        reason = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise PackageError(f"{path} cannot be copied: {reason}") from error
    with os.fdopen(descriptor, "rb", buffering=0) as file, (target / name).open("xb") as copy:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise PackageError(f"{path} is not a regular file")
        left_bytes = size_bytes_max
        while chunk := file.read(min(CHUNK_BYTES, left_bytes + 1)):
            left_bytes -= len(chunk)
            if left_bytes < 0:
                raise PackageError(f"{path} has more than {size_bytes_max} bytes, which is what its manifest says")
            copy.write(chunk)
            on_bytes(len(chunk))
