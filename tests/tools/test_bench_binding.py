"""tools/bench_binding, with as few steps as show that it works: what it measures is for a quiet machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.emulator import emulator_library

TOOL = Path(__file__).resolve().parents[2] / "tools" / "bench_binding"
RUN_S = 300


def test_every_figure_is_measured_on_the_emulator_library(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    ended = subprocess.run(
        [sys.executable, TOOL, "--steps", "20", "--json", figures],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
        env={**os.environ, "CALCULET_CALRT_LIBRARY": str(emulator_library()), "XDG_CONFIG_HOME": str(tmp_path)},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(figures.read_text())
    assert [(each["batch"], each["vocab_size"]) for each in found] == [(1, 300), (8, 300), (1, 151_936), (8, 151_936)]
    assert all(0 < each["in_thread_p50_us"] < each["carried_p50_us"] and each["hop_p50_us"] > 0 for each in found)
    assert "beyond the hop" in ended.stdout


def test_too_few_steps_are_refused_with_the_limit() -> None:
    ended = subprocess.run(
        [sys.executable, TOOL, "--steps", "9"], capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert ended.returncode == 2
    assert "--steps 9: at least 10" in ended.stderr
