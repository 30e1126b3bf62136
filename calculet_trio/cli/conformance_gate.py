"""``calculet-trio conformance gate``: is a milestone reached on this board?

Source: CLI.md "Commands"; SPEC section 13 (S §19).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import click

from calculet_trio.cli.conformance_subject import RUNTIMES, configuration_of
from calculet_trio.cli.conformance_view import GateProgress, print_gate
from calculet_trio.cli.exit_codes import ExitCode
from calculet_trio.cli.model_switching import in_real_time, in_virtual_time, two_models
from calculet_trio.cli.simulate import quieten
from calculet_trio.cli.virtual_hours import serve_virtual_hours
from calculet_trio.cli.wiring_conformance import Subject, wire_subject
from calculet_trio.conformance import milestone_m0, milestone_m1, milestone_m2, milestone_m4
from calculet_trio.conformance.blocks import FULL, SHORT
from calculet_trio.conformance.clean_hours import CleanHours, serve_clean_hours
from calculet_trio.conformance.gate import Criterion, GateReport, GateVerdict
from calculet_trio.conformance.load_cycles import CYCLES
from calculet_trio.conformance.trial import Trial
from calculet_trio.core.policy import Policy
from calculet_trio.settings.configuration import Configuration
from calculet_trio.settings.service import RuntimeKind
from calculet_trio.sim.scenario import Scenario

ASKED_HOURS: Final = 24.0
"""S §19, of m0 and m2."""
ASKED_SWITCHING_HOURS: Final = {True: 8.0, False: 1 / 3}
"""Of m4, in virtual time (S §19) and in real time."""
SHORT_VIRTUAL_HOURS: Final = 0.1
SHORT_REAL_HOURS: Final = 0.003
SHORT_CYCLES: Final = 10
CODES: Final = {
    GateVerdict.PASS: ExitCode.DONE,
    GateVerdict.FAIL: ExitCode.FAIL,
    GateVerdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
}
ASKS: Final = {
    "m0": milestone_m0.ASKS,
    "m1": milestone_m1.ASKS,
    "m2": milestone_m2.ASKS,
    "m4": milestone_m4.ASKS,
}
_ASSUMED: Final = {
    "m0": milestone_m0.ASSUMPTIONS,
    "m1": milestone_m1.ASSUMPTIONS,
    "m2": milestone_m2.ASSUMPTIONS,
    "m4": milestone_m4.ASSUMPTIONS,
}


@click.command()
@click.argument("milestone", type=click.Choice(tuple(ASKS)))
@click.option("--runtime", type=click.Choice(RUNTIMES), default="emulated", show_default=True, help="What computes.")
@click.option("--package", metavar="NAME|PATH", help="The package. Default: the only one in the store.")
@click.option("--second", metavar="NAME|PATH", help="m4's other package. Default: the store's other one of two.")
@click.option(
    "--device",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An emulated board's numbers. Default: the reference board.",
)
@click.option("--config", type=click.Path(path_type=Path), help="The configuration, for store, state and policy.")
@click.option(
    "--hours",
    type=click.FloatRange(0, 768, min_open=True),
    help="How long m0, m2 and m4 serve: virtual hours on an emulated board.  [default: 24; m4: 8, in real time 1/3]",
)
@click.option("--short", is_flag=True, help="Under a minute; a PASS is then not the milestone's.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the virtual hours.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def gate(
    milestone: str,
    runtime: str,
    package: str | None,
    second: str | None,
    device: Path | None,
    config: Path | None,
    hours: float | None,
    short: bool,
    seed: int,
    as_json: bool,
) -> int:
    """Try a milestone: m0 (stable), m1 (async equals sync), m2 (ping/pong pays), m4 (models come and go).

    m3 (batches) has no gate: it needs a board's numbers. What `conformance run` tries of it, it says case by case.

    Leaves with 0 for PASS, 1 for FAIL, 3 for INCONCLUSIVE: what was measured spreads too far to say.

    \b
    Example:
      calculet-trio conformance gate m1 --runtime host --short
      calculet-trio conformance gate m0 --runtime emulated --hours 24
      calculet-trio conformance gate m4 --runtime host --package smollm2 --second qwen2.5
    """
    if second is not None and (milestone != "m4" or runtime == "emulated"):
        raise click.UsageError("--second goes with m4, on a runtime that loads packages")
    configuration = configuration_of(config, runtime=runtime, package=package, device=device)
    subject = wire_subject(configuration, in_real_time=True)
    is_virtual = configuration.service.device.runtime is RuntimeKind.EMULATED
    asked_hours = ASKED_SWITCHING_HOURS[is_virtual] if milestone == "m4" else ASKED_HOURS
    if hours is None:
        hours = asked_hours if not short else SHORT_VIRTUAL_HOURS if is_virtual else SHORT_REAL_HOURS
    board = configuration.service.device.emulated_board
    world = Scenario(seed=seed, seconds=3600 * hours, device=None if board is None else configuration.path(board))
    assumptions: tuple[str, ...] = _ASSUMED[milestone]
    if is_virtual:
        assumed = ", ".join(subject.source.meta["assumed"])
        assumptions += (f"emulated; nobody measured of the board: {assumed}; hours in virtual time, seed {seed}",)
    quieten()
    begun_at = datetime.now(UTC).isoformat(timespec="seconds")
    with GateProgress(quiet=as_json) as progress:
        work = _Work(configuration, subject, world, short=short, hours=hours, second=second, say=progress.doing)
        board_kind, criteria = work.models_switched() if milestone == "m4" else work.tried(milestone)
        report = GateReport(
            milestone=milestone,
            asks=ASKS[milestone],
            model=subject.source.alias,
            board_kind=board_kind,
            is_short=short or (milestone != "m1" and hours < asked_hours),
            assumptions=assumptions,
            criteria=criteria,
            begun_at=begun_at,
        )
    if as_json:
        click.echo(json.dumps(report.as_object(), indent=2))
    else:
        print_gate(report)
    return CODES[report.verdict]


@attrs.frozen
class _Work:
    """What a gate does, once it is known on what.

    Args:
        configuration: what would be served.
        subject: device and model.
        world: the simulator's, for hours in virtual time.
        short: whether less is tried than the milestone asks for.
        hours: of service.
        second: m4's other package.
        say: told what is being done.
    """

    configuration: Configuration
    subject: Subject
    world: Scenario
    short: bool = attrs.field(kw_only=True)
    hours: float = attrs.field(kw_only=True)
    second: str | None = attrs.field(kw_only=True)
    say: Callable[[str], None] = attrs.field(kw_only=True)

    @property
    def is_virtual(self) -> bool:
        return self.configuration.service.device.runtime is RuntimeKind.EMULATED

    def tried(self, milestone: str) -> tuple[str, tuple[Criterion, ...]]:
        """m0, m1 or m2, on a device that stays configured; also its kind."""
        size, policy = SHORT if self.short else FULL, self.subject.policy
        with Trial(self.subject.runtime, self.subject.source) as trial:
            serve = partial(self._serve_hours, trial)
            kind = trial.device().kind
            if milestone == "m0":
                return kind, milestone_m0.try_m0(trial, policy, serve_hours=serve, progress=self.say)
            if milestone == "m1":
                return kind, milestone_m1.try_m1(trial, policy, size, progress=self.say)
            return kind, milestone_m2.try_m2(trial, policy, size, serve_hours=serve, progress=self.say)

    def _serve_hours(self, trial: Trial, policy: Policy) -> CleanHours:
        self.say(f"serving {self.hours:g} h")
        if self.is_virtual:
            return serve_virtual_hours(self.world, policy)
        return serve_clean_hours(trial, policy, hours=self.hours, progress=self.say)

    def models_switched(self) -> tuple[str, tuple[Criterion, ...]]:
        """m4, on a device on which models come and go; also its kind."""
        models = two_models(self.configuration, self.subject, self.second)
        kind = self.subject.runtime.open().kind
        self.subject.runtime.close()
        if self.is_virtual:
            switching = in_virtual_time(models, self.world, hours=self.hours)
        else:
            switching = in_real_time(models, hours=self.hours, short=self.short)
        cycles = SHORT_CYCLES if self.short else CYCLES
        return kind, milestone_m4.try_m4(models, switching, cycles=cycles, progress=self.say)
