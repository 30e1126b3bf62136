"""``calculet-trio conformance run``: verdicts and exit codes, reports, evidence, and going on after an interruption."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest

from calculet_trio.cli.exit_codes import ExitCode
from calculet_trio.cli.main import run
from calculet_trio.conformance.case import Case
from calculet_trio.conformance.evidence_store import EvidenceStore
from calculet_trio.conformance.result import Result, Verdict
from calculet_trio.conformance.suite import CASES
from calculet_trio.runtimes import emulated
from calculet_trio.runtimes.port import GoldenResult
from tests.conformance.stores import store_in

EMULATED = ["conformance", "run", "--runtime", "emulated"]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EvidenceStore:
    """This machine's evidence, away from its user's."""
    for kind in ("STATE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
    return store_in(
        tmp_path / "STATE" / "calculet-trio" / "evidence", keys=tmp_path / "CONFIG" / "calculet-trio" / "keys"
    )


@pytest.fixture
def small_board(tmp_path: Path) -> Path:
    """A device file: the reference board with shorter contexts, a small vocabulary and batches."""
    from calculet_trio.runtimes.device_model import REFERENCE

    text = REFERENCE.read_text("utf-8")
    for was, becomes in (
        ('context_tokens: {value: 40960, measured: "max_seq_len of the calbin"}', "context_tokens: 320"),
        ('vocab_size: {value: 151936, measured: "the model\'s vocabulary"}', "vocab_size: 300"),
        ("decode:\n", "decode:\n  4: {base_s: 0.02}\n"),
    ):
        assert was in text
        text = text.replace(was, becomes)
    path = tmp_path / "board.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_run_passes_reports_and_leaves_evidence(
    small_board: Path, store: EvidenceStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, xml = tmp_path / "report.html", tmp_path / "report.xml"
    code = run([*EMULATED, "--device", str(small_board), "--html", str(page), "--junit", str(xml)])
    shown = capsys.readouterr().out
    assert code == ExitCode.DONE, shown
    assert f"PASS (emulated): {len(CASES)} PASS, 0 FAIL" in shown
    assert "on emulated boards only" in shown
    [record] = store.found().records
    assert record.cases(Verdict.PASS) == {case.name for case in CASES}
    assert store.found().evidence(record.combination).allows("incremental_prefill")
    assert "PASS (emulated)" in page.read_text("utf-8")
    assert "(emulated)" in xml.read_text("utf-8")


def test_a_failure_is_exit_code_1_and_is_on_record(
    small_board: Path, store: EvidenceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run([*EMULATED, "--device", str(small_board)]) == ExitCode.DONE
    monkeypatch.setattr(emulated.EmulatedRuntime, "golden", lambda _self, _generation: GoldenResult(False, "differs"))
    assert run([*EMULATED, "--device", str(small_board)]) == ExitCode.FAIL
    found = store.found()
    combination = found.records[0].combination
    loaded_again = {"timeout", "ccu_fault", "pcie_error", "load_unload_soak"}
    assert found.records[-1].cases(Verdict.FAIL) == {"golden", "golden_and_performance", *loaded_again}
    assert not found.evidence(combination).allows("incremental_prefill"), "the failure takes back what was earned"
    assert found.evidence(combination).allows("remove_tail")


def test_a_short_run_earns_no_chunked_prefill(
    small_board: Path, store: EvidenceStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*EMULATED, "--device", str(small_board), "--short", "--json"]) == ExitCode.DONE
    record = json.loads(capsys.readouterr().out)
    assert (record["schema"], record["short"], len(record["results"])) == ("calculet-evidence/v1", True, len(CASES) - 3)
    [kept] = store.found().records
    assert not store.found().evidence(kept.combination).allows("incremental_prefill")


def test_an_interrupted_run_is_resumed_where_it_was(
    small_board: Path, store: EvidenceStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, tried = Case.tried, []

    def interrupted_at_the_fourth(case: Case, rig: object) -> tuple[Result, bool]:
        tried.append(case.name)
        if len(tried) == 4:
            raise KeyboardInterrupt
        return real(case, rig)

    monkeypatch.setattr(Case, "tried", interrupted_at_the_fourth)
    arguments = [*EMULATED, "--device", str(small_board)]
    assert run(arguments) == ExitCode.INTERRUPTED
    assert store.found().records == ()
    assert run([*arguments, "--resume"]) == ExitCode.DONE
    names = [case.name for case in CASES]
    assert tried == [*names[:4], *names[3:]]
    [record] = store.found().records
    assert {result.case for result in record.results} == set(names)
    capsys.readouterr()
    assert run([*arguments, "--resume"]) == ExitCode.REFUSED
    assert "no interrupted run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--only", "nonsense"], ExitCode.REFUSED, "there is no conformance case 'nonsense'"),
        (["--html", "/nowhere/at/all.html"], ExitCode.USAGE, "there is no directory /nowhere/at"),
        (["--html", "/dev/full", "--only", "golden"], ExitCode.UNAVAILABLE, "/dev/full cannot be written"),
        (["--runtime", "host", "--package", "none"], ExitCode.REFUSED, "there is no package 'none'"),
        (["--runtime", "host", "--device", "pyproject.toml"], ExitCode.USAGE, "--device goes with"),
        (["--device", "pyproject.toml"], ExitCode.REFUSED, "cannot use the device file"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*EMULATED, *arguments]) == code
    assert words in capsys.readouterr().err


def test_the_named_cases_alone_are_tried(store: EvidenceStore) -> None:
    assert run([*EMULATED, "--only", "golden", "--only", "one_sequence"]) == ExitCode.DONE
    [record] = store.found().records
    assert attrs.asdict(record)["record_id"].startswith("emulated-")
    assert [result.case for result in record.results] == ["golden", "one_sequence"]
