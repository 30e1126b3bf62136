"""What one stranger's bytes may do to us and to others. Reports B36, B50, B64; CONVENTIONS.md traps 1, 3–5."""

from __future__ import annotations

import socket

import pytest
import trio

from calculet_trio.api.listening import bound_socket
from calculet_trio.api.settings import ApiSettings, ConnectionLimits
from tests.api.conftest import Server
from tests.api.fake_service import endless, gated, said
from tests.api.wire import get, post

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ASK = post("/v1/chat/completions", CHAT)
WEBSOCKET = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: eA=="]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("tail", [b"", b"x", b"x" * 1000])
async def test_a_websocket_is_refused_with_whatever_follows_it(server: Server, method: str, tail: bytes) -> None:
    """Report B64: one byte too many used to end the process."""
    wire = await server.connect()
    answer = await wire.answer(get("/", *WEBSOCKET, method=method) + tail)
    assert answer.status == 400
    assert answer.error["code"] == "bad_request"
    await wire.read_to_end()
    assert (await server.chat()).status == 200


async def test_an_upgrade_to_http2_is_not_taken_up(server: Server) -> None:
    """CHOICES.md: B64. Java's client asks for it with every first request, and goes on in HTTP/1.1 without it."""
    lines = ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"]
    wire = await server.connect()
    assert (await wire.answer(get("/health", *lines))).json() == {"status": "ok"}
    assert wire.raw.startswith(b"HTTP/1.1 200")
    assert (await wire.answer(ASK.replace(b"Host: h", "\r\n".join(["Host: h", *lines]).encode()))).status == 200
    assert (await wire.answer(get("/health"))).status == 200


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/3.0\r\nHost: h\r\n\r\n", 505),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", 400),
        (b"GET ?x HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: h\r\nHost: i\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: h\r\nBad Name: x\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /tokenize HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET /health HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", 431),
        (b"GET /health HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + b"x" * 1_000_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 431),
    ],
)
async def test_what_is_no_request_of_ours_is_refused_in_our_shape_and_closed(
    server: Server, raw: bytes, status: int
) -> None:
    """CHOICES.md: B36; CHOICES.md: B64."""
    wire = await server.connect()
    answer = await wire.answer(raw)
    assert answer.status == status
    assert answer.error["type"] == "invalid_request_error"
    assert (status == 431) == answer.error["message"].endswith(f"; the limit is {ConnectionLimits().head_bytes} bytes")
    assert answer.headers["connection"] == "close"
    await wire.read_to_end()


async def test_a_request_with_two_lengths_gets_one_answer_and_no_second_request(server: Server) -> None:
    """Trap 5: smuggling."""
    inner = get("/health")
    raw = b"POST /tokenize HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    raw += f"Content-Length: {5 + len(inner)}\r\n".encode() + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner
    wire = await server.connect()
    await wire.stream.send_all(raw)
    raw = await wire.read_to_end()
    assert raw.startswith(b"HTTP/1.1 400")
    assert raw.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("target", ["http://h/health", "HTTP://other:80/health?x=1", "http://[/health"])
async def test_the_absolute_form_of_a_target_is_taken(server: Server, target: str) -> None:
    assert (await server.ask(get(target))).status == 200


async def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    """CHOICES.md: B44."""
    texts = iter("abc")
    server.service.script = lambda request: said(next(texts))
    wire = await server.connect()
    await wire.stream.send_all(ASK * 3)
    answers = [await wire.read_answer() for _ in range(3)]
    assert [answer.json()["choices"][0]["message"]["content"] for answer in answers] == ["a", "b", "c"]


async def test_more_requests_in_advance_than_are_kept_end_the_connection(server: Server) -> None:
    script, _opener = gated("never")
    server.service.script = lambda request: script
    wire = await server.connect()
    await wire.stream.send_all(ASK)
    await server.service.until_active(1)
    with trio.fail_after(10):
        try:
            while True:
                await wire.stream.send_all(ASK * 500)
        except trio.BrokenResourceError:
            pass
    await server.service.until_active(0)


async def test_a_connection_is_kept_for_many_requests_whatever_the_timing(server: Server) -> None:
    wire = await server.connect()
    for _ in range(100):
        assert (await wire.answer(ASK)).status == 200
    assert (await wire.answer(post("/v1/chat/completions", {**CHAT, "stream": True}))).events()[-1] == "[DONE]"
    assert (await wire.answer(get("/health"))).status == 200


async def test_a_client_may_wait_for_100_continue(server: Server) -> None:
    wire = await server.connect()
    head, _, body = ASK.replace(b"Host: h", b"Host: h\r\nExpect: 100-continue").partition(b"\r\n\r\n")
    await wire.stream.send_all(head + b"\r\n\r\n")
    await wire.read_until(b"100 \r\n")
    await wire.stream.send_all(body)
    assert b"HTTP/1.1 200" in await wire.read_until(b'"Hello world"')


async def test_an_error_of_one_connection_reaches_no_other(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from calculet_trio.api.http1 import Http1Protocol

    script, opener = gated("a", "b")
    server.service.script = lambda request: script
    stays = await server.connect()
    await stays.stream.send_all(post("/v1/chat/completions", {**CHAT, "stream": True}))
    await server.service.until_active(1)

    async def defect(*args: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(Http1Protocol, "_check_protocol", defect)
        broken = await server.connect()
        await broken.stream.send_all(get("/health"))
        assert await broken.read_to_end() == b""
    opener.send_nowait(None)
    opener.send_nowait(None)
    await stays.read_until(b"[DONE]")
    assert [entry["event"] for entry in server.take_errors()] == ["connection_defect"]


class TestSlowHeads:
    @pytest.fixture
    def settings(self) -> ApiSettings:
        return ApiSettings(connection=ConnectionLimits(head_s=0.2, idle_s=600))

    async def test_a_trickled_head_is_cut(self, server: Server) -> None:
        wire = await server.connect()
        with trio.fail_after(10):
            try:
                while True:
                    await wire.stream.send_all(b"x")
                    await trio.sleep(0.02)
            except trio.BrokenResourceError:
                pass


class TestIdleness:
    @pytest.fixture
    def settings(self) -> ApiSettings:
        return ApiSettings(connection=ConnectionLimits(idle_s=0.5))

    async def test_a_silent_connection_is_closed(self, server: Server) -> None:
        wire = await server.connect()
        assert await wire.read_to_end() == b""
        kept = await server.connect()
        await kept.answer(get("/health"))
        await kept.read_to_end()

    async def test_a_request_that_runs_longer_than_idleness_may_last_is_not(self, server: Server) -> None:
        script, opener = gated("a")
        server.service.script = lambda request: script
        wire = await server.connect()
        await wire.stream.send_all(ASK)
        await server.service.until_active(1)
        await trio.sleep(0.8)
        opener.send_nowait(None)
        assert (await wire.read_answer()).status == 200


class TestStalledReaders:
    @pytest.fixture(params=["kernel's timeout too", "our own alone"])
    def listening(self, request: pytest.FixtureRequest, settings: ApiSettings) -> socket.socket:
        listening = bound_socket("127.0.0.1", 0, settings.connection)
        if request.param == "our own alone":
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
        return listening

    @pytest.fixture
    def settings(self) -> ApiSettings:
        return ApiSettings(connection=ConnectionLimits(write_stall_s=0.3))

    async def test_a_reader_that_stalls_is_cut_and_its_request_given_up(self, server: Server) -> None:
        """Report B50."""
        server.service.script = lambda request: endless("x" * 10_000)
        stalled = socket.socket()
        with stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.connect(("127.0.0.1", server.port))
            stalled.sendall(post("/v1/chat/completions", {**CHAT, "stream": True}))
            await server.service.until_active(1)
            await server.service.until_active(0)
        assert server.service.tokens_run < 100_000


class TestFewConnections:
    @pytest.fixture
    def settings(self) -> ApiSettings:
        return ApiSettings(connection=ConnectionLimits(connections=2))

    async def test_one_too_many_is_told_so_and_room_comes_back(self, server: Server) -> None:
        first, second = await server.connect(), await server.connect()
        for wire in (first, second):
            assert (await wire.answer(get("/health"))).status == 200
        third = await server.connect()
        answer = await third.answer(get("/health"))
        assert (answer.status, answer.error["code"]) == (503, "too_many_connections")
        assert answer.error["message"].endswith("; the limit is 2")
        assert answer.headers["retry-after"] == "1"
        await first.aclose()
        for _ in range(100):  # the server's own end of it may take a moment longer
            if (await server.ask(get("/health"))).status == 200:
                break
            await trio.sleep(0.05)
        else:
            pytest.fail("the room of a closed connection did not come back")
