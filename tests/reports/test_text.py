"""Bytes, stops and ends of a reply: B01–B12."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.reports.served import Served


@pytest.mark.parametrize(("reply", "tokens"), [("b01 halves", 6), ("b01 bytes", 10)])
async def test_b01_a_character_split_over_tokens_arrives_whole(served: Served, reply: str, tokens: int) -> None:
    text, reason = await served.texts(reply)
    assert (text, reason) == ("😸é ok", "stop")
    usage = (await served.chat(reply)).json()["usage"]
    assert usage["completion_tokens"] == tokens  # as many as were run, the end token included
    streamed = await served.chat(reply, stream=True)
    deltas = [event["choices"][0]["delta"] for event in streamed.events()[:-1]]
    assert all(delta["content"] for delta in deltas if "content" in delta and "role" not in delta)


async def test_b03_no_line_end_of_any_reader_stands_inside_an_event(served: Served) -> None:
    answer = await served.chat("b03", stream=True)
    for forbidden in ("\u2028", "\u2029", "\u0085", "\r"):
        assert forbidden.encode() not in answer.body
    lines = answer.body.decode().splitlines()
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert all(line == "" or line.startswith("data: ") for line in lines)
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(deltas) == "a\u2028b\u2029c\u0085d\r\ne"
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"


@pytest.mark.parametrize(
    ("reply", "stop", "text", "tokens"),
    [
        ("b05 user", ["\nUser:"], "Hi", 4),
        ("b05 five", ["five"], "four, ", 2),
        ("b05 emoji", ["b😸"], "a", 3),
        ("b05 emoji", "😸c", "ab", 3),
    ],
)
async def test_b05_a_stop_over_several_tokens_is_never_seen(
    served: Served, reply: str, stop: Any, text: str, tokens: int
) -> None:
    finished = served.counter("finished")
    assert await served.texts(reply, stop=stop) == (text, "stop")
    assert served.counter("finished") - finished == 2 * tokens  # a job a token, and none after the stop


async def test_b06_only_what_could_become_a_stop_is_held_back(served: Served) -> None:
    wire = await served.begin("b06", stream=True, stop=["<|a-very-long-stop-string|>", "<|ab"])
    for seen in ('"content":"a"', '"content":"b"', '"content":"x"'):
        await served.release("b06")
        await wire.read_until(seen.encode())  # before the next token may be made
    await served.release("b06")  # "<|a" may become either stop: nothing to be seen
    await served.release("b06")
    await wire.read_until(b'"content":"<|ay"')
    await wire.read_until(b"data: [DONE]")


@pytest.mark.parametrize(
    ("reply", "stop"), [("b08 end", "<|im_end|>"), ("b08 note", "<|note|>"), ("b08 turn", "<|im_start|>user")]
)
async def test_b08_a_stop_may_name_a_special_token(served: Served, reply: str, stop: str) -> None:
    assert await served.texts(reply, stop=[stop]) == ("ok", "stop")


@pytest.mark.parametrize(
    ("options", "shows_usage"),
    [({}, False), ({"stream_options": None}, False)]
    + [({"stream_options": {"include_usage": value}}, value) for value in (True, False)]
    + [({"stream_options": {}}, False)],
)
async def test_b11_usage_is_sent_when_asked_for_and_then_well_formed(
    served: Served, options: dict[str, Any], shows_usage: bool
) -> None:
    events = (await served.chat(stream=True, **options)).events()
    assert events[-1] == "[DONE]"
    *chunks, last = events[:-1]
    if not shows_usage:
        assert all("usage" not in chunk and chunk["choices"] for chunk in [*chunks, last])
        return
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"]
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert len({chunk["id"] for chunk in [*chunks, last]}) == 1


@pytest.mark.parametrize(
    "fields",
    [{"stream": True, "stream_options": "x"}, {"stream_options": {"include_usage": True}}],
)
async def test_b11_stream_options_that_mean_nothing_are_refused(served: Served, fields: dict[str, Any]) -> None:
    answer = await served.chat(**fields)
    assert (answer.status, answer.error["param"]) == (400, "stream_options")


@pytest.mark.parametrize(
    ("reply", "fields", "tokens", "reason"),
    [
        ("endless", {"max_completion_tokens": 3}, 3, "length"),
        ("endless", {"max_tokens": 5, "max_completion_tokens": 3}, 3, "length"),
        ("endless", {"max_tokens": 3, "max_completion_tokens": 5}, 5, "length"),
        ("b12 eos", {"max_completion_tokens": 3}, 3, "stop"),
        ("b12 eos", {"max_completion_tokens": 2}, 2, "length"),
    ],
)
async def test_b12_a_cap_is_kept_and_told(
    served: Served, reply: str, fields: dict[str, Any], tokens: int, reason: str
) -> None:
    whole = (await served.chat(reply, **fields)).json()
    assert (whole["usage"]["completion_tokens"], whole["choices"][0]["finish_reason"]) == (tokens, reason)


async def test_b12_without_a_cap_the_context_is_one(served: Served) -> None:
    whole = (await served.chat("endless" + " " * 900)).json()
    assert whole["usage"]["total_tokens"] == 2048
    assert whole["choices"][0]["finish_reason"] == "length"
