"""The process that clients talk to, checked after every test: nothing is held, and it still answers."""

from __future__ import annotations

import json
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.daemon import Daemon


@pytest.fixture(scope="session")
def session_daemon() -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="ct") as directory:  # short: a Unix socket's path is at most 107 bytes
        daemon = Daemon(Path(directory))
        try:
            yield daemon
            assert daemon.stop() == 0
        finally:
            daemon.kill()


@pytest.fixture
def daemon(session_daemon: Daemon) -> Iterator[Daemon]:
    yield session_daemon
    state = session_daemon.control(state=True)
    deadline_s = time.monotonic() + 20
    while state.get("allocated", 0) != state.get("released", 0):
        assert time.monotonic() < deadline_s, f"lanes are still held: {state}"
        allocated = state.get("allocated", 0)
        state = session_daemon.control(wait_for={"released": allocated}, timeout_s=20)
    with urllib.request.urlopen(f"{session_daemon.base_url}/health", timeout=10) as answer:
        assert json.load(answer) == {"status": "ok"}


@pytest.fixture
def base_url(daemon: Daemon) -> str:
    return daemon.base_url
