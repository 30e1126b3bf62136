"""What watches the process hears, and when it must end: B57–B59, B64."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.api.wire import WAIT_S, Answer, connected, get
from tests.clients.daemon import free_port, running
from tests.reports.scripts import text
from tests.reports.served import Served

SCRIPT: dict[str, Any] = {
    "model": "m",
    "lanes": 2,
    "profiles": [1, 2],
    "replies": [
        {"when": "slow", "tokens": [text("late", delay_s=1.0), " but well"]},
        {"when": "prefill", "tokens": [text("B", gate="prefill"), " done"]},
        *({"when": fault, "tokens": ["a", text("b", fault=fault)]} for fault in ("stuck", "hang", "lost", "raise")),
        {"tokens": ["Hello", " world"]},
    ],
}


@asynccontextmanager
async def loading(load_s: float) -> AsyncIterator[Served]:
    """A process that listens, and loads for so long."""
    port = free_port()
    with running({**SCRIPT, "load_s": load_s}, port=port, awaits_ready=False) as daemon:
        await (await connected(port)).aclose()
        served = Served(daemon)
        try:
            yield served
        finally:
            await served.hang_up()
            assert daemon.stop() in {0, 75}  # 75: a load that had begun and did not end in time


async def everything(served: Served) -> dict[str, Answer]:
    """Every page that watches the process, asked at once."""
    answers = {}
    for path in ("/health", "/health/live", "/v1/health", "/health/ready", "/props", "/v1/models", "/metrics"):
        answers[path] = await served.get(path)
    return answers


async def test_b57_while_it_loads_all_pages_agree_and_chat_works_once_health_says_so() -> None:
    async with loading(1.0) as served:
        early = await everything(served)
        for path in ("/health", "/v1/health", "/health/ready"):
            assert early[path].status == 503
            assert early[path].json()["status"] == "loading"
        assert early["/health/live"].json() == {"status": "ok"}
        assert early["/v1/models"].json()["data"] == []
        assert (early["/props"].status, early["/props"].error["code"]) == (503, "loading")
        with trio.fail_after(WAIT_S):
            while (await served.get("/health")).status == 503:
                pass
        assert (await served.chat()).status == 200
        assert (await served.get("/props")).json()["total_slots"] == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_b41_while_it_loads_a_request_has_its_status(stream: bool) -> None:
    async with loading(3600.0) as served:
        answer = await served.chat(stream=stream)
        assert (answer.status, answer.error["code"]) == (503, "loading")
        assert int(answer.headers["retry-after"]) >= 1


async def test_b57_a_long_prefill_and_busy_lanes_do_not_make_it_unhealthy(served: Served) -> None:
    prompts = [f"held a secret {n}" for n in range(6)]
    wires = [await served.begin(prompt, max_tokens=1) for prompt in prompts]
    await served.wait_for(waiting=1)
    for path, answer in (await everything(served)).items():
        assert answer.status == 200, path
        assert b"secret" not in answer.body
    await served.release("held", len(wires))
    for wire in wires:
        assert (await wire.read_answer()).status == 200


TIMEOUTS = {"job_s": 2.0}


@pytest.mark.parametrize(
    ("fault", "code"),
    [("stuck", "stuck_wait"), ("hang", "timeout"), ("lost", "device_lost")],
)
async def test_b58_a_device_that_is_lost_is_told_of_and_left(fault: str, code: str) -> None:
    with running(SCRIPT, config={"timeouts": TIMEOUTS}) as daemon:
        served = Served(daemon)
        streams = await served.begin(fault, stream=True)
        queued = [await served.begin("hi") for _ in range(2)]
        assert (await streams.read_answer()).events()[-1]["error"]["code"] == code
        for wire in queued:
            answer = await wire.read_answer()
            assert answer.status in (200, 503)  # answered before, or told
        assert await trio.to_thread.run_sync(daemon.wait) == 75
        await served.hang_up()
        assert f"reason={code}" in daemon.stderr()
        assert "Traceback" not in daemon.stderr()


async def test_b58_a_device_that_can_be_reset_is_and_serves_again() -> None:
    with running(SCRIPT, config={"timeouts": TIMEOUTS}) as daemon:
        served = Served(daemon)
        stream = await served.begin("raise", stream=True)
        assert (await stream.read_answer()).events()[-1]["error"]["code"] == "runtime_error"
        await served.until_metrics(calculet_ready=1.0)
        assert (await served.chat("hi")).status == 200
        await served.hang_up()
        assert "event=device_reset " in daemon.stderr()
        assert "Traceback" not in daemon.stderr()
        assert daemon.stop() == 0


async def test_b58_slow_is_not_dead() -> None:
    config = {"timeouts": {**TIMEOUTS, "job_per_token_ms": 0}}
    with running(SCRIPT, config=config) as daemon:
        served = Served(daemon)
        assert (await served.chat("slow")).json()["choices"][0]["message"]["content"] == "late but well"
        assert (await served.get("/health")).status == 200
        assert daemon.stop() == 0


PLAIN = "text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (["Accept: text/plain;version=0.0.4"], PLAIN),
        ([], PLAIN),
        (["Accept: application/json"], PLAIN),
        (["Accept: application/openmetrics-text"], "application/openmetrics-text; version=1.0.0; charset=utf-8"),
        (
            ["Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5"],
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        ),
    ],
)
async def test_b59_metrics_are_what_they_are_declared_to_be(
    served: Served, accept: list[str], content_type: str
) -> None:
    answer = await served.get("/metrics", *accept)
    shown = answer.headers["content-type"]
    assert shown.removesuffix("; escaping=underscores") == content_type
    page = answer.body.decode()
    families = list((parse_openmetrics if "openmetrics" in content_type else parse_text)(page))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    assert page.endswith("# EOF\n") == ("openmetrics" in content_type)
    for family in families:
        assert family.type != "counter" or all(s.name.endswith(("_total", "_created")) for s in family.samples)
    head = await served.ask(get("/metrics", *accept, method="HEAD"))
    assert (head.status, head.body, head.headers["content-type"]) == (200, b"", shown)


async def test_b59_counters_never_fall_and_are_served_while_loading(served: Served) -> None:
    before = await served.metrics()
    await served.chat()
    after = await served.metrics()
    counters = [name for name in before if "_total" in name or name.endswith(("_count", "_sum", "_bucket"))]
    assert all(after[name] >= before[name] for name in counters)
    assert after['calculet_requests_total{outcome="stop"}'] == before['calculet_requests_total{outcome="stop"}'] + 1
    async with loading(3600.0) as early:
        assert (await early.metrics())["calculet_ready"] == 0


UPGRADE = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: eA=="]
H2C = ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (get("/", *UPGRADE) + b"x", 400),
        (get("/v1/chat/completions", *UPGRADE) + b"x" * 70_000, 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 100, 505),
        (get("/health", *H2C) + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 200),
        (
            b"POST /tokenize HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ],
)
async def test_b64_no_bytes_of_a_stranger_end_the_process_or_another_stream(
    served: Served, sent: bytes, status: int
) -> None:
    other = await served.begin("brief", stream=True)
    await served.release("brief")
    await other.read_until(b'"one"')
    wire = await served.connect()
    await wire.stream.send_all(sent)
    assert (await wire.read_answer()).status == status
    await wire.read_to_end()
    await served.release("brief")
    await other.read_until(b"data: [DONE]")


async def test_b64_nor_do_bytes_that_come_and_go(served: Served) -> None:
    for size in range(0, 200, 7):
        with socket.create_connection(("127.0.0.1", served.daemon.port)) as client:
            client.sendall((get("/", *UPGRADE) + b"x")[:size])
    await served.noticed()
