"""Opening what should be a file, and may be anything: opening a FIFO that nobody writes to would wait for ever."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_unwaited(path: Path) -> BinaryIO:
    """Open a file or a pipe to be read; a FIFO that nobody writes to is empty, and not waited for.

    Raises:
        OSError: it cannot be opened.
    """
    return open(path, "rb", opener=_unwaited)


def _unwaited(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    os.set_blocking(descriptor, True)  # who does write to it may take his time
    return descriptor


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to be read; links are followed, and nothing is waited for.

    Raises:
        OSError: it cannot be opened, or is something else; ``strerror`` says so.
    """
    file = open_unwaited(path)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))
