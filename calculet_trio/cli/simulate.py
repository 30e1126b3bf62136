"""``calculet-trio simulate``: a day of board time in minutes, with a seed for every failure.

Source: CLI.md "Commands".
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Final

import click
import structlog

from calculet_trio.cli.exit_codes import ExitCode
from calculet_trio.cli.out_file import OutFile, write_out
from calculet_trio.cli.simulate_view import SimulationProgress, print_failure, print_summary
from calculet_trio.sim.failure import Failure, failure_of
from calculet_trio.sim.page import write_page
from calculet_trio.sim.scenario import HAPPENINGS, SECONDS_MAX, Scenario
from calculet_trio.sim.shrinking import shrink
from calculet_trio.sim.summary import as_object, summarize
from calculet_trio.sim.world import Outcome, run_world


def _profiles(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    try:
        return tuple(sorted({int(batch) for batch in value.split(",")}))
    except ValueError:
        raise click.BadParameter("must be compiled batches with commas between them, such as 1,4,8") from None


DRAWN: Final = ("trace", "stretch", "load", "tenants", "profiles", "device", "chunked", "reuse")
"""What the seed draws of a varied world."""


def _refuse_without_effect(ctx: click.Context) -> None:
    """An option that a world would not heed is a mistake: what its user then sees is not what they asked about."""
    given = {name for name in ctx.params if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}
    if ctx.params["varied"] and (drawn := [f"--{name}" for name in DRAWN if name in given]):
        raise click.UsageError(f"the seed of a --varied world draws board, policy and clients: leave {drawn[0]} out")
    if "without" in given and not ctx.params["varied"]:
        raise click.UsageError("--without is of a --varied world; another has no such happenings")
    if "stretch" in given and ctx.params["trace"] is None:
        raise click.UsageError("--stretch is of a --trace")
    if ctx.params["trace"] is not None and (named := given & {"load", "tenants"}):
        raise click.UsageError(f"a --trace has clients of its own: leave --{min(named)} out")


@click.command()
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Same seed, same run.")
@click.option(
    "--hours", type=click.FloatRange(0, SECONDS_MAX / 3600, min_open=True), help="Virtual time that clients come."
)
@click.option(
    "--seconds", type=click.FloatRange(0, SECONDS_MAX, min_open=True), help="The same, in seconds.  [default: 3600]"
)
@click.option("--faults", default="none", show_default=True, metavar="none|mixed|harsh|KIND,…", help="What fails.")
@click.option("--trace", type=click.Path(path_type=Path), help="CSV of arrivals and lengths to replay.")
@click.option(
    "--stretch",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="The trace's times, longer.",
)
@click.option(
    "--load",
    type=click.FloatRange(0, 100, min_open=True),
    default=0.8,
    show_default=True,
    help="Share of what the board can do, without a trace.",
)
@click.option(
    "--tenants", type=click.IntRange(1, 1000), default=3, show_default=True, help="How many, without a trace."
)
@click.option("--profiles", callback=_profiles, metavar="B,B…", help="Compiled batches.  [default: the device file's]")
@click.option("--device", type=click.Path(path_type=Path), help="Device model file.  [default: the reference model]")
@click.option("--chunked", is_flag=True, help="As if the package had earned chunked prefill.")
@click.option("--reuse", is_flag=True, help="As if it had earned prefix reuse; half of the clients come back.")
@click.option("--varied", is_flag=True, help="Let the seed draw board, policy and clients, too.")
@click.option("--visits", "visits_max", type=click.IntRange(1), help="Only the first so many clients.")
@click.option("--without", multiple=True, type=click.Choice(HAPPENINGS), help="Of a varied world: leave these out.")
@click.option("--report", type=OutFile(), help="Write a page with plots.")
@click.option("--shrink", "do_shrink", is_flag=True, help="After a failure look for a smaller world that still fails.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def simulate(
    ctx: click.Context,
    /,
    hours: float | None,
    seconds: float | None,
    report: Path | None,
    do_shrink: bool,
    as_json: bool,
    **options: object,
) -> int:
    """Run the production daemon in virtual time against an emulated board, and check all that it does.

    Leaves with 1 if a checker objects, and says how to run the same again.

    \b
    Example:
      calculet-trio simulate --seed 7 --hours 2 --faults mixed --report out.html
      calculet-trio simulate --seed 7 --seconds 60 --faults cross_talk --profiles 1,4 --shrink
    """
    if hours is not None and seconds is not None:
        raise click.UsageError("give --hours or --seconds, not both")
    _refuse_without_effect(ctx)
    length_s = seconds if seconds is not None else 3600.0 * (1.0 if hours is None else hours)
    scenario = Scenario(seconds=length_s, **options)  # type: ignore[arg-type]  # click gives what the options declare
    quieten()
    with SimulationProgress(scenario.seconds, shown=not as_json) as progress:
        began_s = time.perf_counter()
        found = _run(scenario, progress)
        took_s = time.perf_counter() - began_s
    if isinstance(found, Failure):
        return _fail(found, do_shrink=do_shrink, as_json=as_json)
    summary = summarize(found)
    if as_json:
        click.echo(json.dumps(as_object(summary, command=scenario.command()), indent=2))
    else:
        print_summary(summary, took_s=took_s, command=scenario.command())
    if report is not None:
        write_out(report, write_page(found, command=scenario.command()))
        click.echo(f"page: {report}", err=as_json)
    return ExitCode.DONE


def quieten() -> None:
    """A simulated daemon's log is thousands of lines about faults that are meant."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def _run(scenario: Scenario, progress: SimulationProgress) -> Outcome | Failure:
    spec = scenario.spec()
    try:
        return run_world(spec, on_progress=progress.reached)
    except Exception as error:  # noqa: BLE001 - any error of a simulated daemon is the finding
        return failure_of(scenario, error)


def _say_smaller(tries: int, scenario: Scenario) -> None:
    click.echo(f"smaller after {tries} tries: {scenario.command()}", err=True)


def _fail(failure: Failure, *, do_shrink: bool, as_json: bool) -> int:
    tries = 0
    if do_shrink:
        shrunk = shrink(failure, on_smaller=_say_smaller)
        failure, tries = shrunk.failure, shrunk.tries
    if as_json:
        found = {
            "schema": "calculet-simulation/v1",
            "verdict": "FAIL",
            "runtime": "emulated",
            "seed": failure.scenario.seed,
            "error": failure.message,
            "where": failure.where,
            "replay": failure.scenario.command(),
            "shrink_tries": tries,
        }
        click.echo(json.dumps(found, indent=2))
    else:
        print_failure(failure, tries=tries)
    return ExitCode.FAIL
