"""What every command to a running daemon takes: whose socket, and how the answer is shown.

Source: CLI.md "Commands".
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from calculet_trio.cli.admin_client import AdminClient
from calculet_trio.errors import OperationFailed

UNITS: Final = ("s", "bytes")
"""At a result's end, as everywhere in names."""

JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
WAIT_OPTION = click.option(
    "--watch/--no-watch", default=True, show_default=True, help="Show the progress and wait for the end."
)


def admin_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--config`` and ``--socket``; the command is given ``client``."""

    @click.option(
        "--config", type=click.Path(path_type=Path), help="The daemon's configuration, which names its socket."
    )
    @click.option("--socket", type=click.Path(path_type=Path), help="The daemon's admin socket itself.")
    @functools.wraps(command)
    def with_client(*args: Any, config: Path | None, socket: Path | None, **options: Any) -> Any:
        return command(*args, client=AdminClient.of_configuration(config, socket), **options)

    return with_client


def see_through(client: AdminClient, begun: dict[str, Any], *, watch: bool, as_json: bool) -> None:
    """Show a job's progress to its end.

    Raises:
        calculet_trio.errors.OperationFailed: it failed or was cancelled; the sentence is the daemon's own.
    """
    if not watch:
        click.echo(json.dumps(begun) if as_json else f"{begun['job']} has begun; it goes on without this command")
        return
    for line in client.follow(begun["job"]):
        if "state" in line:
            _conclude(line, as_json=as_json)
        else:
            click.echo(f"{line['after_s']:8.2f} s  {line['text']}", err=True)


def show_list(
    found: Sequence[dict[str, Any]],
    headings: Sequence[str],
    row_of: Callable[[dict[str, Any]], Sequence[str]],
    *,
    as_json: bool,
) -> None:
    """Print what the daemon listed, as it came or as a table."""
    if as_json:
        click.echo(json.dumps(found))
        return
    table = Table(*headings, box=None, header_style="bold")
    for each in found:
        table.add_row(*row_of(each))
    Console().print(table)


def _measured(name: str, value: object) -> str:
    """``downtime_s`` and 0.2 as people write it: downtime 0.2 s."""
    what, _, unit = name.rpartition("_")
    words, measure = (what, f"{value} {unit}") if what and unit in UNITS else (name, value)
    return f"{words.replace('_', ' ')} {measure}"


def _conclude(job: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(job))
    if job["state"] != "done":
        raise OperationFailed(job["error"] or f"{job['what']} was {job['state']}", hint=job["hint"])
    if not as_json:
        said = "".join(f", {_measured(name, value)}" for name, value in (job["result"] or {}).items())
        click.echo(f"{job['what']} {job['alias'] or ''}: done in {job['took_s']:.2f} s{said}".replace(" :", ":"))
