"""``calculet-trio conformance gate``: the verdict is the exit code, and what it rests on stands beside it."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest

from calculet_trio.cli import conformance_gate, virtual_hours
from calculet_trio.cli.exit_codes import ExitCode
from calculet_trio.cli.main import run
from calculet_trio.conformance import footprint, milestone_m1
from calculet_trio.conformance.blocks import BlockSize
from calculet_trio.conformance.gate import Criterion, GateVerdict
from calculet_trio.core.policy import BatchPolicy, Policy
from calculet_trio.runtimes.device_model import REFERENCE
from calculet_trio.sim.checkers.violation import Violated
from calculet_trio.sim.scenario import Scenario
from tests.cli.test_conformance import store  # noqa: F401 - this machine's evidence, away from its user's


@pytest.fixture
def quick_board(tmp_path: Path) -> Path:
    """The reference board, ten times as fast, with a small vocabulary."""
    text = REFERENCE.read_text("utf-8")
    for was, becomes in (
        ('vocab_size: {value: 151936, measured: "the model\'s vocabulary"}', "vocab_size: 300"),
        ("{value: 0.017167,", "{value: 0.0017,"),
        ("{value: 0.005427,", "{value: 0.0005,"),
    ):
        assert was in text
        text = text.replace(was, becomes)
    path = tmp_path / "board.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_gate_on_an_emulated_board_says_emulated_and_what_it_assumes(
    quick_board: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(conformance_gate, "SHORT", BlockSize(foursomes=3, requests=2, tokens=4))
    code = run(["conformance", "gate", "m1", "--device", str(quick_board), "--short", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (report["schema"], report["milestone"], report["emulated"]) == ("calculet-gate/v1", "m1", True)
    assert code == conformance_gate.CODES[GateVerdict(report["verdict"])]
    assert any("nobody measured" in assumption for assumption in report["assumptions"])
    assert [each["name"] for each in report["criteria"]] == ["same behaviour", "P50", "P99"]


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (GateVerdict.PASS, ExitCode.DONE),
        (GateVerdict.FAIL, ExitCode.FAIL),
        (GateVerdict.INCONCLUSIVE, ExitCode.INCONCLUSIVE),
    ],
)
def test_the_verdict_is_the_exit_code(
    verdict: GateVerdict,
    code: ExitCode,
    quick_board: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(milestone_m1, "try_m1", lambda *_given, **_named: (Criterion("P50", verdict, "seen"),))
    assert run(["conformance", "gate", "m1", "--device", str(quick_board)]) == code
    shown = capsys.readouterr().out
    assert f"M1 {verdict.value} (emulated)" in shown
    assert "assumes: emulated; nobody measured of the board: lanes," in shown


def test_one_engine_has_no_ping_pong(quick_board: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = quick_board.read_text("utf-8").replace("engines: 2 ", "engines: 1 ")
    quick_board.write_text(text, encoding="utf-8")
    assert run(["conformance", "gate", "m2", "--device", str(quick_board), "--short"]) == ExitCode.REFUSED
    assert "this device has 1 (ping)" in capsys.readouterr().err


def test_virtual_hours_are_the_simulators_and_its_objection_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy(batch=BatchPolicy(profiles=(1,)))
    served = virtual_hours.serve_virtual_hours(Scenario(seed=3, seconds=36.0), policy)
    assert (served.hours, served.is_virtual, served.objection) == (0.01, True, None)
    assert served.requests > 5

    def objects(_spec: object) -> None:
        raise Violated("a lane is not accounted for")

    monkeypatch.setattr(virtual_hours, "run_world", objects)
    served = virtual_hours.serve_virtual_hours(Scenario(seed=3, seconds=36.0), policy)
    assert served.objection == "Violated: a lane is not accounted for"


def test_m4_switches_two_emulated_models_in_virtual_time(
    quick_board: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(conformance_gate, "SHORT_CYCLES", 2)
    real = footprint.held_now
    # The heap of the tests' process grows and shrinks with what other tests did.
    monkeypatch.setattr(footprint, "held_now", lambda: attrs.evolve(real(), memory_bytes=1000))
    arguments = ["conformance", "gate", "m4", "--device", str(quick_board), "--short", "--hours", "0.02", "--json"]
    code = run(arguments)
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], code) == ("PASS", ExitCode.DONE), report["criteria"]
    assert (report["emulated"], report["short"]) == (True, True)
    assert "of virtual time" in report["criteria"][3]["seen"]


def test_a_second_model_is_m4s_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["conformance", "gate", "m1", "--second", "n"]) == ExitCode.USAGE
    assert "--second goes with m4" in capsys.readouterr().err
