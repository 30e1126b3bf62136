"""The processes that the rows share, each looked over after every row."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from tests.api.wire import post
from tests.clients.daemon import running
from tests.reports.scripts import COMMON, ONE_LANE, SLOWLY
from tests.reports.served import CHAT, Served, ask

ORIGIN = "http://allowed.example"


class Shared:
    """A process that many rows share; who comes after one that ended it gets another."""

    def __init__(self, script: Mapping[str, Any], **options: Any) -> None:
        self._script = script
        self._options = options
        self._served: Served | None = None
        self._process = ExitStack()

    def served(self) -> Served:
        if self._served is None or self._served.daemon.process.poll() is not None:
            self._process.close()
            self._served = Served(self._process.enter_context(running(self._script, **self._options)))
        return self._served

    def end(self) -> None:
        with self._process:
            if self._served is not None:
                assert self._served.daemon.stop() == 0


@pytest.fixture(scope="session")
def common() -> Iterator[Shared]:
    shared = Shared(COMMON)
    yield shared
    shared.end()


@pytest.fixture(scope="session")
def with_one_lane() -> Iterator[Shared]:
    """One request runs, one waits; pages of one origin may ask; a reader that takes nothing is cut soon."""
    config = {
        "listen": {"cors_origins": [ORIGIN]},
        "timeouts": {"write_stall_s": 1.0},
        "limits": {"stream_backlog_bytes": 64 * 2**10},
    }
    shared = Shared(ONE_LANE, config=config, arguments=["--max-waiting", "1"])
    yield shared
    shared.end()


@pytest.fixture
async def served(common: Shared) -> AsyncIterator[Served]:
    """Four lanes; prompts of 1,024 tokens, contexts of 2,048."""
    served = common.served()
    yield served
    await served.is_at_rest()


@pytest.fixture
async def one_lane(with_one_lane: Shared) -> AsyncIterator[Served]:
    served = with_one_lane.served()
    yield served
    await served.is_at_rest()


@pytest.fixture(scope="session", autouse=True)
def slow_stream(request: pytest.FixtureRequest) -> Iterator[socket.socket | None]:
    """A stream of seventy seconds, begun before the other rows so that nobody waits for all of it."""
    if not any(item.name.startswith("test_b43") for item in request.session.items):
        yield None
        return
    with running(SLOWLY) as daemon, socket.create_connection(("127.0.0.1", daemon.port), timeout=100) as client:
        client.sendall(post(CHAT, ask("hi", stream=True), "Connection: close"))
        yield client
        assert daemon.stop() == 0
