"""Replies, whole and streamed. Reports B01, B03, B11, B13, B15, B39–B43."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from calculet_trio.api.settings import ApiSettings
from calculet_trio.core.effects import FinishReason
from calculet_trio.errors import CapacityExceeded, GenerationFailed
from calculet_trio.shell.service import InferenceRequest
from calculet_trio.text.params import Output
from tests.api.conftest import LINGER_S, Server
from tests.api.fake_service import FakeHandle, Script, gated, said, with_logprobs
from tests.api.wire import post

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = post("/v1/chat/completions", {**CHAT, "stream": True})


def deltas(events: list[Any]) -> list[Any]:
    return [event["choices"][0]["delta"] for event in events if event != "[DONE]" and event["choices"]]


async def test_a_whole_reply(server: Server) -> None:
    answer = await server.chat()
    reply = answer.json()
    assert reply["object"] == "chat.completion"
    assert reply["id"].startswith("chatcmpl-")
    [choice] = reply["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello world", "refusal": None}
    assert (choice["finish_reason"], choice["logprobs"]) == ("stop", None)
    usage = reply["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (5, 2, 7)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 0}
    timings = reply["timings"]
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (0, 5, 2)
    assert (timings["queue_ms"], timings["prompt_ms"], timings["predicted_ms"]) == (1.0, 2.0, 3.0)
    assert timings["predicted_per_second"] == pytest.approx(2 / 0.003, abs=1e-3)
    assert (answer.headers["x-queue-time"], answer.headers["x-inference-time"]) == ("1.000", "5.000")


async def test_what_was_there_already_is_in_the_usage_and_not_in_the_prefill(server: Server) -> None:
    server.service.cached_tokens = 4
    reply = (await server.chat(n=2)).json()
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["prompt_tokens_details"]) == (5, {"cached_tokens": 4})
    assert (reply["timings"]["cache_n"], reply["timings"]["prompt_n"]) == (8, 2), "of both choices"
    *_, last, usage, _ = (await server.chat(stream=True, stream_options={"include_usage": True})).events()
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert (last["timings"]["cache_n"], last["timings"]["prompt_n"]) == (4, 1)


async def test_a_streamed_reply(server: Server) -> None:
    answer = await server.chat(stream=True)
    assert answer.ended
    events = answer.events()
    assert events[-1] == "[DONE]"
    chunks = events[:-1]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert deltas(chunks) == [{"role": "assistant", "content": ""}, {"content": "Hello"}, {"content": " world"}, {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert not any("usage" in chunk for chunk in chunks)
    assert chunks[-1]["timings"]["predicted_n"] == 2


async def test_a_streams_headers_keep_proxies_from_holding_it_back(server: Server) -> None:
    """Report B42."""
    answer = await server.chat("Accept-Encoding: gzip", stream=True)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["transfer-encoding"] == "chunked"
    assert not {"content-length", "content-encoding"} & answer.headers.keys()


@pytest.mark.parametrize("prefix", [b"HTTP/1.0\r\n", b"HTTP/1.1\r\nConnection: close\r\n"])
async def test_old_and_closing_clients_are_served(server: Server, prefix: bytes) -> None:
    wire = await server.connect()
    request = STREAM.replace(b"HTTP/1.1\r\n", prefix)
    await wire.stream.send_all(request.replace(b"Host: h\r\n", b"") if b"1.0" in prefix else request)
    with trio.fail_after(LINGER_S / 2):  # the end is said at once, not when the server stops lingering
        raw = await wire.read_to_end()
    head, _, body = raw.partition(b"\r\n\r\n")
    assert (b"chunked" in head) is (b"1.1" in prefix)
    assert b"data: [DONE]\n\n" in body
    assert body.endswith(b"0\r\n\r\n" if b"1.1" in prefix else b"data: [DONE]\n\n")


async def test_usage_is_one_more_chunk_when_asked_for(server: Server) -> None:
    """Report B11."""
    answer = await server.chat(stream=True, stream_options={"include_usage": True})
    *chunks, last, done = answer.events()
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 2
    assert all(chunk["usage"] is None for chunk in chunks)


async def test_tokens_that_show_nothing_make_no_delta_and_are_counted(server: Server) -> None:
    """Report B01."""
    server.service.script = lambda request: said("", "😸", "", "é", " ok")
    whole = (await server.chat()).json()
    answer = await server.chat(stream=True, stream_options={"include_usage": True})
    assert [delta.get("content") for delta in deltas(answer.events())] == ["", "😸", "é", " ok", None]
    assert answer.text() == whole["choices"][0]["message"]["content"] == "😸é ok"
    assert answer.events()[-2]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 5


async def test_no_byte_of_a_stream_ends_a_line_early(server: Server) -> None:
    """Report B03."""
    server.service.script = lambda request: said("a\u2028b\u2029c\u0085d\r\ne")
    answer = await server.chat(stream=True)
    for forbidden in (b"\xe2\x80\xa8", b"\xe2\x80\xa9", b"\xc2\x85", b"\r"):
        assert forbidden not in answer.body
    assert answer.text() == "a\u2028b\u2029c\u0085d\r\ne"


async def test_each_delta_is_sent_before_the_next_token_exists(server: Server) -> None:
    """Reports B06, B42."""
    script, opener = gated("a", "b", "c")
    server.service.script = lambda request: script
    wire = await server.connect()
    await wire.stream.send_all(STREAM)
    for text in "abc":
        opener.send_nowait(None)
        await wire.read_until(f'"delta":{{"content":"{text}"}}'.encode())
    await wire.read_until(b"[DONE]")


class TestKeepAlive:
    @pytest.fixture
    def settings(self) -> ApiSettings:
        return ApiSettings(keep_alive_s=0.02)

    async def test_silence_is_filled_with_comments_before_and_after_the_first_token(self, server: Server) -> None:
        script, opener = gated("a", "b")
        server.service.script = lambda request: script
        wire = await server.connect()
        await wire.stream.send_all(STREAM)
        raw = await wire.read_until(b": keep-alive\n\n")
        assert b"200" in raw.split(b"\r\n")[0]
        assert b"data:" not in raw
        opener.send_nowait(None)
        await wire.read_until(b'"a"')
        wire.raw = b""
        await wire.read_until(b": keep-alive\n\n")
        opener.send_nowait(None)
        await wire.read_until(b"[DONE]")

    async def test_a_fault_before_the_first_token_is_an_event_once_headers_are_sent(self, server: Server) -> None:
        """CHOICES.md: B39."""
        script, opener = gated("never")
        script.outputs = [GenerationFailed("device_lost", retryable=True)]
        server.service.script = lambda request: script
        wire = await server.connect()
        await wire.stream.send_all(STREAM)
        await wire.read_until(b": keep-alive\n\n")
        opener.send_nowait(None)
        raw = await wire.read_until(b"0\r\n\r\n")
        assert b'data: {"error":' in raw
        assert b"[DONE]" not in raw

    async def test_no_header_is_sent_before_admission(self, server: Server) -> None:
        """Report B41."""
        server.service.admission = trio.Event()
        server.service.refusal = CapacityExceeded("full", code="queue_full")
        wire = await server.connect()
        await wire.stream.send_all(STREAM)
        with trio.move_on_after(0.2):  # ten times the keep-alive time
            await wire.read_until(b"\n")
        assert wire.raw == b""
        server.service.admission.set()
        assert (await wire.read_until(b"\n")).startswith(b"HTTP/1.1 429")


async def test_a_fault_before_the_first_token_has_its_status(server: Server) -> None:
    """CHOICES.md: B39."""
    server.service.script = lambda request: Script([GenerationFailed("output_error", retryable=True)])
    for stream in (True, False):
        answer = await server.chat(stream=stream)
        assert (answer.status, answer.error["code"]) == (503, "output_error")


async def test_a_fault_after_tokens_is_one_error_event_and_an_orderly_end(server: Server) -> None:
    """Report B39; CHOICES.md: B39."""
    fault = GenerationFailed("device_lost", retryable=False)
    server.service.script = lambda request: Script([*(Output(c) for c in "abc"), fault])
    answer = await server.chat(stream=True)
    assert (answer.status, answer.ended) == (200, True)
    *chunks, last = answer.events()
    assert "".join(delta["content"] for delta in deltas(chunks)) == "abc"
    assert last["error"]["code"] == "device_lost"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert (await server.chat()).status == 500  # not streamed, the whole reply is lost


async def test_a_defect_in_mid_stream_is_an_error_event_too(server: Server) -> None:
    server.service.script = lambda request: Script([Output("a"), ZeroDivisionError("secret")])
    answer = await server.chat(stream=True)
    assert answer.events()[-1]["error"]["code"] == "internal_error"
    assert b"secret" not in answer.body
    assert {entry["event"] for entry in server.take_errors()} == {"choice_defect", "stream_defect"}


async def test_the_ending_is_said_as_it_was(server: Server) -> None:
    server.service.script = lambda request: Script([Output("a")], reason=FinishReason.LENGTH)
    assert (await server.chat()).json()["choices"][0]["finish_reason"] == "length"
    assert (await server.chat(stream=True)).events()[-2]["choices"][0]["finish_reason"] == "length"


# ---- several choices ------------------------------------------------------------------------------


def by_seed(request: InferenceRequest) -> Script:
    return said(*(f"{request.reply.sampling.seed}{c}" for c in "abc"))


async def test_n_choices_are_interleaved_by_index_and_their_prompt_is_counted_once(server: Server) -> None:
    server.service.script = by_seed
    whole = (await server.chat(n=3, seed=0)).json()
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert texts == ["0a0b0c", "1a1b1c", "2a2b2c"]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (5, 9)
    answer = await server.chat(n=3, seed=0, stream=True)
    joined = ["", "", ""]
    roles = [0, 0, 0]
    ends = [0, 0, 0]
    for event in answer.events()[:-1]:
        [choice] = event["choices"]
        index = choice["index"]
        assert not ends[index]
        joined[index] += choice["delta"].get("content", "")
        roles[index] += "role" in choice["delta"]
        ends[index] += choice["finish_reason"] is not None
    assert (joined, roles, ends) == (texts, [1, 1, 1], [1, 1, 1])


async def test_a_choice_that_waits_for_a_lane_does_not_stop_one_that_has_one(server: Server) -> None:
    """One lane, three choices of more tokens than are buffered: each is read while the next waits."""
    lane = trio.Semaphore(1)
    service_open = server.service.open
    server.service.script = lambda request: said(*["x"] * 100)

    @asynccontextmanager
    async def one_at_a_time(request: InferenceRequest) -> AsyncIterator[FakeHandle]:
        async with lane, service_open(request) as handle:
            yield handle

    server.service.open = one_at_a_time  # type: ignore[method-assign]
    with trio.fail_after(10):
        whole = (await server.chat(n=3)).json()
        streamed = await server.chat(n=3, stream=True)
    assert whole["usage"]["completion_tokens"] == 300
    assert streamed.events()[-1] == "[DONE]"


@pytest.mark.parametrize("stream", [False, True])
async def test_if_one_choice_is_refused_all_are_given_up(server: Server, stream: bool) -> None:
    """CHOICES.md: n."""
    scripts = iter([gated("never")[0], Script([CapacityExceeded("full", code="queue_full")])])
    server.service.script = lambda request: next(scripts)
    answer = await server.chat(n=2, stream=stream)
    assert (answer.status, answer.error["code"]) == (429, "queue_full")
    await server.service.until_active(0)


async def test_prompts_and_choices_of_completions_are_numbered_through(server: Server) -> None:
    server.service.script = lambda request: said(f"<{request.prompt.text}>")  # type: ignore[union-attr]
    answer = await server.ask(post("/v1/completions", {"model": "m", "prompt": ["a", "b"], "n": 2}))
    reply = answer.json()
    assert [(c["index"], c["text"]) for c in reply["choices"]] == [(0, "<a>"), (1, "<a>"), (2, "<b>"), (3, "<b>")]
    assert (reply["object"], reply["usage"]["prompt_tokens"]) == ("text_completion", 10)


async def test_a_streamed_completion(server: Server) -> None:
    answer = await server.ask(post("/v1/completions", {"model": "m", "prompt": "x", "stream": True}))
    *chunks, done = answer.events()
    assert done == "[DONE]"
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["Hello", " world", ""]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}


# ---- log-probabilities ----------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_probability_of_zero_is_a_number_and_what_is_none_is_left_out(server: Server, stream: bool) -> None:
    """Report B13."""
    output = with_logprobs("é", 0.0, [0.0, -math.inf, math.nan])
    server.service.script = lambda request: Script([output])
    answer = await server.chat(logprobs=True, top_logprobs=5, stream=stream)
    choices = [e["choices"][0] for e in answer.events()[:-1]] if stream else answer.json()["choices"]
    [entry] = [e for choice in choices if choice["logprobs"] for e in choice["logprobs"]["content"]]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("é", 0.0, [0xC3, 0xA9])
    assert [(top["token"], top["logprob"]) for top in entry["top_logprobs"]] == [("t0", 0.0), ("t1", -9999.0)]


async def test_a_chosen_token_without_a_probability_is_a_fault(server: Server) -> None:
    """Report B13."""
    server.service.script = lambda request: Script([with_logprobs("a"), with_logprobs("b", math.nan)])
    answer = await server.chat(logprobs=True)
    assert (answer.status, answer.error["code"]) == (500, "bad_logits")
    assert (await server.chat(logprobs=True, stream=True)).events()[-1]["error"]["code"] == "bad_logits"


async def test_every_shown_token_has_one_entry_with_the_delta_that_shows_it(server: Server) -> None:
    """Report B15."""
    outputs = [
        Output(""),
        Output("az", (*with_logprobs("a").logprobs, *with_logprobs("z").logprobs)),
        with_logprobs("b"),
    ]
    server.service.script = lambda request: Script(outputs)
    events = (await server.chat(stream=True, logprobs=True)).events()[:-1]
    told = [
        (choice["delta"]["content"], [entry["token"] for entry in choice["logprobs"]["content"]])
        for choice in (event["choices"][0] for event in events)
        if choice["logprobs"]
    ]
    assert told == [("az", ["a", "z"]), ("b", ["b"])]


@pytest.mark.parametrize("stream", [False, True])
async def test_completions_log_probabilities_are_parallel_arrays(server: Server, stream: bool) -> None:
    server.service.script = lambda request: Script([with_logprobs("é", -0.25, [-1.5]), with_logprobs("b")])
    answer = await server.ask(post("/v1/completions", {"model": "m", "prompt": "x", "logprobs": 1, "stream": stream}))
    choices = [e["choices"][0] for e in answer.events()[:-1]] if stream else answer.json()["choices"]
    parts = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    joined = {key: [x for part in parts for x in part[key]] for key in parts[0]}
    assert joined == {
        "tokens": ["é", "b"],
        "token_logprobs": [-0.25, -0.5],
        "top_logprobs": [{"t0": -1.5, "é": -0.25}, {"b": -0.5}],
        "text_offset": [0, 1],
    }
