"""The listener's life. Reports B65, B68."""

from __future__ import annotations

import socket
import ssl

import pytest
import trio
import trio.testing

from calculet_trio.api.listening import bound_socket
from calculet_trio.api.settings import ApiSettings, ConnectionLimits
from calculet_trio.errors import Unavailable
from tests.api.conftest import Server
from tests.api.fake_service import gated
from tests.api.wire import get, post

LIMITS = ConnectionLimits()
STREAM = post("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True})


def test_a_taken_port_is_said_in_one_line_with_what_to_do() -> None:
    with bound_socket("127.0.0.1", 0, LIMITS) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"127.0.0.1:{port}.*in use") as caught:
            bound_socket("127.0.0.1", port, LIMITS)
    assert caught.value.hint


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_that_is_not_ours_is_refused(host: str) -> None:
    with pytest.raises(Unavailable, match=host):
        bound_socket(host, 0, LIMITS)


def test_localhost_is_where_people_look_for_it() -> None:
    with bound_socket("localhost", 0, LIMITS) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"
        stall_ms = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert stall_ms == LIMITS.write_stall_s * 1000


async def refused(server: Server) -> bool:
    try:
        wire = await server.connect()
    except OSError:
        return True
    await wire.aclose()
    return False


async def test_at_shutdown_the_listener_closes_at_once_and_idle_connections_too(server: Server) -> None:
    idle, kept = await server.connect(), await server.connect()
    await kept.answer(get("/health"))
    server.shutdown.set()
    with trio.fail_after(2):
        await idle.read_to_end()
        await kept.read_to_end()
        await server.ended.wait()
    assert await refused(server)


async def test_at_shutdown_a_stream_comes_to_its_end_and_its_connection_then_closes(server: Server) -> None:
    script, opener = gated("a", "b")
    server.service.script = lambda request: script
    wire = await server.connect()
    await wire.stream.send_all(STREAM)
    opener.send_nowait(None)
    await wire.read_until(b'"a"')
    server.shutdown.set()
    await trio.testing.wait_all_tasks_blocked()
    assert await refused(server)
    assert not server.ended.is_set()
    opener.send_nowait(None)
    assert b"[DONE]" in await wire.read_to_end()
    with trio.fail_after(2):
        await server.ended.wait()


class TestNoGrace:
    @pytest.fixture
    def settings(self) -> ApiSettings:
        return ApiSettings(connection=ConnectionLimits(graceful_s=0.2))

    async def test_what_works_on_for_too_long_is_cut(self, server: Server) -> None:
        script, _opener = gated("never")
        server.service.script = lambda request: script
        wire = await server.connect()
        await wire.stream.send_all(STREAM)
        await server.service.until_active(1)
        server.shutdown.set()
        with trio.fail_after(5):
            await server.ended.wait()
        await server.service.until_active(0)
        assert await wire.read_to_end() == b""


async def test_a_client_that_speaks_tls_is_told_in_plain_http(server: Server) -> None:
    def handshake() -> None:
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as plain:
            ssl._create_unverified_context().wrap_socket(plain)

    with pytest.raises((ssl.SSLError, OSError)):
        await trio.to_thread.run_sync(handshake)
