"""The real server on a real socket, before a `Service` of our own."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
import structlog
import trio

from calculet_trio.api.app import create_app
from calculet_trio.api.listening import bound_socket
from calculet_trio.api.server import serve
from calculet_trio.api.settings import ApiSettings, ConnectionLimits
from tests.api.fake_service import FakeService
from tests.api.wire import Answer, Wire, post

LINGER_S = 2.0


@attrs.define
class Server:
    """A running server: connect, ask, and look at what it did."""

    service: FakeService
    port: int
    shutdown: trio.Event
    ended: trio.Event
    logs: list[Any]
    wires: list[Wire] = attrs.field(factory=list)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def connect(self) -> Wire:
        wire = Wire(await trio.open_tcp_stream("127.0.0.1", self.port))
        self.wires.append(wire)
        return wire

    async def ask(self, request: bytes) -> Answer:
        """One request on a connection of its own."""
        wire = await self.connect()
        answer = await wire.answer(request)
        await wire.aclose()
        return answer

    def take_errors(self) -> list[Any]:
        """What was logged as an error so far; what a test does not take is a failure."""
        errors = [entry for entry in self.logs if entry["log_level"] == "error"]
        self.logs.clear()
        return errors

    async def chat(self, *headers: str, **fields: object) -> Answer:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
        return await self.ask(post("/v1/chat/completions", body, *headers))


def metrics(accept: str) -> tuple[bytes, str]:
    if "openmetrics" in accept:
        return b"# EOF\n", "application/openmetrics-text; version=1.0.0; charset=utf-8"
    return b"up 1\n", "text/plain; version=0.0.4; charset=utf-8"


@pytest.fixture
def settings() -> ApiSettings:
    return ApiSettings(connection=ConnectionLimits(linger_s=LINGER_S, graceful_s=5))


@pytest.fixture
def listening(settings: ApiSettings) -> socket.socket:
    return bound_socket("127.0.0.1", 0, settings.connection)


@pytest.fixture
async def server(settings: ApiSettings, listening: socket.socket, nursery: trio.Nursery) -> AsyncIterator[Server]:
    """Started; afterwards nothing may be held and nothing may have gone wrong without being expected."""
    service = FakeService()
    shutdown, ended = trio.Event(), trio.Event()
    app = create_app(service, settings, metrics=metrics)

    port = listening.getsockname()[1]

    async def run(task_status: trio.TaskStatus[None]) -> None:
        await serve(app, listening, settings=settings, shutdown=shutdown, task_status=task_status)
        ended.set()

    with structlog.testing.capture_logs() as logs:
        await nursery.start(run)
        running = Server(service, port, shutdown, ended, logs)
        yield running
        for wire in running.wires:
            await trio.aclose_forcefully(wire.stream)
        await service.until_active(0)
        shutdown.set()
        with trio.fail_after(10):
            await ended.wait()
    assert running.take_errors() == []
