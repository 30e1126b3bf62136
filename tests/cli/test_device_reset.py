"""``calculet-trio device reset`` as an operator types it: a real process, a running stream, a budget that ends."""

from __future__ import annotations

import json
import re
import socket
import tempfile
from pathlib import Path

import pytest

from tests.cli.test_operate import calculet, started


@pytest.fixture
def place():
    with tempfile.TemporaryDirectory(prefix="ct") as short:  # a Unix socket's path is at most 107 bytes long
        yield Path(short)


def begun_stream(daemon, prompt):
    """A stream of which the first event has come."""
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": prompt}]}).encode()
    connection = socket.create_connection(("127.0.0.1", daemon.port), timeout=60)
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    reader = connection.makefile("rb")
    while not reader.readline().startswith(b"data: "):
        pass
    return connection, reader


def test_resets_until_the_budget_is_spent_and_no_restart_renews_it(place):
    daemon = started(place)
    config = place / "config.yaml"
    try:
        connection, reader = begun_stream(daemon, "slowly")
        code, out, err = calculet("device", "reset", "--config", config)
        assert code == 0, out + err
        assert re.fullmatch(r"device reset: done in [\d.]+ s, reset [\d.]+ s\n", out)
        assert "nothing is out; resetting the device" in err
        assert "each proven by its golden run" in err
        rest = reader.read().decode()
        assert '"code":"operator_reset"' in rest.replace(" ", "")
        assert "[DONE]" not in rest
        connection.close()

        code, out, _ = calculet("device", "reset", "--config", config, "--json")
        assert (code, json.loads(out)["state"]) == (0, "done")
        spent = "the reset budget is spent (recovery.max_resets_per_10min is 2); the next reset may be made in"
        code, _, err = calculet("device", "reset", "--config", config)
        assert code == 1
        assert f"the device is not reset: {spent}" in err
        connection, reader = begun_stream(daemon, "slowly")
        connection.close()
        assert daemon.stop() == 0

        daemon = started(place)
        code, _, err = calculet("device", "reset", "--config", config)
        assert (code, spent in err) == (1, True)
    finally:
        daemon.kill()
    [history] = (place / "state" / "faults").glob("*.json")
    kept = json.loads(history.read_text())
    assert [reset["succeeded"] for reset in kept["resets"]] == [True, True]
    assert kept["faults"] == [], "nothing had failed"
