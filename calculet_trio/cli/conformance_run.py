"""``calculet-trio conformance run``: what has this package on this runtime been shown to do?

Source: CLI.md "Commands"; SPEC section 12, 13.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs
import click

from calculet_trio.cli.conformance_subject import RUNTIMES, configuration_of
from calculet_trio.cli.conformance_view import Progress, print_standings
from calculet_trio.cli.exit_codes import ExitCode
from calculet_trio.cli.out_file import OutFile, write_out
from calculet_trio.cli.trusted_store import evidence_store
from calculet_trio.cli.wiring_conformance import Subject, wire_subject
from calculet_trio.conformance.case import Case
from calculet_trio.conformance.evidence_store import EvidenceStore
from calculet_trio.conformance.report import html, junit, verdict_line
from calculet_trio.conformance.result import Result, Verdict
from calculet_trio.conformance.rig import Rig
from calculet_trio.conformance.run_record import RunRecord
from calculet_trio.conformance.suite import chosen, run_cases, verdict_of
from calculet_trio.core.profiles import ModelShape
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.ids import GenerationId
from calculet_trio.packages import manifest_json

GENERATION: Final = GenerationId(1)


@click.command()
@click.option("--runtime", type=click.Choice(RUNTIMES), default="host", show_default=True, help="What computes.")
@click.option("--package", metavar="NAME|PATH", help="The package. Default: the only one in the store.")
@click.option(
    "--device",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An emulated board's numbers. Default: the reference board.",
)
@click.option("--config", type=click.Path(path_type=Path), help="The configuration, for store, state and policy.")
@click.option("--short", is_flag=True, help="Leave the long cases out, and what they alone can show.")
@click.option("--only", multiple=True, metavar="CASE", help="Only this case; may be given again.")
@click.option("--resume", is_flag=True, help="Go on with the run that was interrupted.")
@click.option("--junit", "junit_path", type=OutFile(), help="Write JUnit XML here.")
@click.option("--html", "html_path", type=OutFile(), help="Write a page here.")
@click.option("--json", "as_json", is_flag=True, help="Print the run's record as JSON.")
def run(
    runtime: str,
    package: str | None,
    device: Path | None,
    config: Path | None,
    short: bool,
    only: tuple[str, ...],
    resume: bool,
    junit_path: Path | None,
    html_path: Path | None,
    as_json: bool,
) -> int:
    """Try the cases, and write an evidence record of those that passed and those that failed.

    What passed counts for exactly this package, these versions of the runtime and this kind of board.
    Leaves with 1 if a case failed.

    \b
    Example:
      calculet-trio conformance run --runtime host --package smollm2
      calculet-trio conformance run --runtime emulated --short --html report.html
      calculet-trio binding build --emulator && calculet-trio conformance run --runtime calrt --short
    """
    cases = chosen(only, short=short)
    configuration = configuration_of(config, runtime=runtime, package=package, device=device)
    subject = wire_subject(configuration)
    store = evidence_store(configuration)
    with Progress(quiet=as_json) as progress:
        record, shape = _tried(subject, store, cases, short=short, resume=resume, progress=progress)
    line = verdict_line(record, cases)
    if as_json:
        click.echo(json.dumps(manifest_json.unstructure(record), indent=1))
    else:
        click.echo(line)
        click.echo(f"evidence: {store.root / record.record_id}.json")
        print_standings(store.found().evidence(record.combination), shape, emulated=record.is_emulated)
    if junit_path is not None:
        write_out(junit_path, junit(record, cases))
    if html_path is not None:
        write_out(html_path, html(record, cases))
    return ExitCode.DONE if verdict_of(record.results, cases) is Verdict.PASS else ExitCode.FAIL


def _tried(
    subject: Subject, store: EvidenceStore, cases: tuple[Case, ...], *, short: bool, resume: bool, progress: Progress
) -> tuple[RunRecord, ModelShape]:
    """The finished run, stored, and the shape of the model that it was tried on."""
    runtime, source = subject.runtime, subject.source
    source.verify()
    device = runtime.open()
    try:
        evidence = source.evidence(device)
        assert evidence is not None, "wire_subject gives only sources that can have some"
        record = RunRecord.begin(evidence.combination, device, model=source.alias, short=short)
        earlier = store.interrupted(evidence.combination) if resume else None
        if earlier is not None and (earlier.short, earlier.suite_version) == (short, record.suite_version):
            record = attrs.evolve(earlier, results=_without_failures(earlier))
        elif resume:
            raise ConfigurationRefused(
                "there is no interrupted run of this package, runtime, board and suite to resume",
                hint="leave --resume out",
            )
        progress.configuring(source.alias)
        runtime.configure(GENERATION, source.package)
        runtime.warm_up(GENERATION)
        rig = Rig(
            runtime,
            GENERATION,
            package=source.package,
            engines=device.engines,
            faults=subject.faults,
            agreement=subject.agreement,
            chunk_tokens=subject.policy.queues.prefill_chunk_tokens,
        )
        record = _run(rig, cases, record, store, progress)
        store.keep(record)
        return record, rig.shape
    finally:
        runtime.close()


def _run(rig: Rig, cases: tuple[Case, ...], record: RunRecord, store: EvidenceStore, progress: Progress) -> RunRecord:
    done: Mapping[str, Result] = {result.case: result for result in record.results}
    so_far = list(record.results)

    def ended(result: Result) -> None:
        so_far.append(result)
        store.remember(attrs.evolve(record, results=tuple(so_far)))
        progress.ended(result)

    for result in record.results:
        progress.ended(result)
    return attrs.evolve(record, results=run_cases(rig, cases, done=done, begun=progress.begun, ended=ended))


def _without_failures(record: RunRecord) -> tuple[Result, ...]:
    """A case that failed is tried again: it may be what the run was interrupted for."""
    return tuple(result for result in record.results if result.verdict is not Verdict.FAIL)
