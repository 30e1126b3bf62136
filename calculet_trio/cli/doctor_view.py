"""A doctor's report for people: a table per group, and beneath what is wrong why it matters and what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from calculet_trio.doctor.examination import Report, Result
from calculet_trio.doctor.finding import Mark
from calculet_trio.doctor.registry import CHECKS

PIPED_COLUMNS: Final = 160
NAME_COLUMNS: Final = max(len(check.name) for check in CHECKS)
"""So that the groups stand under each other."""
COLOURS: Final = {Mark.OK: "green", Mark.WARNING: "yellow", Mark.FAILURE: "red"}


def print_report(report: Report, *, strict: bool) -> None:
    """Print it to standard output; in colour where a terminal shows it."""
    # A terminal of another encoding shows a ? for a mark; the words beside it say the same.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPED_COLUMNS
    for group, results in groupby(report.results, key=lambda result: result.check.group):
        console.print(Text(group.value, style="bold"))
        console.print(_table(list(results)))
    console.print(_verdict(report, strict=strict))


def _table(results: list[Result]) -> Table:
    table = Table(box=box.SIMPLE, show_header=False, show_edge=False, pad_edge=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, min_width=NAME_COLUMNS)
    table.add_column(overflow="fold")
    for result in results:
        mark = result.finding.mark
        table.add_row(Text(f"  {mark.symbol}", style=COLOURS[mark]), Text(result.check.name), Text(result.finding.seen))
        for label, text in _advice(result):
            table.add_row("", Text(label, style="dim", justify="right"), Text(text))
    return table


def _advice(result: Result) -> Iterator[tuple[str, str]]:
    if result.finding.mark is not Mark.OK:
        yield "why", result.check.why
    if result.finding.todo is not None:
        yield "do", result.finding.todo


def _verdict(report: Report, *, strict: bool) -> Text:
    counts = ", ".join(f"{report.count(mark)} {mark.symbol}" for mark in Mark)
    passes = report.passes(strict=strict)
    words = "nothing stands in the way" if passes else "this needs mending"
    return Text(f"\n{counts}: {words}", style="bold green" if passes else "bold red")
