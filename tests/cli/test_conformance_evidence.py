"""``calculet-trio conformance evidence``: what was shown, by what, and what is missing; no more than is so."""

from __future__ import annotations

import json

import attrs
import pytest

from calculet_trio.cli.exit_codes import ExitCode
from calculet_trio.cli.main import run
from calculet_trio.conformance.evidence_store import EvidenceStore, Found
from calculet_trio.conformance.standings import rows_of
from calculet_trio.conformance.vendor_list import VENDOR_LIST, owed_for
from calculet_trio.core.evidence import BATCH_CONDITIONS
from tests.cli.test_conformance import store  # noqa: F401 - this machine's evidence, away from its user's
from tests.conformance.test_evidence_store import HERE, record


def test_without_records_it_says_how_to_make_some(
    store: EvidenceStore,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["conformance", "evidence"]) == ExitCode.DONE
    assert "no evidence on this machine yet" in capsys.readouterr().out


def test_records_show_what_they_earned_and_what_is_missing(
    store: EvidenceStore,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    store.keep(record(1, passed=BATCH_CONDITIONS))
    store.keep(record(2, combination=attrs.evolve(HERE, board_kind="emulated"), passed=["golden"]))
    unsigned = record(3)
    unsigned.save(store.root / f"{unsigned.record_id}.json")
    assert run(["conformance", "evidence"]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert "m on cpu" in shown
    assert "m on emulated (counts for emulated boards only)" in shown
    assert "earns nothing: it is not signed" in shown
    assert run(["conformance", "evidence", "--json"]) == ExitCode.DONE
    listed = json.loads(capsys.readouterr().out)
    assert [(each["record"], each["emulated"]) for each in listed["records"]] == [
        (record(1).record_id, False),
        (record(2, combination=attrs.evolve(HERE, board_kind="emulated")).record_id, True),
    ]
    [cpu, _emulated] = listed["capabilities"]
    standings = {each["capability"]: each for each in cpu["standings"]}
    assert standings["batch:B"]["level"] == "C0"
    assert standings["batch:B"]["earned_by"] == record(1).record_id
    assert standings["ping_pong"]["earned_by"] is None
    assert "ping_pong_two_jobs" in standings["ping_pong"]["missing"]
    assert len(listed["not_believed"]) == 1


def test_the_vendors_list_stands_beside_what_waits_for_it_and_on_boards_only() -> None:
    assert len(VENDOR_LIST) == 6, "the six lines of S §20"
    assert len(owed_for("batch:8")) == 2
    assert owed_for("remove_tail") == ()
    board = {row.capability: row for row in rows_of(Found((), ()), attrs.evolve(HERE, board_kind="calculet"))}
    assert board["co_residency"].vendor == owed_for("co_residency") != ()
    assert all(row.vendor == () for row in rows_of(Found((), ()), HERE))
