"""Which files below the state directory are whose.

Source: CLI.md "Paths".
"""

from __future__ import annotations

from pathlib import Path

from calculet_trio.cli import paths
from calculet_trio.settings.configuration import Configuration
from calculet_trio.settings.service import RuntimeKind


def state_directory(configuration: Configuration) -> Path:
    """Where the service keeps what must outlive a restart."""
    state = configuration.service.state
    return paths.state() if state is None else configuration.path(state)


def history_file(configuration: Configuration, alias: str) -> Path:
    """The fault history of what the configuration would use.

    A board has one, whatever it serves: its budget of resets is its own. Without a board each alias has one, since
    every process then has a device of its own.
    """
    device = configuration.service.device
    name = device.runtime.value
    if device.runtime is RuntimeKind.CALRT:
        name += "" if device.path is None else f"-{Path(device.path).name}"
    else:
        name += f"-{alias}"
    return histories(state_directory(configuration)) / f"{_as_file_name(name)}.json"


def histories(state: Path) -> Path:
    """The directory of all fault histories."""
    return state / "faults"


def audit_directory(configuration: Configuration) -> Path:
    """Where the audit log is."""
    return state_directory(configuration) / "audit"


def _as_file_name(name: str) -> str:
    """An alias may hold / and :, which are no good in names of files."""
    return "".join(character if character.isalnum() or character in "._-" else "_" for character in name)
