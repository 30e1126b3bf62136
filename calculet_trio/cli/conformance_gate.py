"""``calculet-trio conformance gate``: is a milestone reached on this board?

Source: CLI.md "Commands"; SPEC section 13 (S §19).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from calculet_trio.cli.conformance_subject import RUNTIMES, configuration_of
from calculet_trio.cli.conformance_view import GateProgress, print_gate
from calculet_trio.cli.exit_codes import ExitCode
from calculet_trio.cli.simulate import quieten
from calculet_trio.cli.virtual_hours import serve_virtual_hours
from calculet_trio.cli.wiring import wire_subject
from calculet_trio.conformance import milestone_m0, milestone_m1, milestone_m2
from calculet_trio.conformance.blocks import FULL, SHORT
from calculet_trio.conformance.clean_hours import CleanHours, serve_clean_hours
from calculet_trio.conformance.gate import Criterion, GateReport, GateVerdict
from calculet_trio.conformance.trial import Trial
from calculet_trio.core.policy import Policy
from calculet_trio.settings.service import RuntimeKind
from calculet_trio.sim.scenario import Scenario

ASKED_HOURS: Final = 24.0
"""S §19, of m0 and m2."""
SHORT_VIRTUAL_HOURS: Final = 0.1
SHORT_REAL_HOURS: Final = 0.003
CODES: Final = {
    GateVerdict.PASS: ExitCode.DONE,
    GateVerdict.FAIL: ExitCode.FAIL,
    GateVerdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
}
ASKS: Final = {"m0": milestone_m0.ASKS, "m1": milestone_m1.ASKS, "m2": milestone_m2.ASKS}
_ASSUMED: Final = {
    "m0": milestone_m0.ASSUMPTIONS,
    "m1": milestone_m1.ASSUMPTIONS,
    "m2": milestone_m2.ASSUMPTIONS,
}


@click.command()
@click.argument("milestone", type=click.Choice(tuple(ASKS)))
@click.option("--runtime", type=click.Choice(RUNTIMES), default="emulated", show_default=True, help="What computes.")
@click.option("--package", metavar="NAME|PATH", help="The package. Default: the only one in the store.")
@click.option(
    "--device",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An emulated board's numbers. Default: the reference board.",
)
@click.option("--config", type=click.Path(path_type=Path), help="The configuration, for store, state and policy.")
@click.option(
    "--hours",
    type=click.FloatRange(0, 768, min_open=True),
    help="How long m0 and m2 serve: virtual hours on an emulated board.  [default: 24]",
)
@click.option("--short", is_flag=True, help="Under a minute; a PASS is then not the milestone's.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the virtual hours.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def gate(
    milestone: str,
    runtime: str,
    package: str | None,
    device: Path | None,
    config: Path | None,
    hours: float | None,
    short: bool,
    seed: int,
    as_json: bool,
) -> int:
    """Try a milestone: m0 (stable), m1 (async equals sync), m2 (ping/pong pays).

    Leaves with 0 for PASS, 1 for FAIL, 3 for INCONCLUSIVE: what was measured spreads too far to say.

    \b
    Example:
      calculet-trio conformance gate m1 --runtime host --short
      calculet-trio conformance gate m0 --runtime emulated --hours 24
    """
    configuration = configuration_of(config, runtime=runtime, package=package, device=device)
    subject = wire_subject(configuration, in_real_time=True)
    is_virtual = configuration.service.device.runtime is RuntimeKind.EMULATED
    if hours is None:
        hours = ASKED_HOURS if not short else SHORT_VIRTUAL_HOURS if is_virtual else SHORT_REAL_HOURS
    board = configuration.service.device.emulated_board
    world = Scenario(seed=seed, seconds=3600 * hours, device=None if board is None else configuration.path(board))
    assumptions: tuple[str, ...] = _ASSUMED[milestone]
    if is_virtual:
        assumed = ", ".join(subject.source.meta["assumed"])
        assumptions += (f"emulated; nobody measured of the board: {assumed}; hours in virtual time, seed {seed}",)
    quieten()
    begun_at = datetime.now(UTC).isoformat(timespec="seconds")
    with GateProgress(quiet=as_json) as progress, Trial(subject.runtime, subject.source) as trial:

        def serve_hours(policy: Policy) -> CleanHours:
            progress.doing(f"serving {hours:g} h")
            if is_virtual:
                return serve_virtual_hours(world, policy)
            return serve_clean_hours(trial, policy, hours=hours, progress=progress.doing)

        report = GateReport(
            milestone=milestone,
            asks=ASKS[milestone],
            model=subject.source.alias,
            board_kind=trial.device().kind,
            is_short=short or (milestone != "m1" and hours < ASKED_HOURS),
            assumptions=assumptions,
            criteria=_tried(milestone, trial, subject.policy, short=short, serve_hours=serve_hours, say=progress.doing),
            begun_at=begun_at,
        )
    if as_json:
        click.echo(json.dumps(report.as_object(), indent=2))
    else:
        print_gate(report)
    return CODES[report.verdict]


def _tried(
    milestone: str,
    trial: Trial,
    policy: Policy,
    *,
    short: bool,
    serve_hours: Callable[[Policy], CleanHours],
    say: Callable[[str], None],
) -> tuple[Criterion, ...]:
    size = SHORT if short else FULL
    if milestone == "m0":
        return milestone_m0.try_m0(trial, policy, serve_hours=serve_hours, progress=say)
    if milestone == "m1":
        return milestone_m1.try_m1(trial, policy, size, progress=say)
    return milestone_m2.try_m2(trial, policy, size, serve_hours=serve_hours, progress=say)
