"""A simulation for people: how far it is, and what came of it."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Final, Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from calculet_trio.sim.failure import Failure
from calculet_trio.sim.summary import Summary

PIPED_COLUMNS: Final = 160
_STEPS: Final = 200


class SimulationProgress:
    """A bar over virtual time on a terminal; nothing elsewhere.

    Args:
        seconds: how long clients come.
        shown: whether anybody looks.
    """

    def __init__(self, seconds: float, *, shown: bool) -> None:
        console = Console(file=sys.stderr)
        self._bar = Progress(
            TextColumn("virtual time"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not (shown and console.is_terminal),
        )
        self._task = self._bar.add_task("virtual time", total=seconds)
        self._step_s = seconds / _STEPS
        self._next_s = 0.0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def reached(self, moment_s: float) -> None:
        """It is ``moment_s``."""
        if moment_s >= self._next_s:
            self._bar.update(self._task, completed=moment_s)
            self._next_s = moment_s + self._step_s


def print_summary(summary: Summary, *, took_s: float, command: str) -> None:
    """Print it to standard output."""
    console = _console()
    table = Table(box=box.SIMPLE, show_header=False, show_edge=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("board", summary.board)
    table.add_row(
        "virtual time", f"{summary.virtual_s:.1f} s in {took_s:.1f} s: {summary.virtual_s / took_s:.0f} x real time"
    )
    table.add_row("daemon", f"lives {summary.lives}, lost devices {summary.losses}, events and effects {summary.steps}")
    table.add_row("clients", _counts(summary.endings))
    table.add_row("faults", _counts(summary.faults))
    for name, each in summary.latencies.items():
        if each.p50_s is not None and each.p99_s is not None:
            table.add_row(name, f"P50 {each.p50_s:.3f} s, P99 {each.p99_s:.3f} s")
    table.add_row("tokens", f"{summary.tokens_per_s:.1f} a second in whole replies; {_counts(summary.tenants)}")
    table.add_row("engines busy", ", ".join(f"{name} {share:.1%}" for name, share in summary.busy_share.items()))
    table.add_row("fairness", f"{summary.fairness_comparisons} comparisons of two tenants, each within the bound")
    table.add_row("assumed", ", ".join(summary.assumed) or "nothing: every number of the device file is a measurement")
    console.print(table)
    console.print(Text(f"again: {command}", style="dim"), soft_wrap=True)
    console.print(Text("PASS (emulated): no checker objected", style="bold green"))


def print_failure(failure: Failure, *, tries: int) -> None:
    """Print it to standard output."""
    console = _console()
    console.print(Text(f"FAIL (emulated), seed {failure.scenario.seed}", style="bold red"))
    console.print(Text(failure.message), soft_wrap=True)
    console.print(Text(f"at {failure.where}", style="dim"), soft_wrap=True)
    if tries:
        console.print(f"the smallest world found in {tries} tries:")
    console.print(Text(f"again: {failure.scenario.command()}"), soft_wrap=True)


def _console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPED_COLUMNS
    return console


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"
