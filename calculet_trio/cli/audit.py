"""``calculet-trio audit``: what operators did; read from the log itself, so that no daemon is needed.

Source: CLI.md "Commands".
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from calculet_trio.admin import audit as audit_log
from calculet_trio.cli import paths
from calculet_trio.cli.admin_options import JSON_OPTION
from calculet_trio.cli.exit_codes import ExitCode
from calculet_trio.cli.state_files import audit_directory
from calculet_trio.errors import Unavailable
from calculet_trio.settings.configuration import load

DIGEST: Final = re.compile("[0-9a-f]{64}")
SHOWN: tuple[str, ...] = ("n", "at", "event", "call", "job", "status", "outcome", "uid", "pid")

CONFIG_OPTION = click.option("--config", type=click.Path(path_type=Path), help="The daemon's configuration.")


def _digest(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not DIGEST.fullmatch(value):
        raise click.BadParameter("must be the 64 lower-case hex digits that `audit verify` printed as head")
    return value


@click.group()
def audit() -> None:
    """Show and verify the record of what operators did."""


@audit.command()
@click.option("--last", type=click.IntRange(1, 100_000), default=50, show_default=True, help="How many records.")
@CONFIG_OPTION
@JSON_OPTION
def show(last: int, config: Path | None, as_json: bool) -> None:
    """Print the last records, the oldest first.

    \b
    Example:
      calculet-trio audit show --last 20
    """
    try:
        found = deque(audit_log.records(_directory(config)), maxlen=last)
    except OSError as error:
        raise Unavailable(f"the audit log cannot be read: {error}") from error
    for record in found:
        click.echo(json.dumps(record) if as_json else _sentence(record))
    if not found and not as_json:
        click.echo("nothing is on record")


@audit.command()
@click.option(
    "--head",
    callback=_digest,
    metavar="DIGEST",
    help="A digest that an earlier verification printed: it must still be there.",
)
@CONFIG_OPTION
@JSON_OPTION
def verify(head: str | None, config: Path | None, as_json: bool) -> ExitCode:
    """Read the whole log and check that nothing in it was changed, taken out or put in.

    \b
    Example:
      calculet-trio audit verify
    """
    try:
        verdict = audit_log.verify(_directory(config), head=head)
    except OSError as error:
        raise Unavailable(f"the audit log cannot be read: {error}") from error
    if as_json:
        said = {"records": verdict.records, "head": verdict.head, "problem": verdict.problem, "note": verdict.note}
        click.echo(json.dumps(said))
    elif verdict.problem is None:
        click.echo(f"{verdict.records} records, each following the one before it" + _noted(verdict.note))
        click.echo(f"head {verdict.head}   (note it elsewhere, and give it to --head another time)")
    else:
        click.echo(f"{verdict.records} records are good; then: {verdict.problem}", err=True)
    return ExitCode.DONE if verdict.problem is None else ExitCode.FAIL


def _directory(config: Path | None) -> Path:
    return audit_directory(load(config or paths.configuration_there()))


def _noted(note: str | None) -> str:
    return "" if note is None else f"; {note}"


def _sentence(record: Mapping[str, Any]) -> str:
    return "  ".join(f"{name}={record[name]}" for name in SHOWN if record.get(name) is not None)
