"""``interpreter``: the Python version against ``requires-python``."""

from __future__ import annotations

import sys

from packaging.specifiers import SpecifierSet

from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, failure, ok
from calculet_trio.doctor.surroundings import Surroundings


def _examine(surroundings: Surroundings) -> Finding:
    version = surroundings.installation.python_version()
    bounds = surroundings.installation.python_bounds()
    seen = f"Python {version} ({sys.executable})"
    if not SpecifierSet(bounds).contains(version, prereleases=True):
        return failure(f"{seen}; supported: {bounds}", todo=f"make the environment anew with Python {bounds}")
    return ok(seen)


CHECK = Check(
    name="interpreter",
    group=Group.PYTHON,
    why="the program uses the language as of that version; an older one fails somewhere in the middle",
    examine=_examine,
)
