"""``calculet-trio conformance evidence``: what has been shown on this machine, and what is missing.

Source: CLI.md "Commands"; SPEC section 12 (S §20).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import attrs
import click

from calculet_trio.cli.conformance_view import print_evidence
from calculet_trio.cli.exit_codes import ExitCode
from calculet_trio.cli.trusted_store import evidence_store, own_configuration
from calculet_trio.conformance.evidence_store import Found
from calculet_trio.conformance.result import Verdict
from calculet_trio.conformance.run_record import EMULATED
from calculet_trio.conformance.standings import rows_of
from calculet_trio.core.evidence import Combination
from calculet_trio.settings.configuration import load

SCHEMA: Final = "calculet-evidence-list/v1"


@click.command()
@click.option("--config", type=click.Path(path_type=Path), help="The configuration, for state and trusted keys.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def evidence(config: Path | None, as_json: bool) -> int:
    """List what has been shown here, by package, runtime and board, and what is missing.

    Only signed records count: this machine's key for the CPU and emulated boards, a key of trusted_keys for others.
    Evidence of an emulated board counts for emulated boards only.

    \b
    Example:
      calculet-trio conformance evidence
      calculet-trio conformance evidence --json
    """
    configuration = load(config) if config is not None else own_configuration()
    found = evidence_store(configuration).found()
    combinations = list(dict.fromkeys(record.combination for record in found.records))
    if as_json:
        click.echo(json.dumps(_as_object(found, combinations), indent=2))
    else:
        print_evidence(found, {each: rows_of(found, each) for each in combinations})
    return ExitCode.DONE


def _as_object(found: Found, combinations: list[Combination]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "records": [
            {
                "record": record.record_id,
                "model": record.model,
                **attrs.asdict(record.combination),
                "emulated": record.combination.board_kind in EMULATED,
                "begun_at": record.begun_at,
                "short": record.short,
                **{verdict.name.lower(): sorted(record.cases(verdict)) for verdict in Verdict},
                "key_id": None if record.signature is None else record.signature.key_id,
            }
            for record in found.records
        ],
        "not_believed": list(found.unreadable),
        "capabilities": [
            {**attrs.asdict(combination), "standings": [attrs.asdict(row) for row in rows_of(found, combination)]}
            for combination in combinations
        ],
    }
