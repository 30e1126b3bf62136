"""The command: exit codes, JSON that does not change by accident, words for people, and no surprise on the way."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from calculet_trio import __version__
from calculet_trio.cli.doctor_view import print_report
from calculet_trio.cli.exit_codes import ExitCode
from calculet_trio.cli.main import run
from calculet_trio.doctor.examination import Report, examine
from calculet_trio.doctor.finding import Finding, Mark, failure
from calculet_trio.doctor.registry import CHECKS
from calculet_trio.doctor.report_json import as_object
from calculet_trio.packages.package_signature import sign_package
from calculet_trio.packages.signing import SigningKey
from calculet_trio.packages.trust import Trust
from tests.doctor.recorded import ACCOUNTS, copy_of, surroundings
from tests.packages.tiny_package import write_package

GOLDEN = Path(__file__).parent / "golden"
RUN_S = 60


@pytest.fixture(autouse=True)
def _own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def of_tree(tree: str, place: Path) -> list[str]:
    """The command line that looks at a recorded host, without what this machine adds.

    The node belongs to whoever runs the tests, so the account cannot be in its group: `surroundings` mends that,
    the command line does not.
    """
    root = copy_of(tree, place).root
    return ["doctor", "--root", str(root), "--user", ACCOUNTS[tree], "--only", "host", "--only", "board"]


def expect_golden(name: str, found: Any, place: Path) -> None:
    """``found`` is what ``golden/NAME.json`` holds; else it is left where it can be looked at, and taken over."""
    text = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    for component in ("calculet-trio", "server"):
        text = text.replace(f"{component} {__version__}", f"{component} VERSION")
    kept = GOLDEN / f"{name}.json"
    (place / kept.name).write_text(text, "utf-8")
    assert kept.exists(), f"there is no golden output yet; if it is right: cp {place / kept.name} {kept}"
    assert text == kept.read_text("utf-8"), f"if the new output is right: cp {place / kept.name} {kept}"


@pytest.mark.parametrize("tree", sorted(ACCOUNTS))
async def test_json_of_a_recorded_host(tree: str, tmp_path: Path) -> None:
    around = surroundings(copy_of(tree, tmp_path), tmp_path)
    checks = [check for check in CHECKS if check.group.value in ("Host", "Board")]
    expect_golden(tree, as_object(await examine(checks, around, check_s=RUN_S), strict=False), tmp_path)


async def test_json_of_everything(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    around = surroundings(copy_of("no_board", tmp_path), tmp_path, port=port)
    write_package(around.store.root / "tiny", "tiny")
    key = SigningKey.local(tmp_path / "keys")
    sign_package(around.store.root / "tiny", key)
    around = attrs.evolve(around, trust=lambda: Trust(local=key.public))
    found = as_object(await examine(CHECKS, around, check_s=RUN_S), strict=True)
    text = json.dumps(found, ensure_ascii=False)
    for changing, name in ((str(tmp_path), "TMP"), (f":{port}", ":PORT"), (sys.executable, "PYTHON")):
        text = text.replace(changing, name)
    expect_golden("everything", json.loads(text), tmp_path)


# ---- exit codes -----------------------------------------------------------------------------------------


def test_all_well_is_0_even_strictly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*of_tree("no_board", tmp_path), "--strict", "--json"]) == ExitCode.DONE
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "PASS"
    assert {each["status"] for each in found["checks"]} == {"ok"}


def test_a_warning_is_0_and_strictly_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["doctor", "--root", str(copy_of("board_today", tmp_path).root), "--user", "user2"]
    arguments += ["--only", "account", "--json"]
    assert run(arguments) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["verdict"] == "PASS"
    assert run([*arguments, "--strict"]) == ExitCode.FAIL
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["strict"], found["counts"]["warning"]) == ("FAIL", True, 1)


def test_a_failure_is_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(of_tree("board_gone", tmp_path)) == ExitCode.FAIL
    assert "✗   pci" in capsys.readouterr().out


def test_a_check_that_breaks_is_1_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_around: object) -> Finding:
        raise RuntimeError("[bold]oh[/bold] \x1b[31m")

    monkeypatch.setattr("calculet_trio.doctor.registry.CHECKS", (attrs.evolve(CHECKS[0], examine=broken),))
    assert run(["doctor"]) == ExitCode.FAIL
    shown = capsys.readouterr()
    assert "the check 'memory' broke: RuntimeError: [bold]oh[/bold] \ufffd[31m" in shown.out
    assert shown.err == ""


def test_an_unknown_name_is_wrong_usage_that_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--only", "engine"]) == ExitCode.USAGE
    shown = capsys.readouterr().err
    assert "--only" in shown
    assert "'engine'" in shown
    assert "Board" in shown
    assert "device-node" in shown


@pytest.mark.parametrize("arguments", [["--port", "0"], ["--root", "no/such/tree"], ["extra"]])
def test_other_wrong_usage_is_2(arguments: list[str]) -> None:
    assert run(["doctor", *arguments]) == ExitCode.USAGE


def test_the_configuration_says_where_the_service_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "service.yaml"
    config.write_text("schema: calculet-service/v1\nlisten: {host: 127.0.0.2, port: 4711}\nstore: kept\n")
    write_package(tmp_path / "kept" / "tiny", "tiny")
    arguments = ["doctor", "--config", str(config), "--json", "--only", "configuration", "--only", "health"]
    assert run([*arguments, "--only", "store"]) == ExitCode.DONE
    seen = {each["name"]: each["seen"] for each in json.loads(capsys.readouterr().out)["checks"]}
    assert seen["settings"] == str(config)
    assert seen["listen"].startswith("127.0.0.2 ")
    assert seen["health"].endswith("127.0.0.2:4711")
    assert seen["store"] == "1 package: tiny"
    assert run([*arguments, "--host", "127.0.0.1", "--port", "4712"]) == ExitCode.DONE
    assert "127.0.0.1:4712" in capsys.readouterr().out


def test_a_configuration_with_a_fault_is_a_finding_and_no_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config" / "calculet-trio" / "service.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("schema: calculet-service/v1\nlisten: {port: none}\n")
    assert run(["doctor", "--only", "configuration", "--json"]) == ExitCode.FAIL
    [settings, *others] = json.loads(capsys.readouterr().out)["checks"]
    assert (settings["name"], settings["status"]) == ("settings", "failure")
    assert "listen.port" in settings["seen"]
    assert {each["status"] for each in others} == {"ok"}


# ---- for people -----------------------------------------------------------------------------------------


def test_what_is_wrong_says_why_and_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(of_tree("board_today", tmp_path))
    shown = capsys.readouterr().out
    assert "\x1b" not in shown, "colour is for terminals"
    assert shown.index("Host\n") < shown.index("Board\n")
    assert "every user may use the board" in shown
    assert "sudo loginctl enable-linger user2" in shown
    assert "why   without it a user's service" in shown
    assert "this needs mending" in shown


def test_what_is_well_says_nothing_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(of_tree("no_board", tmp_path))
    shown = capsys.readouterr().out
    assert "why" not in shown
    assert "12 ✓, 0 !, 0 ✗: nothing stands in the way" in shown


def test_a_terminal_of_another_encoding_gets_words(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "calculet_trio.cli.main", *of_tree("board_gone", tmp_path)]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    answer = subprocess.run(command, capture_output=True, timeout=RUN_S, check=False, env=environment)
    assert (answer.returncode, answer.stderr) == (1, b"")
    assert b"pci" in answer.stdout


def test_long_findings_are_not_cut_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    from calculet_trio.doctor.examination import Result

    print_report(Report((Result(CHECKS[0], failure("word " * 100, todo="do " * 100)),)), strict=False)
    shown = capsys.readouterr().out
    assert shown.count("word") == 100
    assert shown.count("do ") + shown.count("do\n") >= 100


# ---- the real machine -----------------------------------------------------------------------------------


def test_this_machine_is_examined_whole_with_nothing_on_stderr() -> None:
    command = [sys.executable, "-m", "calculet_trio.cli.main", "doctor", "--json"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert answer.stderr == ""
    found = json.loads(answer.stdout)
    assert [each["name"] for each in found["checks"]] == [check.name for check in CHECKS]
    assert not any("broke" in each["seen"] for each in found["checks"])
    assert answer.returncode == (1 if found["counts"]["failure"] else 0)
    assert set(found["counts"]) == {mark.value for mark in Mark}
