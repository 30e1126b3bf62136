"""Hashing files, in pieces, with a word on how far it has come."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from calculet_trio.regular_file import open_regular

CHUNK_BYTES: Final = 1 << 20

OnBytes = Callable[[int], None]
"""Told how many more bytes have been done."""


def ignore_bytes(_count_bytes: int) -> None:
    """An `OnBytes` for nobody."""


def sha256_of(path: Path, on_bytes: OnBytes = ignore_bytes) -> str:
    """The file's sha256, in hexadecimal; raises OSError if it cannot be read, or is no regular file."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            on_bytes(len(chunk))
    return digest.hexdigest()
