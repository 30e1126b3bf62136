"""The command line: fast help, one clear line on error, and the exit code of the table."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from calculet_trio import errors
from calculet_trio.cli import main as command_line
from calculet_trio.cli import paths
from calculet_trio.cli.exit_codes import CODES, ExitCode, exit_code_of
from calculet_trio.cli.main import COMMANDS, LazyCommand, run
from calculet_trio.errors import CalculetError, DeviceLost, OperatorError, PackageError, Unavailable

RUN_S = 60


def kinds_below(kind: type[CalculetError]) -> set[type[CalculetError]]:
    return {kind}.union(*(kinds_below(each) for each in kind.__subclasses__()))


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """A command ``fail`` that raises whatever is put into the list."""
    raised: list[BaseException] = []

    @click.command()
    def fail() -> None:
        raise raised[0]

    monkeypatch.setattr(LazyCommand, "load", lambda _self: fail)
    monkeypatch.setattr(command_line, "COMMANDS", {"fail": LazyCommand("nowhere:fail", "Fails.")})
    return raised


# ---- help ---------------------------------------------------------------------------------------------


def test_help_names_every_command_and_imports_none() -> None:
    script = (
        "import sys\n"
        "from calculet_trio.cli.main import run\n"
        "code = run(['--help'])\n"
        "heavy = {'trio', 'quart', 'hypercorn', 'numpy', 'rich', 'onnxruntime', 'cattrs'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else code)\n"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=RUN_S, check=False)
    assert answer.returncode == 0, answer.stderr
    for name, command in COMMANDS.items():
        assert f"\n  {name} " in answer.stdout
        assert command.summary in " ".join(answer.stdout.split())


def commands_below(command: click.Command, name: str) -> list[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        return [(name, command)]
    return [found for sub, inner in command.commands.items() for found in commands_below(inner, f"{name} {sub}")]


def test_every_command_has_an_example() -> None:
    found = [each for name, lazy in COMMANDS.items() for each in commands_below(lazy.load(), name)]
    assert {"serve", "package pull", "package build", "package list", "package show", "package verify"} <= dict(
        found
    ).keys()
    for name, command in found:
        assert "Example" in (command.help or ""), name
        assert f"calculet-trio {name}" in (command.help or ""), name


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == "calculet-trio, version 0.1.0\n"


@pytest.mark.parametrize("arguments", [[], ["package"]])
def test_a_group_without_a_command_shows_its_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith("Usage: calculet-trio")


# ---- errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [["nope"], ["--nope"], ["package", "nope"], ["package", "show"], ["serve", "--port", "x"]]
)
def test_wrong_usage_is_2_and_says_where_help_is(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == ExitCode.USAGE
    shown = capsys.readouterr().err
    assert "error: " in shown
    assert "--help" in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PackageError("the package is damaged", hint="pull it again"), 78),
        (errors.ConfigurationRefused("the package is damaged", hint="pull it again"), 78),
        (Unavailable("the package is damaged", hint="pull it again"), 69),
        (DeviceLost("the package is damaged", hint="pull it again"), 75),
    ],
)
def test_an_operators_error_is_a_line_and_a_hint(
    failing: list[BaseException], error: OperatorError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    failing.append(error)
    assert run(["fail"]) == code
    assert capsys.readouterr().err == "error: the package is damaged\nhint: pull it again\n"


def test_verbose_shows_where_it_came_from(failing: list[BaseException], capsys: pytest.CaptureFixture[str]) -> None:
    failing.append(PackageError("damaged"))
    assert run(["-v", "fail"]) == 78
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert shown.endswith("error: damaged\n")


def test_an_error_is_found_in_the_groups_of_nurseries(
    failing: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    failing.append(ExceptionGroup("nursery", [ExceptionGroup("nursery", [Unavailable("port 8080 is taken")])]))
    assert run(["fail"]) == 69
    assert capsys.readouterr().err == "error: port 8080 is taken\n"


def test_a_defect_among_known_errors_is_not_hidden(
    failing: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    failing.append(ExceptionGroup("nursery", [Unavailable("port 8080 is taken"), ZeroDivisionError("oh")]))
    assert run(["fail"]) == ExitCode.DEFECT
    assert "a defect" in capsys.readouterr().err


def test_a_defect_is_one_line_without_verbose(failing: list[BaseException], capsys: pytest.CaptureFixture[str]) -> None:
    failing.append(ZeroDivisionError("division by zero"))
    assert run(["fail"]) == ExitCode.DEFECT
    shown = capsys.readouterr().err
    assert shown.startswith("error: unexpected ZeroDivisionError: division by zero\nhint: ")
    assert "Traceback" not in shown


def test_ctrl_c_is_130(failing: list[BaseException], capsys: pytest.CaptureFixture[str]) -> None:
    failing.append(KeyboardInterrupt())
    assert run(["fail"]) == ExitCode.INTERRUPTED
    assert "Traceback" not in capsys.readouterr().err


def test_a_reader_that_left_is_no_error() -> None:
    command = [sys.executable, "-m", "calculet_trio.cli.main", "--help"]
    reader, writer = os.pipe()
    os.close(reader)
    answer = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=RUN_S, check=False)
    os.close(writer)
    assert (answer.returncode, answer.stderr) == (0, b"")


@pytest.mark.parametrize("arguments", [["--help"], ["config", "defaults", "service"], ["config", "schema", "service"]])
def test_a_full_disk_behind_standard_output_is_no_defect(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "calculet_trio.cli.main", *arguments]
    with Path("/dev/full").open("wb") as full:
        answer = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=RUN_S, check=False)
    said = "error: nothing more can be written: No space left on device\n"
    assert (answer.returncode, answer.stderr) == (ExitCode.UNAVAILABLE, said)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_no_defect_wherever_it_is_met(
    failing: list[BaseException], number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    failing.append(OSError(number, os.strerror(number), "/var/x"))
    assert run(["fail"]) == ExitCode.UNAVAILABLE
    assert capsys.readouterr().err == f"error: nothing more can be written to /var/x: {os.strerror(number)}\n"


# ---- the table ------------------------------------------------------------------------------------------


def test_every_operators_error_has_its_code() -> None:
    for kind in kinds_below(OperatorError) - {OperatorError}:
        assert exit_code_of(kind.__new__(kind)) is not ExitCode.DEFECT, kind


def test_codes_are_those_that_scripts_and_units_know() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "DONE": 0,
        "FAIL": 1,
        "USAGE": 2,
        "INCONCLUSIVE": 3,
        "UNAVAILABLE": 69,
        "DEFECT": 70,
        "RESTART": 75,
        "NOT_QUIET": 76,
        "REFUSED": 78,
        "INTERRUPTED": 130,
    }
    assert len(dict(CODES)) == len(CODES)


def test_the_readme_shows_the_whole_table() -> None:
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")
    for code in ExitCode:
        assert f"| {int(code)} |" in readme


# ---- where things are -----------------------------------------------------------------------------------


def test_paths_follow_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert paths.package_store() == Path("/somewhere/.local/share/calculet-trio/packages")
    assert paths.downloads() == Path("/somewhere/.cache/calculet-trio/downloads")
    monkeypatch.setenv("XDG_DATA_HOME", "/var/lib/x")
    assert paths.package_store() == Path("/var/lib/x/calculet-trio/packages")


def test_sigterm_during_a_package_command_cleans_up() -> None:
    from calculet_trio.cli import package

    with pytest.raises(SystemExit) as caught:
        package._leave(signal.SIGTERM, None)
    assert caught.value.code == 143
