"""What the ``config`` commands show, to people and to programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text as RichText

from calculet_trio.cli import paths
from calculet_trio.settings.allowed import KeyPath, ListOf, Text, dotted
from calculet_trio.settings.configuration import Configuration, EffectiveValue
from calculet_trio.settings.faults import DEFAULT, Fault
from calculet_trio.settings.structuring import plain

PLACES: Final[Mapping[KeyPath, Callable[[], Path]]] = {
    ("admin_socket",): paths.admin_socket,
    ("store",): paths.package_store,
    ("state",): paths.state,
}
"""Where things are by default: null in the file, a path of this user in effect."""
DIGEST_SHOWN: Final = 8
PIPED_COLUMNS: Final = 200


def print_faults(faults: Mapping[str, Sequence[Fault]], *, as_json: bool) -> None:
    """All faults of all files."""
    if as_json:
        click.echo(
            json.dumps({file: [_fault_json(each) for each in found] for file, found in faults.items()}, indent=2)
        )
        return
    for file, found in faults.items():
        for fault in found:
            click.echo(str(fault))
        if not found:
            click.echo(f"{file}: right")


def _fault_json(fault: Fault) -> dict[str, Any]:
    return {
        "file": fault.origin.name,
        "line": fault.origin.line,
        "key": fault.key,
        "problem": fault.problem,
        "allowed": fault.allowed or None,
    }


def effective_json(configuration: Configuration) -> dict[str, Any]:
    """Each part's keys by their paths, each with its value and where that comes from."""
    return {
        title: {dotted(each.path): {"value": _value(each, configuration), "from": str(each.origin)} for each in values}
        for title, values in configuration.effective()
    }


def print_effective(configuration: Configuration) -> None:
    """The same for people: a line for each key."""
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = PIPED_COLUMNS
    for title, values in configuration.effective():
        console.print(RichText(title, style="bold"))
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in ("key", "value", "from"):
            table.add_column(column, overflow="fold")
        for each in values:
            value = json.dumps(_value(each, configuration), ensure_ascii=False)
            style = "dim" if each.origin == DEFAULT else ""
            table.add_row(*(RichText(cell, style=style) for cell in (dotted(each.path), value, str(each.origin))))
        console.print(table)
        console.print()


def _value(effective: EffectiveValue, configuration: Configuration) -> Any:
    """The value as it takes effect; of a secret only as much as tells two apart."""
    allowed = effective.key.allowed
    if isinstance(allowed, ListOf) and isinstance(allowed.inner, Text) and allowed.inner.secret:
        return [f"{digest[:DIGEST_SHOWN]}…" for digest in effective.value]
    if effective.path in PLACES:
        place = PLACES[effective.path]
        return str(place() if effective.value is None else configuration.path(effective.value))
    return plain(effective.value)
