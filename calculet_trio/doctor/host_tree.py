"""The host's files below a root directory: ``/`` for this machine, or a tree that was recorded on another.

A recorded tree holds copies of the few files that are read, under their own paths. It cannot hold device
nodes: a plain file of the node's mode stands for one.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

import attrs

from calculet_trio.regular_file import open_regular

FILE_BYTES_MAX: Final = 1 << 20
"""The longest file that is looked at is ``/etc/group`` of a large site."""


def _resolved(root: Path) -> Path:
    return root.resolve()


@attrs.frozen
class HostTree:
    """Reads below ``root``; every path is given without its leading ``/``. Nothing outside the root is read.

    Args:
        root: ``/``, or where a recorded tree begins.
    """

    root: Path = attrs.field(default=Path("/"), converter=_resolved)

    @property
    def is_live(self) -> bool:
        """Whether this is the machine that the program runs on."""
        return self.root == Path("/")

    def text(self, path: str) -> str | None:
        """A file's text without surrounding blanks; None if it is not there or cannot be read."""
        found = self._inside(path)
        if found is None:
            return None
        try:
            with open_regular(found) as file:
                return file.read(FILE_BYTES_MAX).decode("utf-8", "replace").strip()
        except OSError:
            return None

    def lines(self, path: str) -> list[str]:
        """A file's lines; none if it cannot be read."""
        return (self.text(path) or "").splitlines()

    def names(self, directory: str) -> list[str]:
        """What lies in a directory, sorted; nothing if it is not there or cannot be read."""
        found = self._inside(directory)
        try:
            return sorted(entry.name for entry in found.iterdir()) if found is not None else []
        except OSError:
            return []

    def status(self, path: str) -> os.stat_result | None:
        """What the file system says of a file; None if it is not there."""
        found = self._inside(path)
        try:
            return found.stat() if found is not None else None
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        return self.status(path) is not None

    def is_device(self, status: os.stat_result) -> bool:
        """Whether it is a character device, or what stands for one in a recorded tree."""
        return stat.S_ISCHR(status.st_mode) or (not self.is_live and stat.S_ISREG(status.st_mode))

    def link(self, path: str) -> str | None:
        """Where a symbolic link points, as it is written; it is not followed."""
        directory, _, name = path.rpartition("/")
        found = self._inside(directory)
        try:
            return str((found / name).readlink()) if found is not None else None
        except OSError:
            return None

    def _inside(self, path: str) -> Path | None:
        """The file with its links followed; None if they lead out of a recorded tree."""
        assert not path.startswith("/"), "an absolute path would replace the root"
        if self.is_live:
            return self.root / path
        found = (self.root / path).resolve()
        return found if found.is_relative_to(self.root) else None
