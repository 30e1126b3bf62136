"""The framing of a stream, and faults that come late: B39–B43."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import trio

from tests.api.wire import post
from tests.reports.served import CHAT, Served, ask


async def test_b39_a_fault_before_the_first_token_has_its_status(served: Served) -> None:
    served.may_log("output_failed")
    for stream in (True, False):
        answer = await served.chat("b39 early", stream=stream)
        assert (answer.status, answer.error["code"]) == (503, "output_error")
        assert "retry-after" in answer.headers


async def test_b39_a_fault_after_three_tokens_is_an_event_and_an_orderly_end(served: Served) -> None:
    served.may_log("output_failed")
    answer = await served.chat("b39 late", stream=True)
    assert (answer.status, answer.ended) == (200, True)
    *told, last = answer.events()
    assert last["error"]["code"] == "output_error"
    assert {"message", "type", "param", "code"} <= last["error"].keys()
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in told) == "abc"
    assert not any(chunk["choices"][0]["finish_reason"] for chunk in told)


async def test_b41_a_stream_whose_deadline_passes_in_the_queue_is_refused(one_lane: Served) -> None:
    """CHOICES.md: B41."""
    running = await one_lane.begin("held", stream=True)
    await one_lane.wait_for(waiting=1)
    answer = await one_lane.chat("hi", "x-request-deadline-ms: 1000", stream=True)
    # refused when its deadline passes, or at once where the service has measured that it will
    assert (answer.status, answer.error["code"]) in {(503, "deadline_exceeded"), (429, "queue_too_long")}
    assert int(answer.headers["retry-after"]) >= 1
    await running.aclose()
    await one_lane.noticed()
    await one_lane.release("held")


async def test_b41_a_stream_that_finds_the_queue_full_is_refused(one_lane: Served) -> None:
    running = await one_lane.begin("held", stream=True)
    await one_lane.wait_for(waiting=1)
    queued = await one_lane.begin("hi", stream=True)
    await one_lane.until_metrics(**{"vllm:num_requests_waiting": 1.0})
    answer = await one_lane.chat(stream=True)
    assert (answer.status, answer.error["code"]) == (429, "queue_full")
    assert int(answer.headers["retry-after"]) >= 1
    await running.aclose()
    await one_lane.noticed()
    await one_lane.release("held")
    assert (await queued.read_answer()).text() == "Hello world"


VERSIONS = {
    "1.1": ("HTTP/1.1", ["Host: h"]),
    "1.1, closing": ("HTTP/1.1", ["Host: h", "Connection: close"]),
    "1.1, gzip": ("HTTP/1.1", ["Host: h", "Accept-Encoding: gzip, br"]),
    "1.0": ("HTTP/1.0", []),
    "1.0, keeping": ("HTTP/1.0", ["Connection: keep-alive"]),
}


@pytest.mark.parametrize("version", VERSIONS)
async def test_b42_the_head_of_a_stream_suits_every_client_and_proxy(served: Served, version: str) -> None:
    spoken, lines = VERSIONS[version]
    head, _, body = post(CHAT, ask("hi", stream=True)).partition(b"\r\n\r\n")
    kept = [line for line in head.decode().split("\r\n")[1:] if not line.startswith("Host")]
    wire = await served.connect()
    await wire.stream.send_all("\r\n".join([f"POST {CHAT} {spoken}", *lines, *kept]).encode() + b"\r\n\r\n" + body)
    answer = await wire.read_answer()
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert not answer.headers.keys() & {"content-length", "content-encoding"}
    assert answer.headers.get("transfer-encoding") == ("chunked" if spoken == "HTTP/1.1" else None)
    assert (answer.text(), answer.ended) == ("Hello world", True)
    if version != "1.1" and version != "1.1, gzip":
        await wire.read_to_end()  # closed by the server


async def test_b42_the_first_event_is_there_before_the_second_token_is_made(served: Served) -> None:
    wire = await served.begin("brief", stream=True)
    await served.release("brief")
    await wire.read_until(b'"content":"one"')
    await served.release("brief")
    await wire.read_until(b"data: [DONE]")


async def test_b43_a_stream_may_last_longer_than_any_default(slow_stream: socket.socket) -> None:
    def read() -> bytes:
        return b"".join(iter(lambda: slow_stream.recv(65536), b""))

    body: Any = await trio.to_thread.run_sync(read)
    assert body.count(b'"content":"x "') == 35
    assert body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
