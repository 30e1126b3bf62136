"""What is installed in this Python environment, and what this program was released to run with."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Final

PROGRAM: Final = "calculet-trio"


class Installation:
    """This environment, by the metadata of its distributions; nothing is imported to look at it."""

    def python_version(self) -> str:
        return platform.python_version()

    def python_bounds(self) -> str:
        """The Python versions that pyproject.toml allows."""
        return metadata.metadata(PROGRAM)["Requires-Python"]

    def requirements(self) -> list[str]:
        """What pyproject.toml depends on, extras included, as pip writes it."""
        return metadata.requires(PROGRAM) or []

    def version_of(self, distribution: str) -> str | None:
        """The version that is installed; None if it is not."""
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            return None
