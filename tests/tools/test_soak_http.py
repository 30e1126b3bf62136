"""tools/soak_http in its short form: it runs against the real process, and what does not hold is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
RUN_S = 300


@pytest.fixture
def soak(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    import soak_http

    return soak_http


def test_the_short_form_holds(tmp_path):
    verdicts = tmp_path / "verdicts.json"
    command = [sys.executable, TOOLS / "soak_http.py", "--short", "--json", verdicts]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(verdicts.read_text())
    assert {verdict["part"] for verdict in found} == {"disconnects", "streams", "health"}
    assert all(verdict["passed"] for verdict in found)
    assert ended.stdout.count("✓") == len(found)


def test_growth_is_judged_by_its_halves(soak):
    level = [100 * soak.MIB, 114 * soak.MIB] * 10
    assert soak.grown(level, soak.FULL).passed
    leak = [size + n * soak.MIB for n, size in enumerate(level)]
    assert not soak.grown(leak, soak.FULL).passed


def test_what_is_registered_is_named(soak):
    class Daemon:
        def metrics(self):
            return dict.fromkeys(GAUGES, 0.0) | {"vllm:num_requests_running": 2.0}

    assert soak.registered(Daemon()) == "vllm:num_requests_running 2"


GAUGES = (
    "vllm:num_requests_waiting",
    "vllm:num_requests_running",
    "calculet_waiting_prompt_tokens",
    "calculet_kv_tokens_reserved",
    "calculet_kv_tokens_used",
    "calculet_jobs_in_flight",
    "calculet_jobs_unknown",
    "calrt_kv_used_batches",
)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b'HTTP/1.1 200 \r\n\r\ndata: {"a":1}\n\ndata: {"b":2}\n\ndata: [DONE]\n\n', (200, 2, True, 0)),
        (b'HTTP/1.1 200 \r\n\r\ndata: {"a":1}\n\ndata: {"error":{}}\n\n', (200, 2, False, 1)),
        (b"HTTP/1.1 503 \r\n\r\n{}", (503, 0, False, 0)),
    ],
)
@pytest.mark.parametrize("piece", [1000, 7, 1])
def test_events_are_counted_however_they_are_cut(monkeypatch, said, told, piece):
    monkeypatch.syspath_prepend(TOOLS)
    import sse_client

    heard, tail = sse_client.Told(), b""
    for begin in range(0, len(said), piece):
        tail = sse_client.take(tail + said[begin : begin + piece], heard, 1.0, lambda: None)
    assert (heard.status, len(heard.events_s), heard.ended, heard.faults) == told
