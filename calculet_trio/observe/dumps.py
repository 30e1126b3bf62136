"""DumpDirectory: where debug dumps go: one place, names of our own, a quota, and an end to every file.

Whoever keeps a directory also calls `DumpDirectory.clean` now and then: what is too old goes though no dump follows it.

Source: SPEC section 15 (no user-controlled dump path); API.md ``POST /admin/debug-dump``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from calculet_trio.errors import Unavailable

DUMPS_MAX: Final = 20
DIRECTORY_BYTES_MAX: Final = 256 * 2**20
DUMP_BYTES_MAX: Final = 64 * 2**20
AGE_MAX_S: Final = 14 * 24 * 3600.0
CLEAN_EVERY_S: Final = 6 * 3600.0


class DumpDirectory:
    """Writes dumps, and takes old ones away, before each and when told to. Blocks.

    Args:
        directory: its own; made, open to its owner alone.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, contents: Mapping[str, Any]) -> Path:
        """A new dump of ``contents``, readable by this user alone.

        Raises:
            calculet_trio.errors.Unavailable: it is too large, or the disk does not take it.
        """
        text = json.dumps(contents, ensure_ascii=True, indent=1, default=str).encode()
        if len(text) > DUMP_BYTES_MAX:
            raise Unavailable(f"the dump would have {len(text)} bytes; at most {DUMP_BYTES_MAX} are written")
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.clean(room_bytes=len(text))
            path = self._directory / f"dump-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{time.monotonic_ns()}.json"
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(text)
        except OSError as error:
            raise Unavailable(f"the dump cannot be written: {error.strerror or error}") from error
        return path

    def clean(self, *, room_bytes: int = 0) -> int:
        """Take away what is too old, and then the oldest until one more of ``room_bytes`` fits. Returns how many."""
        kept = sorted(self._directory.glob("dump-*.json"))
        oldest_unix_s = time.time() - AGE_MAX_S
        gone = 0
        while kept:
            total_bytes = sum(path.stat().st_size for path in kept)
            is_old = kept[0].stat().st_mtime < oldest_unix_s
            if not is_old and len(kept) < DUMPS_MAX and total_bytes + room_bytes <= DIRECTORY_BYTES_MAX:
                break
            kept.pop(0).unlink(missing_ok=True)
            gone += 1
        return gone
