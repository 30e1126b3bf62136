"""tools/bench_http, with as little work as shows that it works: what it measures is for a quiet machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
RUN_S = 300


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    import bench_peers

    return bench_peers


def measured(tmp_path, *options):
    figures = tmp_path / "figures.json"
    command = [sys.executable, TOOLS / "bench_http.py", "--rounds", "1", "--json", figures, *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(figures.read_text()), ended.stdout


def test_events_are_counted_for_each_number_of_clients(tmp_path):
    found, shown = measured(tmp_path, "--only", "events", "--clients", "1,3", "--events", "20", "--step-ms", "1")
    assert [row["clients"] for row in found["events"]] == [1, 3]
    assert all(row["us_per_event"] > 0 and row["events_per_s"] > 0 for row in found["events"])
    assert "µs/event" in shown


def test_the_stages_of_a_first_token_follow_one_another(tmp_path):
    found, shown = measured(tmp_path, "--only", "stages", "--first-tokens", "3")
    stages = found["stages"]
    assert list(stages) == [line.split()[0] for line in shown.splitlines()[2:11]]
    assert all(len(values) == 3 and min(values) > 0 for values in stages.values())


def test_ratios_pair_the_servers_of_a_round_and_goals_are_told(peers, capsys):
    def points(*rates):
        return [peers.Point(tokens_per_s=rate, first_ms=9.0, between_ms=2.0, between_p99_ms=3.0) for rate in rates]

    servers = {"ours": points(20, 10, 30), "xllamacpp": points(10, 10, 10)}
    assert peers.ratio(servers, "xllamacpp") == 2.0
    builds = {"ours": "a", "xllamacpp": "b"}
    peers.show_peers({"builds": builds, "points": {1: {**servers, "ours": points(12, 12, 12)}, 8: servers}})
    shown = capsys.readouterr().out
    assert "1 streams: 1.20 of 1.3 not reached" in shown
    assert "8 streams: 2.00 of 1.8 reached" in shown
