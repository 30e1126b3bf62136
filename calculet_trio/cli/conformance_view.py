"""A conformance run for people: a line a case while it runs, and a table of what has been earned."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from rich import box
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from calculet_trio.conformance.case import Case
from calculet_trio.conformance.evidence_store import Found
from calculet_trio.conformance.gate import GateReport, GateVerdict
from calculet_trio.conformance.result import Result, Verdict
from calculet_trio.conformance.run_record import EMULATED
from calculet_trio.conformance.standings import StandingRow
from calculet_trio.core.evidence import CAPABILITIES, Combination, Evidence, batch_capability
from calculet_trio.core.profiles import ModelShape

PIPED_COLUMNS: Final = 160
NAME_COLUMNS: Final = 30
COLOURS: Final = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.NOT_APPLICABLE: "dim"}
GATE_COLOURS: Final = {GateVerdict.PASS: "green", GateVerdict.FAIL: "red", GateVerdict.INCONCLUSIVE: "yellow"}


def _console(*, quiet: bool = False) -> Console:
    console = Console(file=sys.stderr if quiet else sys.stdout, highlight=False, quiet=quiet)
    if not console.is_terminal:
        console.width = PIPED_COLUMNS
    return console


class Progress:
    """``with Progress(quiet=False) as progress``: what is being tried, and how each case came out."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = _console(quiet=quiet)
        self._status: Status = self._console.status("")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.stop()

    def configuring(self, model: str) -> None:
        """The model is being loaded."""
        self._status.update(f"configuring {model} …")

    def begun(self, case: Case) -> None:
        """A case is being tried."""
        self._status.update(f"{case.name}: {case.says}")

    def ended(self, result: Result) -> None:
        """A case came out."""
        line = Text(f"{result.verdict.value:<14} ", style=COLOURS[result.verdict])
        line.append(f"{result.case:<{NAME_COLUMNS}} {result.took_s:7.2f} s  ", style="default")
        line.append(result.why, style="default")
        self._console.print(line)


def print_standings(evidence: Evidence, shape: ModelShape, *, emulated: bool) -> None:
    """The capabilities of this combination: earned by which record, or what is missing."""
    kind = "on emulated boards only" if emulated else f"on {evidence.combination.board_kind}"
    table = Table(box=box.SIMPLE, title=f"Capabilities, {kind}", title_justify="left", pad_edge=False)
    for heading in ("capability", "level", "evidence, or what is missing"):
        table.add_column(heading, overflow="fold")
    batches = (batch_capability(profile.compiled_batch) for profile in shape.decode)
    for capability in (*CAPABILITIES.values(), *batches):
        standing = evidence.standing(capability)
        said = (standing.record or "the baseline") if standing.earned else standing.missing
        table.add_row(standing.capability, standing.level.value, said, style="green" if standing.earned else "dim")
    _console().print(table)


class GateProgress:
    """``with GateProgress(quiet=False) as progress``: what a gate is doing; a line a time where nobody watches."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = _console(quiet=quiet)
        self._status: Status = self._console.status("")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.stop()

    def doing(self, what: str) -> None:
        """Something is begun."""
        self._status.update(what)


def print_gate(report: GateReport) -> None:
    """The verdict, what it is made of, and what it rests on."""
    console = _console()
    console.print(Text(report.line, style=f"bold {GATE_COLOURS[report.verdict]}"))
    console.print(Text(f"{report.model} on {report.board_kind}; {report.asks}"))
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("criterion", "verdict", "what was seen"):
        table.add_column(heading, overflow="fold")
    kind = " (emulated)" if report.is_emulated else ""
    for criterion in report.criteria:
        style = GATE_COLOURS[criterion.verdict]
        table.add_row(criterion.name, f"{criterion.verdict.value}{kind}", criterion.seen, style=style)
    console.print(table)
    for assumption in report.assumptions:
        console.print(Text(f"assumes: {assumption}", style="dim"))


def print_evidence(found: Found, standings: Mapping[Combination, Sequence[StandingRow]]) -> None:
    """The records, and for each package, runtime and board what they have earned."""
    console = _console()
    if not found.records:
        console.print("no evidence on this machine yet; `calculet-trio conformance run` makes some")
    for combination, rows in standings.items():
        kind = " (counts for emulated boards only)" if combination.board_kind in EMULATED else ""
        mine = [record for record in found.records if record.combination == combination]
        console.print(Text(f"{mine[-1].model} on {combination.board_kind}{kind}", style="bold"))
        console.print(Text(f"package sha256 {combination.package_sha256}; {combination.runtime_version}", style="dim"))
        table = Table(box=box.SIMPLE, pad_edge=False)
        for heading in ("capability", "level", "evidence, or what is missing"):
            table.add_column(heading, overflow="fold")
        for row in rows:
            said = f"{row.earned_by}, {row.earned_at}" if row.earned_by else row.missing or "the baseline"
            for wanted in row.vendor:
                said += f"\nof the vendor: {wanted}"
            table.add_row(row.capability, row.level, said, style="dim" if row.missing else "green")
        console.print(table)
    for sentence in found.unreadable:
        console.print(Text(sentence, style="yellow"))
