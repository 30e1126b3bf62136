"""The real process as a test meets it: requests by hand, the script's gates, and what must hold after every row."""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import trio

from tests.api.wire import WAIT_S, Answer, Wire, get, post
from tests.clients.daemon import Daemon

CHAT = "/v1/chat/completions"

POOLED_THREADS = 8
"""What work may have left waiting for more: two that prepare prompts, two that decode bodies, an engine, KV calls,
and two of the script's control socket."""

AT_REST = {
    "vllm:num_requests_waiting": 0.0,
    "vllm:num_requests_running": 0.0,
    "calculet_waiting_prompt_tokens": 0.0,
    "calculet_jobs_in_flight": 0.0,
    "calculet_jobs_unknown": 0.0,
    "calculet_kv_tokens_used": 0.0,
    "calculet_kv_tokens_reserved": 0.0,
    "calrt_kv_used_batches": 0.0,
    "calculet_ready": 1.0,
}
"""The gauges of a daemon that serves and has nobody to serve."""


def ask(content: str, **fields: Any) -> dict[str, Any]:
    """The body of a chat request."""
    return {"model": "m", "messages": [{"role": "user", "content": content}], **fields}


class Served:
    """One running process.

    Args:
        daemon: the process.
    """

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self._wires: list[Wire] = []
        self._expected: list[str] = []
        self._logged = len(daemon.stderr())
        self._threads = POOLED_THREADS + self.threads()
        self._sockets = self.sockets() + 1  # that of the last look at it may not be closed yet

    # ---- asking -------------------------------------------------------------------------------------

    async def connect(self, *, receive_bytes: int | None = None) -> Wire:
        """A connection; with ``receive_bytes`` one whose kernel keeps little for a reader that does not read."""
        client = trio.socket.socket()
        if receive_bytes is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        await client.connect(("127.0.0.1", self.daemon.port))
        wire = Wire(trio.SocketStream(client))
        self._wires.append(wire)
        return wire

    async def ask(self, request: bytes) -> Answer:
        """One request on a connection of its own."""
        wire = await self.connect()
        answer = await wire.answer(request)
        await wire.aclose()
        return answer

    async def get(self, path: str, *headers: str) -> Answer:
        return await self.ask(get(path, *headers))

    async def post(self, path: str, body: Any, *headers: str) -> Answer:
        return await self.ask(post(path, body, *headers))

    async def chat(self, content: str = "hi", *headers: str, **fields: Any) -> Answer:
        return await self.post(CHAT, ask(content, **fields), *headers)

    async def texts(self, content: str, **fields: Any) -> tuple[str, str]:
        """The reply's text and why it ended; a stream and a whole reply must agree on both."""
        whole = (await self.chat(content, **fields)).json()["choices"][0]
        streamed = await self.chat(content, stream=True, **fields)
        events = streamed.events()
        assert events[-1] == "[DONE]"
        reasons = [event["choices"][0]["finish_reason"] for event in events[:-1]]
        assert [reason for reason in reasons if reason] == [whole["finish_reason"]]
        assert streamed.text() == whole["message"]["content"]
        return whole["message"]["content"], whole["finish_reason"]

    async def begin(self, content: str, *headers: str, **fields: Any) -> Wire:
        """Send a chat request and read nothing yet."""
        wire = await self.connect()
        await wire.stream.send_all(post(CHAT, ask(content, **fields), *headers))
        return wire

    # ---- the script ---------------------------------------------------------------------------------

    def counter(self, name: str) -> int:
        return self.daemon.control(state=True).get(name, 0)

    async def release(self, gate: str, count: int = 1) -> None:
        await self._control(release=gate, count=count)

    async def wait_for(self, **counters: int) -> None:
        """Until the script's counters have reached these values."""
        await self._control(wait_for=counters, timeout_s=WAIT_S)

    async def _control(self, **command: Any) -> None:
        await trio.to_thread.run_sync(lambda: self.daemon.control(**command))

    @asynccontextmanager
    async def freeing(self, lanes: int = 1) -> AsyncIterator[None]:
        """What is done inside makes the runtime release so many sequences."""
        released = self.counter("released")
        yield
        await self.wait_for(released=released + lanes)
        assert self.counter("released") == released + lanes

    async def noticed(self) -> None:
        """Whatever was sent or closed before has reached the process: it has gone round its sockets since."""
        for _ in range(3):
            await self.get("/health/live")

    # ---- what can be seen of it ---------------------------------------------------------------------

    async def metrics(self) -> dict[str, float]:
        """Every sample of ``/metrics``, by its name with its labels."""
        page = (await self.get("/metrics")).body.decode()
        samples = [line.rpartition(" ") for line in page.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in samples}

    async def until_metrics(self, **values: float) -> None:
        """Until all of these are so; every look is a round trip, which is time enough for others."""
        with trio.fail_after(WAIT_S):
            while values.items() - (await self.metrics()).items():
                pass

    def threads(self) -> int:
        return int(self._status("Threads"))

    def resident_bytes(self) -> int:
        return int(self._status("VmRSS").split()[0]) * 1024

    def _status(self, name: str) -> str:
        text = Path(f"/proc/{self.daemon.process.pid}/status").read_text()
        found = re.search(rf"^{name}:\s*(.*)$", text, re.MULTILINE)
        assert found
        return found[1]

    def sockets(self) -> int:
        """How many the process has open."""
        opened = 0
        directory = f"/proc/{self.daemon.process.pid}/fd"
        for number in os.listdir(directory):  # noqa: PTH208 - entries that come and go
            with suppress(FileNotFoundError):
                opened += os.readlink(f"{directory}/{number}").startswith("socket:")  # noqa: PTH115 - no path
        return opened

    async def let_go_of(self, *, sockets: int) -> None:
        """Until no more than so many sockets are open beyond those it always has."""
        with trio.fail_after(WAIT_S):
            while self.sockets() > self._sockets + sockets:
                await self.noticed()

    # ---- afterwards ---------------------------------------------------------------------------------

    def may_log(self, event: str) -> None:
        """The row may leave this event in the log; any other is a failure."""
        self._expected.append(event)

    async def hang_up(self) -> None:
        """Close every connection that the test has left open."""
        for wire in self._wires:
            await trio.aclose_forcefully(wire.stream)
        self._wires.clear()

    async def is_at_rest(self) -> None:
        """Assert what must hold after every row, as if it had never been."""
        await self.hang_up()
        assert self.daemon.process.poll() is None, f"it ended, with {self.daemon.wait()}: {self.daemon.stderr()}"
        deadline_s = time.monotonic() + WAIT_S
        while (held := self.counter("allocated")) != self.counter("released"):
            assert time.monotonic() < deadline_s, "lanes are still held"
            await self.wait_for(released=held)
        await self.until_metrics(**AT_REST)
        assert (await self.get("/health")).json() == {"status": "ok"}
        plain = await self.chat()
        assert plain.status == 200
        assert plain.json()["choices"][0]["message"]["content"] == "Hello world"
        assert self.threads() <= self._threads
        await self.let_go_of(sockets=0)
        self._check_log()

    def _check_log(self) -> None:
        log = self.daemon.stderr()
        said, self._logged = log[self._logged :], len(log)
        for line in said.splitlines():
            assert any(f"event={event} " in line for event in self._expected), f"on standard error: {line}"
        self._expected.clear()


def reset_when_closed(wire: Wire) -> None:
    """Closing sends RST, not FIN."""
    wire.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
