"""More than fits: queues and texts: B52, B55, B61, B62."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.api.wire import WAIT_S, Answer, Wire
from tests.reports.served import Served

WAITING, RUNNING = "vllm:num_requests_waiting", "vllm:num_requests_running"


async def all_at_once(served: Served, size: int) -> list[Answer]:
    """The answers to so many simultaneous requests, by when they came."""
    wires = [await served.begin("hi") for _ in range(size)]
    answers: list[Answer] = []

    async def read(wire: Wire) -> None:
        answers.append(await wire.read_answer())
        await wire.aclose()

    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            for wire in wires:
                nursery.start_soon(read, wire)
    return answers


async def test_b52_of_six_one_runs_one_waits_and_four_are_told_so(one_lane: Served) -> None:
    runs = await one_lane.begin("held", max_tokens=1)
    await one_lane.wait_for(waiting=1)
    waits = await one_lane.begin("hi")
    await one_lane.until_metrics(**{WAITING: 1.0, RUNNING: 1.0})
    for answer in await all_at_once(one_lane, 4):
        assert (answer.status, answer.error["code"]) == (429, "queue_full")
        assert answer.error["type"] == "rate_limit_error"
        assert int(answer.headers["retry-after"]) >= 1
    await one_lane.release("held")
    assert (await runs.read_answer()).status == 200
    assert (await waits.read_answer()).status == 200


async def test_b52_a_place_is_free_again_after_every_kind_of_end(one_lane: Served) -> None:
    one_lane.may_log("output_failed")
    for ending in ("finish", "leave", "fail"):
        runs = await one_lane.begin("held", max_tokens=1)
        await one_lane.wait_for(waiting=1)
        waits = await one_lane.begin("b39 early" if ending == "fail" else "hi")
        await one_lane.until_metrics(**{WAITING: 1.0})
        assert (await one_lane.chat()).status == 429
        if ending == "leave":
            await waits.aclose()
            await one_lane.until_metrics(**{WAITING: 0.0})
        await one_lane.release("held")
        assert (await runs.read_answer()).status == 200
        if ending != "leave":
            assert (await waits.read_answer()).status == (503 if ending == "fail" else 200)


async def test_b52_five_hundred_at_once_are_all_answered_and_leave_no_memory_behind(one_lane: Served) -> None:
    growths: list[int] = []  # what the first takes is there to be used again; how soon, is the allocator's affair
    while len(growths) < 2 or (growths[-1] >= 8 * 2**20 and len(growths) < 5):
        resident = one_lane.resident_bytes()
        answers = await all_at_once(one_lane, 500)
        assert {answer.status for answer in answers} <= {200, 429}
        assert len(answers) == 500
        growths.append(one_lane.resident_bytes() - resident)
    assert growths[-1] < 8 * 2**20, growths


TEXTS = {
    "letters": "a" * 5_000_000,
    "one word": "w" * 1_000_000,
    "emojis": "😀" * 200_000,
    "specials": "<|im_start|>" * 80_000,
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize"])
@pytest.mark.parametrize("text", TEXTS)
async def test_b55_a_huge_text_stops_neither_health_nor_streams(served: Served, path: str, text: str) -> None:
    stream = await served.begin("other", stream=True)
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": TEXTS[text]}]}
    if path != "/v1/chat/completions":
        body = {"model": "m", "prompt": TEXTS[text]} if path == "/v1/completions" else {"content": TEXTS[text]}
    answers: list[Answer] = []

    async def ask() -> None:
        answers.append(await served.post(path, body))

    looks = 0
    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while not answers or looks < 5:
                assert (await served.get("/health")).status == 200
                if looks < 49:
                    await served.release("other")
                    await stream.read_until(f'"content":"{looks} "'.encode())
                looks += 1
    await served.release("other", max(50 - looks, 1))
    await stream.read_until(b"data: [DONE]")
    expected = 200 if path == "/tokenize" and text != "letters" else 400
    assert answers[0].status == expected


async def test_b61_gauges_fall_when_all_leave_at_once_and_counters_add_up(served: Served) -> None:
    before = await served.metrics()
    wires = [await served.begin("held", stream=bool(n % 2)) for n in range(20)]
    await served.until_metrics(**{WAITING: 16.0, RUNNING: 4.0})
    for wire in wires:
        await wire.aclose()
    await served.until_metrics(**{WAITING: 0.0})
    await served.release("held")
    await served.until_metrics(**{RUNNING: 0.0, "calrt_kv_used_batches": 0.0, "calculet_kv_tokens_reserved": 0.0})
    after = await served.metrics()
    ended = {
        outcome: after[f'calculet_requests_total{{outcome="{outcome}"}}']
        - before[f'calculet_requests_total{{outcome="{outcome}"}}']
        for outcome in ("stop", "length", "refused", "failed", "cancelled")
    }
    assert ended == {"stop": 0, "length": 0, "refused": 0, "failed": 0, "cancelled": 20}
    assert after["calculet_generated_tokens_total"] == before["calculet_generated_tokens_total"]


PROMPT_MAX = 1024


@pytest.mark.parametrize("tokens", [1023, 1024, 1025, 2047, 2048, 2049])
@pytest.mark.parametrize("max_tokens", [1, 2048])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_b62_a_prompt_is_served_up_to_the_limit_and_refused_beyond(
    served: Served, path: str, max_tokens: int, tokens: int
) -> None:
    if path == "/v1/completions":
        body: dict[str, Any] = {"prompt": "p" * tokens}
    else:
        overhead = (await served.chat("")).json()["usage"]["prompt_tokens"]
        body = {"messages": [{"role": "user", "content": "p" * (tokens - overhead)}]}
    body |= {"model": "m", "max_tokens": max_tokens, "stream": True, "stream_options": {"include_usage": True}}
    answer = await served.post(path, body)
    if tokens <= PROMPT_MAX:
        assert answer.status == 200
        assert answer.events()[-2]["usage"]["prompt_tokens"] == tokens
        return
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    counted = path == "/v1/chat/completions" or tokens <= 2048  # a longer text is refused before it is tokenized
    assert answer.error.get("n_prompt_tokens") == (tokens if counted else None)
    for number in (tokens, PROMPT_MAX if counted else 2048):
        assert str(number) in answer.error["message"]


async def test_b62_tokenize_counts_what_usage_counts(served: Served) -> None:
    rendered = (await served.post("/apply-template", {"messages": [{"role": "user", "content": "héllo"}]})).json()
    tokens = (await served.post("/tokenize", {"content": rendered["prompt"]})).json()["tokens"]
    assert (await served.chat("héllo")).json()["usage"]["prompt_tokens"] == len(tokens)
