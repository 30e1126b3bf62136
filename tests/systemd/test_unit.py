"""The unit file: systemd finds nothing wrong with it, and it agrees with what the daemon does."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from calculet_trio.cli.exit_codes import ExitCode
from calculet_trio.settings.surface import TimeoutSettings

UNIT = Path(__file__).resolve().parents[2] / "systemd" / "calculet-trio.service"
VERIFY_S = 60


@pytest.fixture
def unit() -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.optionxform = str
    parsed.read_string(UNIT.read_text("utf-8"))
    return parsed


def verify(unit: Path, home: Path) -> str:
    """What systemd-analyze has to say; it prints warnings and exits 0, so that silence is what counts."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian package systemd)")
    runtime = home / "run"
    runtime.mkdir(mode=0o700, exist_ok=True)
    answer = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(unit)],
        env={**os.environ, "HOME": str(home), "XDG_RUNTIME_DIR": str(runtime)},
        capture_output=True,
        text=True,
        timeout=VERIFY_S,
        check=False,
    )
    return answer.stdout + answer.stderr


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with an installed calculet-trio where the unit looks for it."""
    program = tmp_path / ".local" / "share" / "calculet-trio" / "venv" / "bin" / "calculet-trio"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return tmp_path


def test_systemd_finds_nothing_wrong(home):
    assert verify(UNIT, home) == ""


@pytest.mark.parametrize("wrong", [("WatchdogSec=90", "WatchdogSek=90"), ("%h/.local", "%h/elsewhere")])
def test_systemd_would_find_a_mistake(home, wrong):
    broken = home / UNIT.name
    broken.write_text(UNIT.read_text("utf-8").replace(*wrong))
    assert verify(broken, home) != ""


def test_the_exit_codes_are_those_of_the_table(unit):
    service = unit["Service"]
    assert service["RestartForceExitStatus"].split() == [str(int(ExitCode.RESTART))]
    assert service["RestartPreventExitStatus"].split() == [str(int(ExitCode.REFUSED)), str(int(ExitCode.USAGE))]


def test_the_times_are_in_order_with_the_configurations_defaults(unit):
    service, defaults = unit["Service"], TimeoutSettings()
    assert defaults.job_s < float(service["WatchdogSec"]) < float(service["TimeoutStopSec"])
    # Derived from the model's longest job; the daemon asks the manager for what is more than TimeoutStopSec.
    assert (defaults.watchdog_s, defaults.drain_s) == (None, None)
    assert defaults.streams_s < float(service["TimeoutStopSec"])


def test_the_daemon_alone_is_heard_and_told_to_stop(unit):
    assert unit["Service"]["Type"] == "notify"
    assert unit["Service"]["NotifyAccess"] == "main"
    assert unit["Service"]["KillMode"] == "mixed"
