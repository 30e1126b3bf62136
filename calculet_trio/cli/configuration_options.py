"""The options that put values over the configuration's: one table, for every command that reads it.

Source: CLI.md "Commands", "Configuration".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import click

from calculet_trio.cli import paths
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.settings.configuration import Configuration, Override, load
from calculet_trio.settings.scheduler import SCHEMA as SCHEDULER
from calculet_trio.settings.service import SCHEMA as SERVICE
from calculet_trio.settings.service import RuntimeKind


@attrs.frozen(kw_only=True)
class Flag:
    """An option that gives a key its value.

    Args:
        name: as it is written.
        schema: of the file whose key it is.
        path: the key.
        kind: what click takes; None for a flag without a value.
        says: its help.
        default: what holds without it, for the help.
        written: from click's value to what YAML would have.
    """

    name: str
    schema: str
    path: tuple[str, ...]
    kind: Any
    says: str
    default: str | None = None
    written: Callable[[Any], object] = lambda value: value

    @property
    def parameter(self) -> str:
        return self.name.removeprefix("--").replace("-", "_")

    def option(self) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        if self.kind is None:
            return click.option(self.name, is_flag=True, default=None, help=self.says)
        return click.option(self.name, type=self.kind, default=None, show_default=self.default or False, help=self.says)


FLAGS: Final = (
    Flag(
        name="--runtime",
        schema=SERVICE,
        path=("device", "runtime"),
        kind=click.Choice([kind.value for kind in RuntimeKind]),
        says="What computes.",
        default="host",
    ),
    Flag(
        name="--script",
        schema=SERVICE,
        path=("models",),
        kind=click.Path(exists=True, dir_okay=False, path_type=Path),
        says="What a scripted runtime says.",
        written=lambda script: [{"package": str(script.absolute())}],
    ),
    Flag(
        name="--device",
        schema=SERVICE,
        path=("device", "emulated_board"),
        kind=click.Path(exists=True, dir_okay=False, path_type=Path),
        says="An emulated board's numbers.",
        default="the reference board",
        written=lambda board: str(board.absolute()),
    ),
    Flag(
        name="--library",
        schema=SERVICE,
        path=("device", "library"),
        kind=click.Path(exists=True, dir_okay=False, path_type=Path),
        says="The board's binding, libcalculet_calrt.so.",
        default="the one that `binding build` built",
        written=lambda library: str(library.absolute()),
    ),
    Flag(
        name="--accept-untried",
        schema=SERVICE,
        path=("device", "accept_untried"),
        kind=None,
        says="Serve with versions of the board's parts that were never tried together.",
    ),
    Flag(
        name="--host",
        schema=SERVICE,
        path=("listen", "host"),
        kind=str,
        says="The host to listen on.",
        default="127.0.0.1",
    ),
    Flag(
        name="--port",
        schema=SERVICE,
        path=("listen", "port"),
        kind=click.IntRange(0, 65_535),
        says="0: any free port.",
        default="8080",
    ),
    Flag(
        name="--allow-remote",
        schema=SERVICE,
        path=("listen", "allow_remote"),
        kind=None,
        says="Serve on a host that others can reach, without keys.",
    ),
    Flag(
        name="--max-waiting",
        schema=SCHEDULER,
        path=("admission", "max_waiting_requests"),
        kind=click.IntRange(0, 100_000),
        says="Queue length.",
        default="128",
    ),
    Flag(
        name="--deadline",
        schema=SCHEDULER,
        path=("admission", "deadline_default_ms"),
        kind=click.FloatRange(0.001, 86_400),
        says="Seconds a request has.",
        default="120",
        written=lambda seconds: round(seconds * 1000),
    ),
    Flag(
        name="--drain",
        schema=SERVICE,
        path=("timeouts", "streams_s"),
        kind=click.FloatRange(0, 86_400),
        says="Seconds streams have to end.",
        default="30",
    ),
)


def configuration_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a command: it gets these options, and is called with ``configuration``, checked and whole."""

    @functools.wraps(command)
    def call(*args: Any, config: Path | None, model: str | None, **values: Any) -> Any:
        given = {flag.name: values.pop(flag.parameter) for flag in FLAGS}
        return command(*args, configuration=_read(config, model, given), **values)

    options: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = [
        click.option(
            "--config",
            type=click.Path(path_type=Path),
            show_default="$XDG_CONFIG_HOME/calculet-trio/service.yaml, if there is one",
            help="The configuration; every other option goes before it.",
        ),
        click.option(
            "--model",
            metavar="ALIAS|NAME|PATH",
            help="The model to serve. Default: the configuration's, or the only package in the store.",
        ),
        *(flag.option() for flag in FLAGS),
    ]
    decorated: Callable[..., Any] = call
    for option in reversed(options):
        decorated = option(decorated)
    return decorated


def _read(config: Path | None, model: str | None, given: Mapping[str, Any]) -> Configuration:
    """The file and what was given over it.

    Raises:
        calculet_trio.errors.ConfigurationRefused: with every fault of every file.
    """
    if given["--script"] is not None and model is not None:
        raise click.UsageError("--model and --script both say what is served; leave one of the two out")
    config = config or paths.configuration_there()
    overrides = [
        Override(flag.schema, flag.path, flag.written(given[flag.name]), flag.name)
        for flag in FLAGS
        if given[flag.name] is not None
    ]
    configuration = load(config, overrides, model=model)
    if given["--script"] is not None and configuration.service.device.runtime is not RuntimeKind.SCRIPTED:
        raise ConfigurationRefused("--script goes with --runtime scripted", hint="leave it out, or name that runtime")
    return configuration
