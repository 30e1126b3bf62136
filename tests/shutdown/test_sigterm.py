"""SIGTERM to the real process, whatever it is doing: the listener closes at once, everybody is told, it ends in time.

Waits are for events, bounded; that it ends long before its bounds is what the exit codes show.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from tests.api.wire import WAIT_S, connected, get, post
from tests.clients.daemon import Daemon, free_port, running
from tests.reports.scripts import text
from tests.reports.served import CHAT, Served, ask

SCRIPT: dict[str, Any] = {
    "model": "m",
    "lanes": 2,
    "profiles": [1, 2],
    "context_tokens": 16_384,
    "replies": [
        {"when": "brief", "tokens": [text("one", gate="g"), text(" two", gate="g")]},
        {"when": "prefill", "tokens": [text("B", gate="g"), " done"]},
        {"when": "slowly", "tokens": [text("x ", delay_s=0.02)], "afterwards": "repeat"},
        {"when": "large", "tokens": ["l" * 4000], "afterwards": "repeat"},
        {"when": "stuck", "tokens": [text("a", fault="stuck")]},
        {"tokens": ["Hello", " world"]},
    ],
}
LONG_S = "1000"
"""A drain that no test waits for."""


@asynccontextmanager
async def serving(
    drain_s: str = LONG_S, *, timeouts: dict[str, Any] | None = None, **script: Any
) -> AsyncIterator[Served]:
    """A process of the test's own."""
    config = {"timeouts": {"drain_s": 2000, **(timeouts or {})}}
    with running({**SCRIPT, **script}, config=config, arguments=["--drain", drain_s]) as daemon:
        served = Served(daemon)
        try:
            yield served
        finally:
            await served.hang_up()


async def refused(daemon: Daemon) -> None:
    """Until nobody listens at the port any more."""
    with trio.fail_after(WAIT_S):
        while True:
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", daemon.port)
            except OSError:
                return
            await stream.aclose()


async def ended(daemon: Daemon) -> int:
    return await trio.to_thread.run_sync(daemon.wait)


@asynccontextmanager
async def exiting(daemon: Daemon, code: int = 0) -> AsyncIterator[None]:
    """SIGTERM, and the listener is gone; then what is done inside; then the process ends by itself."""
    daemon.terminate()
    await refused(daemon)
    yield
    assert await ended(daemon) == code
    said = daemon.stderr()
    assert "Traceback" not in said
    assert "defect" not in said


async def test_with_nobody_there() -> None:
    async with serving() as served, exiting(served.daemon):
        pass


async def test_with_idle_connections() -> None:
    async with serving() as served:
        fresh, used, half = [await served.connect() for _ in range(3)]
        assert (await used.answer(get("/health"))).status == 200
        await half.stream.send_all(b"POST /v1/chat/comp")
        async with exiting(served.daemon):
            for wire in (fresh, used, half):
                wire.raw = b""
                assert await wire.read_to_end() == b""


@pytest.mark.parametrize("stream", [True, False])
async def test_with_a_reply_that_runs_it_may_end(stream: bool) -> None:
    async with serving() as served:
        runs = await served.begin("brief", stream=stream)
        await served.release("g")
        await served.wait_for(waiting=1, finished=1)
        async with exiting(served.daemon):
            assert served.counter("released") == 0
            await served.release("g")
            answer = await runs.read_answer()
            assert (answer.status, answer.ended) == (200, True)
            told = answer.text() if stream else answer.json()["choices"][0]["message"]["content"]
            assert told == "one two"
            assert not stream or answer.events()[-1] == "[DONE]"
            await runs.read_to_end()  # and the connection is not kept


async def test_with_a_stream_longer_than_the_drain_time_it_is_told() -> None:
    async with serving("0.2") as served:
        runs = await served.begin("slowly", stream=True)
        await served.wait_for(finished=2)
        async with exiting(served.daemon):
            answer = await runs.read_answer()
            *told, last = answer.events()
            assert (answer.status, answer.ended) == (200, True)
            assert last["error"]["code"] == "shutdown"
            assert told
            assert "[DONE]" not in told
            assert not any(chunk["choices"][0]["finish_reason"] for chunk in told)


async def test_with_requests_that_wait_they_are_refused_at_once() -> None:
    async with serving(lanes=1, profiles=[1]) as served:
        runs = await served.begin("brief", stream=True)
        await served.wait_for(waiting=1)
        waiting = [await served.begin("hi", stream=stream) for stream in (True, False)]
        await served.until_metrics(**{"vllm:num_requests_waiting": 2.0})
        async with exiting(served.daemon):
            for wire in waiting:
                answer = await wire.read_answer()
                assert (answer.status, answer.error["code"]) == (503, "draining")
                assert int(answer.headers["retry-after"]) >= 1
            await served.release("g", 2)
            assert (await runs.read_answer()).text() == "one two"


async def test_a_request_on_an_open_connection_is_refused_while_it_drains() -> None:
    """Requests sent ahead of the signal's notice: pipelined behind a reply that runs."""
    async with serving() as served:
        wire = await served.connect()
        await wire.stream.send_all(post(CHAT, ask("brief")) + get("/health"))
        await served.wait_for(waiting=1)
        async with exiting(served.daemon):
            await served.release("g", 2)
            assert (await wire.read_answer()).json()["choices"][0]["message"]["content"] == "one two"
            raw = await wire.read_to_end()
            assert b'{"status":"ok"}' not in raw


async def test_with_a_long_prefill_its_reply_may_end() -> None:
    async with serving() as served:
        runs = await served.begin("prefill")
        await served.wait_for(waiting=1)
        async with exiting(served.daemon):
            await served.release("g")
            assert (await runs.read_answer()).json()["choices"][0]["message"]["content"] == "B done"


async def test_with_a_prefill_longer_than_the_drain_time_its_job_is_still_drained() -> None:
    async with serving("0.1") as served:
        runs = await served.begin("prefill")
        await served.wait_for(waiting=1)
        finished = served.counter("finished")
        async with exiting(served.daemon):
            with trio.move_on_after(0.5):  # longer than the drain time: nothing may happen now
                await runs.read_answer()
                pytest.fail("answered while its job is with the device")
            await served.release("g")
            answer = await runs.read_answer()
            assert (answer.status, answer.error["code"]) == (503, "shutdown")
        assert finished == 0


async def stalled(served: Served) -> None:
    """A reader that reads one token of a large stream and then nothing; what waits for it has been given up."""
    wire = await served.connect(receive_bytes=4096)
    await wire.stream.send_all(post(CHAT, ask("large", stream=True)))
    await wire.read_until(b"lll")
    await served.until_metrics(**{'calculet_requests_total{outcome="cancelled"}': 1.0})


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
async def test_with_a_reader_that_has_stopped(again: bool) -> None:
    """It is cut when the drain time is over: at once where that is said by a second signal."""
    async with serving(LONG_S if again else "0.2", timeouts={"write_stall_s": 1999}) as served:
        await stalled(served)
        async with exiting(served.daemon):
            if again:
                served.daemon.terminate()


async def test_a_second_signal_ends_open_replies_at_once() -> None:
    async with serving() as served:
        runs = await served.begin("slowly", stream=True)
        await served.wait_for(finished=2)
        async with exiting(served.daemon):
            served.daemon.terminate()
            assert (await runs.read_answer()).events()[-1]["error"]["code"] == "shutdown"


STUCK = {"job_s": 0.3, "job_per_token_ms": 0, "drain_s": 2000, "write_stall_s": 1999}


@pytest.mark.parametrize("beside_a_stalled_reader", [False, True])
async def test_a_job_that_never_returns_is_left_behind(beside_a_stalled_reader: bool) -> None:
    async with serving(timeouts=STUCK) as served:
        if beside_a_stalled_reader:
            await stalled(served)
        runs = await served.begin("stuck", stream=True)
        waits = await served.begin("slowly", stream=True)
        await served.until_metrics(**{"vllm:num_requests_running": 2.0})  # the device may know before the core does
        async with exiting(served.daemon, 75):
            answer = await runs.read_answer()
            assert (answer.status, answer.error["code"]) == (503, "stuck_wait")
            await waits.read_to_end()
            assert b'"error"' in waits.raw


@pytest.mark.parametrize(("load_s", "code"), [(1.0, 0), (3600.0, 75)], ids=["ends", "does not end"])
async def test_while_the_model_loads(load_s: float, code: int) -> None:
    """A device call is never cut in the middle, and a process never waits for one that does not end."""
    port = free_port()
    script = {**SCRIPT, "load_s": load_s}
    with running(script, port=port, arguments=("--drain", "3"), awaits_ready=False) as daemon:
        with trio.fail_after(WAIT_S):
            await (await connected(port)).aclose()
            await trio.to_thread.run_sync(lambda: daemon.control(wait_for={"configuring": 1}, timeout_s=WAIT_S))
        async with exiting(daemon, code):
            pass
