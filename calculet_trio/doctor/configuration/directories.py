"""``directories``: whether the service can write where it is told to.

Source: XDG Base Directory Specification 0.8: a relative path in its variables is to be ignored.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, failure, ok, warning
from calculet_trio.doctor.surroundings import Surroundings, nearest_existing
from calculet_trio.doctor.wording import listing

VARIABLES: Final = ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR")


def _problem(purpose: str, path: Path) -> str | None:
    there = nearest_existing(path)
    if not there.is_dir():
        return f"{purpose}: {there} is not a directory"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{purpose}: {there} is not writable" if there == path else f"{purpose}: {path} cannot be made"
    return None


def _examine(surroundings: Surroundings) -> Finding:
    directories = surroundings.directories
    problems = [each for purpose, path in directories.items() if (each := _problem(purpose, path)) is not None]
    if problems:
        return failure(
            listing(problems),
            todo=f"give the directory to the account {surroundings.account.name}, or point an XDG variable elsewhere",
        )
    ignored = [
        f"{name}={value}"
        for name in VARIABLES
        if (value := surroundings.environment.get(name, "")) and not value.startswith("/")
    ]
    if ignored:
        return warning(f"ignored, since it is no absolute path: {listing(ignored)}", todo="give it in full, from / on")
    return ok(listing([f"{purpose}: {path}" for purpose, path in directories.items()]))


CHECK = Check(
    name="directories",
    group=Group.CONFIGURATION,
    why="what cannot be written is lost: a package, or the memory that it was verified",
    examine=_examine,
)
