"""tools/environment.py and tools/python: what a fresh machine, a broken environment and an old Python meet."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
RUN_S = 60
EXTRAS = ["host"]


class Repository:
    """A directory with the tools in it, whose pip and venv are counted and cost nothing."""

    def __init__(self, root: Path, environment: ModuleType) -> None:
        self.root = root
        self.environment = environment
        self.done: list[str] = []
        self.pip_fails = False

    def make_venv(self, directory: Path, *, with_pip: bool) -> None:
        assert with_pip
        assert not directory.exists()
        self.done.append("venv")
        (directory / "bin").mkdir(parents=True)
        (directory / "bin" / "python").symlink_to(sys.executable)

    def pip(self, command: list[str | Path]) -> list[str]:
        assert command[-2:] == ["--editable", f"{self.root}[host]"]
        self.done.append("pip")
        return ["ERROR: no network"] if self.pip_fails else []

    def run(self, extras: str = "host") -> tuple[int, list[str]]:
        """The exit code of a run, and what it did."""
        self.done.clear()
        sys.argv[1:] = [extras]
        return self.environment.main(), list(self.done)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    (tmp_path / "tools").mkdir()
    shutil.copy(TOOLS / "environment.py", tmp_path / "tools")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    spec = importlib.util.spec_from_file_location("environment", tmp_path / "tools" / "environment.py")
    assert spec is not None
    assert spec.loader is not None
    environment = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(environment)
    repository = Repository(tmp_path, environment)
    monkeypatch.setattr(environment.venv, "create", repository.make_venv)
    monkeypatch.setattr(environment, "follow", repository.pip)
    monkeypatch.setattr(sys, "argv", ["environment.py"])
    return repository


def test_a_second_run_does_nothing(repository: Repository) -> None:
    assert repository.run() == (0, ["venv", "pip"])
    assert repository.run() == (0, [])


def test_a_changed_pyproject_is_installed_into_what_is_there(repository: Repository) -> None:
    repository.run()
    (repository.root / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert repository.run() == (0, ["pip"])
    stamp = hashlib.sha256((repository.root / "pyproject.toml").read_bytes()).hexdigest()
    assert repository.environment.is_ready(stamp, EXTRAS)


def test_fewer_extras_than_there_are_need_nothing(repository: Repository) -> None:
    repository.run()
    marker = repository.environment.INSTALLED
    marker.write_text(marker.read_text() + " check hub")
    assert repository.run() == (0, [])


def test_an_installation_that_was_cut_off_is_made_anew(repository: Repository) -> None:
    repository.run()
    repository.environment.INSTALLING.touch()
    assert repository.run() == (0, ["venv", "pip"])


def test_a_python_that_is_gone_is_replaced(repository: Repository) -> None:
    repository.run()
    repository.environment.PYTHON.unlink()
    assert repository.run() == (0, ["venv", "pip"])


def test_somebodys_own_environment_is_kept(repository: Repository) -> None:
    repository.make_venv(repository.environment.VENV, with_pip=True)
    assert repository.run() == (0, ["pip"])


def test_without_a_network_it_says_so_and_begins_anew_next_time(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.pip_fails = True
    assert repository.run() == (69, ["venv", "pip"])
    shown = capsys.readouterr().err
    assert "ERROR: no network\nerror: pip could not install" in shown
    assert "hint: " in shown
    repository.pip_fails = False
    assert repository.run() == (0, ["venv", "pip"])


# ---- which Python -------------------------------------------------------------------------------------------


def run_tools_python(directory: Path, scripts: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """tools/python where ``scripts`` are all the Pythons there are."""
    for name, script in scripts.items():
        (directory / name).write_text(f"#!/bin/sh\n{script}\n")
        (directory / name).chmod(0o755)
    (directory / "probe.py").write_text("print('ran')\n")
    return subprocess.run(
        ["/bin/sh", str(TOOLS / "python"), str(directory / "probe.py")],
        env={**os.environ, "PATH": str(directory)},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )


GOOD = f'exec "{sys.executable}" "$@"'
OLD = "exit 1"
WITHOUT_VENV = 'case "$*" in *ensurepip*) exit 1 ;; esac; exit 0'


def test_the_first_python_that_will_do_is_taken(tmp_path: Path) -> None:
    answer = run_tools_python(tmp_path, {"python3": OLD, "python3.12": GOOD})
    assert (answer.returncode, answer.stdout) == (0, "ran\n")


@pytest.mark.parametrize("scripts", [{}, {"python3": OLD}])
def test_without_one_it_says_what_to_install(tmp_path: Path, scripts: dict[str, str]) -> None:
    answer = run_tools_python(tmp_path, scripts)
    assert answer.returncode == 69
    assert "no Python 3.11 or newer was found" in answer.stderr
    assert "hint: " in answer.stderr


def test_one_that_cannot_make_environments_is_told_apart(tmp_path: Path) -> None:
    answer = run_tools_python(tmp_path, {"python3": WITHOUT_VENV})
    assert answer.returncode == 69
    assert "apt install python3-venv" in answer.stderr
