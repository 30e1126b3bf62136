"""What the file system says of a package's files: whoever touched one of them since is seen by it.

What was verified must be what is used, and both take a while: a file that is another one meanwhile, a link in its
place, or a manifest that says something else leaves its trace here, in an inode or in a change time, which no ordinary
program can set.

Source: stat(2).
"""

from __future__ import annotations

from pathlib import Path

import attrs

from calculet_trio.errors import PackageError
from calculet_trio.packages.manifest import MANIFEST_FILE, Manifest

Mark = tuple[int, int, int, int, int, int] | None
"""Device, inode, kind and mode, size, and when content and inode were changed last, in ns; None where nothing is."""


@attrs.frozen
class Footprint:
    """A package at one moment.

    Args:
        directory: where it is.
        marks: of its manifest and each file that this names.
    """

    directory: Path
    marks: dict[str, Mark]

    @classmethod
    def of(cls, directory: Path) -> Footprint:
        """As it is now; reads its manifest, and hashes nothing. Raises PackageError if that is none."""
        names = (MANIFEST_FILE, *Manifest.load(directory).files)
        return cls(directory, {name: _mark(directory / name) for name in names})

    def require_same(self, now: Footprint) -> None:
        """Raises PackageError naming the first file that was touched between the two."""
        for name in (*self.marks, *now.marks):
            if self.marks.get(name) != now.marks.get(name):
                raise PackageError(
                    f"{self.directory / name} was touched after it had been verified",
                    hint="load it again, once nobody writes to it",
                )


def _mark(path: Path) -> Mark:
    try:
        found = path.lstat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
