"""What a conformance command is about, as its options say it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from calculet_trio.cli import paths
from calculet_trio.cli.board import trial_package
from calculet_trio.settings.configuration import Configuration, Override, load
from calculet_trio.settings.service import SCHEMA as SERVICE

RUNTIMES: Final = ("host", "emulated", "calrt")


def configuration_of(config: Path | None, *, runtime: str, package: str | None, device: Path | None) -> Configuration:
    """The configuration that a command of this group is about."""
    config = config or paths.configuration_there()
    if device is not None and runtime != "emulated":
        raise click.UsageError("--device goes with --runtime emulated")
    overrides = [Override(SERVICE, ("device", "runtime"), runtime, "--runtime")]
    if runtime == "calrt" and package is None and config is None:
        package = trial_package()
    if device is not None:
        overrides.append(Override(SERVICE, ("device", "emulated_board"), str(device.absolute()), "--device"))
    return load(config, overrides, model=package)
