"""A lease: as long as a process holds one on a package, garbage collection leaves that package alone.

It is a shared lock on the package's directory. Nothing is written, so that a store which cannot be written to can be
served from, and the system ends it with the process, however that ends.

Source: flock(2).
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from calculet_trio.errors import PackageError


class Lease:
    """Holds the package in ``directory`` until it is closed.

    Raises:
        PackageError: it is not there any more, or is being removed at this moment.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._descriptor: int | None = _locked(directory, fcntl.LOCK_SH)
        if self._descriptor is None:
            raise PackageError(f"{directory} is being removed from the store", hint="resolve the name again")

    def close(self) -> None:
        """Give it up. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def is_leased(directory: Path) -> bool:
    """Whether any process holds it."""
    descriptor = _locked(directory, fcntl.LOCK_EX)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def _locked(directory: Path, how: int) -> int | None:
    """The directory, open and locked; None where another's lock excludes it. It is the one of that name now."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise PackageError(f"{directory} cannot be used: {error.strerror}", hint="resolve the name again") from error
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        raise PackageError(f"{directory} cannot be locked: {error.strerror}") from error
    if not os.path.samestat(os.fstat(descriptor), directory.stat()):
        os.close(descriptor)
        return None
    return descriptor
