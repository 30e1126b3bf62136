"""tools/bench_core and tools/bench_sim, with as little work as shows that they work: their figures are for people."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"
RUN_S = 300


def shown(script: str, *options: str) -> str:
    environment = os.environ | {"CALCULET_BENCH": "1"}  # in this environment, whichever it is
    command = [sys.executable, TOOLS / script, *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_core_is_measured_beside_a_yardstick() -> None:
    said = shown("bench_core", "--short")
    assert said.count("yardsticks") == 2, "one for each case"
    assert "core state per waiting request" in said


def test_the_simulator_is_measured_in_yardsticks() -> None:
    said = shown("bench_sim.py", "--seconds", "5")
    assert "x real time" in said
    assert "a job is" in said


def test_the_simulators_time_is_told_apart_by_room() -> None:
    said = shown("bench_sim.py", "--seconds", "5", "--profile")
    shares = [float(line.split("%")[0].split()[-1]) for line in said.splitlines() if "%" in line]
    assert 99 < sum(shares) < 101
    assert {"core", "trio", "shell", "sim/checkers"} <= {line.split()[0] for line in said.splitlines()}
