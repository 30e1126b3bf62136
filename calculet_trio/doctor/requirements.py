"""Requirements of this program against what is installed.

Source: PEP 508 (requirements), PEP 440 (versions), as the library ``packaging`` reads them.
"""

from __future__ import annotations

import attrs
from packaging.requirements import Requirement

from calculet_trio.doctor.installation import Installation


@attrs.frozen
class Fit:
    """One requirement and the version that is there for it."""

    requirement: Requirement
    installed: str | None

    @property
    def wanted(self) -> str:
        """As pip takes it on a command line, quoted."""
        return f"'{self.requirement.name}{self.requirement.specifier}'"

    @property
    def is_met(self) -> bool:
        return self.installed is not None and self.requirement.specifier.contains(self.installed, prereleases=True)

    @property
    def described(self) -> str:
        bounds = str(self.requirement.specifier) or "any version"
        return f"{self.requirement.name} {self.installed or 'missing'} (needed: {bounds})"


def fits(installation: Installation, *, extra: str | None = None) -> list[Fit]:
    """What pyproject.toml asks for on this platform, each with what is installed.

    Args:
        installation: the environment.
        extra: only what this extra adds; None for what everybody needs.
    """
    found = []
    for text in installation.requirements():
        requirement = Requirement(text)
        always = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        with_extra = requirement.marker is not None and requirement.marker.evaluate({"extra": extra or ""})
        if (extra is None and always) or (extra is not None and not always and with_extra):
            found.append(Fit(requirement, installation.version_of(requirement.name)))
    return found
