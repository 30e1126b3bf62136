"""tools/bench_overhead, with as little work as shows that it works: what it measures is for a quiet machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
RUN_S = 300


@pytest.fixture
def overhead(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    import bench_overhead

    return bench_overhead


def test_every_stage_of_a_step_is_measured_on_the_real_daemon(tmp_path):
    figures = tmp_path / "figures.json"
    options = (
        "--batches",
        "1",
        "--sampling",
        "sampled",
        "--inflight",
        "2",
        "--tokens",
        "12",
        "--rounds",
        "3",
        "--json",
        figures,
    )
    command = [sys.executable, TOOLS / "bench_overhead.py", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    [point] = json.loads(figures.read_text())
    assert point["steps"] >= 12, "both clients' steps"
    assert list(point["stages_ms"]) == ["woken", "sampled", "told", "decided"]
    assert all(min(values) > 0 for values in point["stages_ms"].values())
    assert 0 <= point["idle_share"] < 1
    assert "in flight" in ended.stdout


def test_idle_is_what_lies_between_two_steps_and_host_time_what_an_engine_waits(overhead):
    def step(engine, phase, number, *, late_s=0.0):
        ended_s = number * 0.017 + late_s
        return overhead.Step(
            engine=engine,
            phase=phase,
            lanes=1,
            submitted_s=ended_s - 0.017 - 0.001,
            ended_s=ended_s,
            woken_s=ended_s + 0.001,
            sampled_s=ended_s + 0.003,
            told_s=ended_s + 0.006,
            cpu_s=number * 0.0017,
        )

    busy = [step("ping", "prefill", 0), *(step(("ping", "pong")[n % 2], "decode", n) for n in range(2, 12))]
    point = overhead.point_of(busy, 1, "greedy", 2)
    assert point.idle_share == pytest.approx(0.0)
    assert point.cpu_share == pytest.approx(0.1)
    assert point.stages_ms["woken"] == pytest.approx([1.0] * 8)
    assert point.stages_ms["told"] == pytest.approx([3.0] * 8)
    assert point.host_ms == pytest.approx([16.0] * 8), "of each engine, from a step's end to its next submission"
    gaps = [step("ping", "prefill", 0), *(step("ping", "decode", n, late_s=0.001 * n) for n in range(2, 12))]
    assert overhead.point_of(gaps, 1, "greedy", 1).idle_share == pytest.approx(1 / 18)
