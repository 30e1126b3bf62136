"""The processes that the rows share, each looked over after every row."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.api.wire import post
from tests.clients.daemon import Daemon, running
from tests.reports.scripts import COMMON, ONE_LANE, SLOWLY
from tests.reports.served import CHAT, Served, ask

ORIGIN = "http://allowed.example"


@pytest.fixture(scope="session")
def common_daemon() -> Iterator[Daemon]:
    with running(COMMON) as daemon:
        yield daemon
        assert daemon.stop() == 0


@pytest.fixture(scope="session")
def one_lane_daemon() -> Iterator[Daemon]:
    """One request runs, one waits; pages of one origin may ask; a reader that takes nothing is cut soon."""
    config = {
        "listen": {"cors_origins": [ORIGIN]},
        "timeouts": {"write_stall_s": 1.0},
        "limits": {"stream_backlog_bytes": 64 * 2**10},
    }
    with running(ONE_LANE, config=config, arguments=["--max-waiting", "1"]) as daemon:
        yield daemon
        assert daemon.stop() == 0


@pytest.fixture(scope="session")
def common_served(common_daemon: Daemon) -> Served:
    return Served(common_daemon)


@pytest.fixture(scope="session")
def one_lane_served(one_lane_daemon: Daemon) -> Served:
    return Served(one_lane_daemon)


@pytest.fixture
async def served(common_served: Served) -> AsyncIterator[Served]:
    """Four lanes; prompts of 1,024 tokens, contexts of 2,048."""
    yield common_served
    await common_served.is_at_rest()


@pytest.fixture
async def one_lane(one_lane_served: Served) -> AsyncIterator[Served]:
    yield one_lane_served
    await one_lane_served.is_at_rest()


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
