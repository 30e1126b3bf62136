"""Two jobs in flight in a real process of the CPU runtime: a crowd over HTTP, some leave, and nobody's text differs."""

from __future__ import annotations

import json
import re
import socket
import struct
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from tests.lifecycle.plant import Plant, wait_for

pytest.importorskip("onnxruntime", reason="needs the host extra")

PROMPTS = [f"{number} ships{' sail' * number}" for number in range(12)]
ROUNDS = 3
TOKENS = 24
LEAVING = 6
SCHEDULER = {
    "schema": "calculet-scheduler/v1",
    "admission": {"max_inflight_jobs": 2},
    "batch": {"profiles": [1]},  # the same kernels alone and in a crowd, so that texts are equal to the bit
    "executor": {"max_inflight": 2, "p99_gate": 10.0},  # a busy machine is no doubt
}


@pytest.fixture(scope="module")
def plant():
    with tempfile.TemporaryDirectory() as home:
        made = Plant(Path(home))
        made.pull("m")
        (made.home / "scheduler.yaml").write_text(yaml.safe_dump(SCHEDULER))
        with made.serving(models=[{"alias": "m", "package": "m", "scheduler": str(made.home / "scheduler.yaml")}]):
            yield made


def seen(plant, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{plant.port}{path}", timeout=30) as answer:
        return answer.read().decode()


def counted(plant, name):
    """The sum of a metric's series."""
    return sum(
        float(value) for value in re.findall(rf"^{re.escape(name)} (\S+)$", seen(plant, "/metrics"), re.MULTILINE)
    )


def finished_decodes(plant, engine):
    labels = (f'engine="{engine}"', 'outcome="finished"', 'phase="decode"')
    return counted(plant, "calculet_jobs_total{" + ",".join(labels) + "}")


def ask(plant, prompt):
    return plant.ask(prompt, model="m", tokens=TOKENS)


def leave_early(plant, prompt):
    """Read the beginning of a stream, and reset the connection."""
    content = [{"role": "user", "content": prompt}]
    body = json.dumps({"model": "m", "messages": content, "stream": True, "max_tokens": 100}).encode()
    with socket.create_connection(("127.0.0.1", plant.port), timeout=30) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        assert connection.recv(64).startswith(b"HTTP/1.1 200")


def test_a_crowd_on_two_engines_hears_what_each_would_alone(plant):
    assert json.loads(seen(plant, "/props"))["engines"] == {"mode": "ping_pong", "doubt": None}
    alone = [ask(plant, prompt) for prompt in PROMPTS]
    assert all(status == 200 for status, _ in alone)
    assert len({text for _, text in alone}) > 1, "they say different things"
    before = {engine: finished_decodes(plant, engine) for engine in ("ping", "pong")}
    with ThreadPoolExecutor(len(PROMPTS) + LEAVING) as clients:
        asked = [clients.submit(ask, plant, prompt) for _ in range(ROUNDS) for prompt in PROMPTS]
        gone = [clients.submit(leave_early, plant, prompt) for prompt in PROMPTS[:LEAVING]]
        told = [each.result(120) for each in asked]
        for each in gone:
            each.result(120)
    assert told == alone * ROUNDS
    for engine, decodes in before.items():
        assert finished_decodes(plant, engine) > decodes + len(PROMPTS), engine
    wait_for(lambda: counted(plant, "calculet_kv_tokens_used") == 0 == counted(plant, "calculet_jobs_in_flight"))
    assert counted(plant, "calculet_jobs_unknown") == 0
