"""``calculet-trio simulate`` from outside: verdicts, codes, JSON, page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import structlog

from calculet_trio.cli.exit_codes import ExitCode
from calculet_trio.cli.main import run


@pytest.fixture(autouse=True)
def restored_logging() -> object:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_a_world_that_passes_says_what_is_assumed_and_how_to_see_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "out.html"
    code = run(["simulate", "--seed", "3", "--seconds", "10", "--faults", "mixed", "--report", str(page)])
    said = capsys.readouterr().out
    assert code == ExitCode.DONE
    assert "PASS (emulated)" in said
    assert "prefill.base_s" in said
    assert "again: calculet-trio simulate --seed 3 --seconds 10.0 --faults mixed" in said
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_json_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--seed", "3", "--hours", "0.002", "--varied", "--json"]) == ExitCode.DONE
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["verdict"], found["runtime"]) == ("calculet-simulation/v1", "PASS", "emulated")
    assert found["seed"] == 3


def test_a_world_that_fails_leaves_with_1_and_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "--seed", "7", "--seconds", "60", "--faults", "cross_talk", "--profiles", "1,4"]
    assert run([*words, "--json"]) == ExitCode.FAIL
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "FAIL"
    assert found["replay"].startswith("calculet-trio simulate --seed 7 --seconds 60.0 --faults cross_talk")
    assert "a reply is not its own" in found["error"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--hours", "1", "--seconds", "1"], ExitCode.USAGE, "not both"),
        (["--profiles", "1,x"], ExitCode.USAGE, "1,4,8"),
        (["--faults", "meteor"], ExitCode.REFUSED, "meteor"),
        (["--device", "nowhere.yaml"], ExitCode.REFUSED, "device file nowhere.yaml: No such file"),
        (["--trace", "nowhere.csv", "--seconds", "1"], ExitCode.REFUSED, "trace nowhere.csv: No such file"),
        (["--seconds", "-1"], ExitCode.USAGE, "--seconds"),
        (["--seconds", "1", "--varied", "--reuse"], ExitCode.USAGE, "leave --reuse out"),
        (["--seconds", "1", "--varied", "--load", "0.8"], ExitCode.USAGE, "leave --load out"),
        (["--seconds", "1", "--without", "reloads"], ExitCode.USAGE, "--without is of a --varied world"),
        (["--seconds", "1", "--stretch", "2"], ExitCode.USAGE, "--stretch is of a --trace"),
        (["--seconds", "1", "--trace", "t.csv", "--tenants", "2"], ExitCode.USAGE, "leave --tenants out"),
        (["--seconds", "1", "--report", "nowhere/page.html"], ExitCode.USAGE, "there is no directory nowhere"),
    ],
)
def test_what_makes_no_world_is_one_line(
    words: list[str], code: ExitCode, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", *words]) == code
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_page_that_no_disk_takes_is_an_error_beside_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--seconds", "1", "--report", "/dev/full"]) == ExitCode.UNAVAILABLE
    said = capsys.readouterr()
    assert "PASS (emulated)" in said.out
    assert "error: /dev/full cannot be written: No space left on device" in said.err
