"""Progress of long work: bars on a terminal, a line a step elsewhere; always on stderr, stdout is for results."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from calculet_trio.packages.build_options import Progress as Step


class ProgressDisplay:
    """``with ProgressDisplay() as display: work(report=display.report)``."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stderr)
        self._bars = Progress(
            TextColumn("{task.description:<28}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def report(self, step: Step) -> None:
        """Show how far ``step`` has come; a step that was not heard of before begins a line."""
        if step.step not in self._tasks:
            self._tasks[step.step] = self._bars.add_task(step.step, total=step.total or None)
            if not self._console.is_terminal:
                click.echo(f"{step.step} …", err=True)
        self._bars.update(self._tasks[step.step], completed=step.done, total=step.total or None)
