"""HTTP by hand: what is sent and what comes back are bytes, so that nothing is mended on the way."""

from __future__ import annotations

import json
from typing import Any

import attrs
import h11
import trio

WAIT_S = 20
"""So that a hang fails."""


@attrs.define
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    ended: bool

    def json(self) -> Any:
        def refuse(name: str) -> Any:
            raise AssertionError(f"not strict JSON: {name}")

        assert self.headers["content-type"].startswith("application/json"), (self.status, self.headers, self.body)
        return json.loads(self.body, parse_constant=refuse)

    @property
    def error(self) -> dict[str, Any]:
        error = self.json()["error"]
        assert {"message", "type", "param", "code"} <= error.keys()
        return error

    def events(self) -> list[Any]:
        """The objects of a stream; its end mark is the string ``[DONE]``. Checks the framing."""
        text = self.body.decode()
        assert text.endswith("\n\n")
        shown = []
        for block in text.split("\n\n")[:-1]:
            assert block.splitlines() == [block], f"more than one line: {block!r}"
            if block.startswith(":"):
                continue
            assert block.startswith("data: ")
            data = block.removeprefix("data: ")
            shown.append(data if data == "[DONE]" else json.loads(data))
        return shown

    def text(self) -> str:
        """The joined text of a chat stream's only choice."""
        chunks = [event for event in self.events() if event != "[DONE]"]
        return "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])


def post(path: str, body: Any, *headers: str, content_type: str | None = "application/json") -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: h", f"Content-Length: {len(raw)}", *headers]
    if content_type is not None:
        lines.append(f"Content-Type: {content_type}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + raw


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: h", *headers]).encode() + b"\r\n\r\n"


async def connected(port: int) -> Wire:
    """A connection to a server of this machine that may not listen yet."""
    with trio.fail_after(WAIT_S):
        while True:
            try:
                return Wire(await trio.open_tcp_stream("127.0.0.1", port))
            except OSError:
                await trio.sleep(0.01)


class Wire:
    """One connection to the server."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.raw = b""
        self._parser = h11.Connection(h11.CLIENT)

    async def answer(self, request: bytes) -> Answer:
        """Send, and read one whole answer."""
        await self.stream.send_all(request)
        return await self.read_answer(b"HEAD" if request.startswith(b"HEAD ") else b"GET")

    async def read_answer(self, method: bytes = b"GET") -> Answer:
        """One whole answer to what was sent as ``method``."""
        parser = self._parser = self._fresh(method)
        status, headers, body = 0, {}, b""
        with trio.fail_after(WAIT_S):
            while True:
                event = parser.next_event()
                if event is h11.NEED_DATA:
                    await self._read(parser)
                elif isinstance(event, h11.Response):
                    status = event.status_code
                    headers = {name.decode(): value.decode() for name, value in event.headers}
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    return Answer(status, headers, body, True)
                elif isinstance(event, h11.InformationalResponse):
                    continue
                else:
                    return Answer(status, headers, body, False)

    def _fresh(self, method: bytes) -> h11.Connection:
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method=method, target="/", headers=[("Host", "h")]))
        parser.send(h11.EndOfMessage())
        if left := self._parser.trailing_data[0]:
            parser.receive_data(left)
        return parser

    async def _read(self, parser: h11.Connection) -> None:
        try:
            data = bytes(await self.stream.receive_some(65536))
        except trio.BrokenResourceError:
            data = b""
        self.raw += data
        parser.receive_data(data)

    async def read_until(self, mark: bytes) -> bytes:
        """Raw bytes up to and with ``mark``."""
        with trio.fail_after(WAIT_S):
            while mark not in self.raw:
                data = await self.stream.receive_some(65536)
                assert data, f"ended without {mark!r}: {self.raw!r}"
                self.raw += bytes(data)
        return self.raw

    async def read_to_end(self) -> bytes:
        """Raw bytes until the server closes."""
        with trio.fail_after(WAIT_S):
            while True:
                try:
                    data = await self.stream.receive_some(65536)
                except trio.BrokenResourceError:
                    return self.raw
                if not data:
                    return self.raw
                self.raw += bytes(data)

    async def aclose(self) -> None:
        await self.stream.aclose()
