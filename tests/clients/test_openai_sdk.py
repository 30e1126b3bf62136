"""The ``openai`` SDK, which is what most clients are made of: sync and async, whole and streamed."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.clients.daemon import Daemon

HI: Any = [{"role": "user", "content": "hi"}]


def ask(content: str) -> Any:
    return [{"role": "user", "content": content}]


@pytest.fixture
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key="none", timeout=30, max_retries=0) as client:
        yield client


def joined(chunks: list[Any]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_a_whole_reply(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="m", messages=HI)
    assert reply.choices[0].message.content == "Hello world"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_a_stream_with_usage(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    chunks = list(client.chat.completions.create(model="m", messages=HI, stream=True, stream_options=options))
    assert joined(chunks) == "Hello world"
    assert [chunk.choices[0].delta.role for chunk in chunks if chunk.choices].count("assistant") == 1
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens >= 2


@pytest.mark.parametrize("content", ["emoji", "lines", "stop me"])
def test_a_stream_has_the_text_of_the_whole_reply(client: openai.OpenAI, content: str) -> None:
    """Reports B01, B03, B05."""
    fields: Any = {"model": "m", "messages": ask(content), "stop": ["\nUser:"]}
    whole = client.chat.completions.create(**fields).choices[0].message.content
    assert joined(list(client.chat.completions.create(**fields, stream=True))) == whole
    assert whole == {"emoji": "😸é ok", "lines": "a\u2028b\u2029c\u0085d\r\ne", "stop me": "Hi"}[content]


def test_completions(client: openai.OpenAI) -> None:
    reply = client.completions.create(model="m", prompt=["hi", "hi"], logprobs=1, temperature=0)
    assert [choice.text for choice in reply.choices] == ["Hello world"] * 2
    assert reply.choices[0].logprobs is not None
    assert reply.choices[0].logprobs.tokens == ["Hello", " world"]
    stream = client.completions.create(model="m", prompt="hi", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "Hello world"


def test_several_choices_with_log_probabilities(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="m", messages=HI, n=6, logprobs=True, top_logprobs=2)  # of 4 lanes
    assert [choice.message.content for choice in reply.choices] == ["Hello world"] * 6
    for choice in reply.choices:
        assert choice.logprobs is not None
        assert [entry.token for entry in choice.logprobs.content or []] == ["Hello", " world"]


def test_a_limit_is_kept_and_said(client: openai.OpenAI) -> None:
    """Report B12."""
    reply = client.chat.completions.create(model="m", messages=ask("endless"), max_completion_tokens=3)
    assert (reply.choices[0].finish_reason, reply.choices[0].message.content) == ("length", "x x x ")
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 3


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["m"]
    assert client.models.retrieve("m").id == "m"


def test_errors_are_the_sdks_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as not_found:
        client.chat.completions.create(model="nope", messages=HI)
    assert not_found.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="m", messages=HI, temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="m", messages=ask("x" * 5000))
    assert long.value.code == "context_length_exceeded"


def test_a_fault_in_mid_stream_is_an_error_of_the_sdk(client: openai.OpenAI) -> None:
    """Report B39."""
    stream = client.chat.completions.create(model="m", messages=ask("broken"), stream=True)
    shown: list[Any] = []
    with pytest.raises(openai.APIError) as caught:
        shown.extend(stream)  # what came before the error stays
    assert joined(shown) == "ab"
    assert caught.value.code == "output_error"


def test_a_reader_that_leaves_ends_its_request(daemon: Daemon, client: openai.OpenAI) -> None:
    """Report B45."""
    released = daemon.control(state=True).get("released", 0)
    stream = client.chat.completions.create(model="m", messages=ask("slowly"), stream=True)
    for _ in zip(range(3), stream, strict=False):
        pass
    stream.close()
    daemon.control(wait_for={"released": released + 1}, timeout_s=20)
    assert client.chat.completions.create(model="m", messages=HI).choices[0].message.content == "Hello world"


def test_a_reader_that_gives_up_before_the_first_token_ends_its_request(daemon: Daemon, client: openai.OpenAI) -> None:
    """Report B44."""
    released = daemon.control(state=True).get("released", 0)
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=2).chat.completions.create(model="m", messages=ask("gated"))
    for _ in range(3):  # the daemon has gone round its sockets since, and seen that the reader is gone
        urllib.request.urlopen(f"{daemon.base_url}/health/live", timeout=20).close()
    daemon.control(release="g", count=1)  # the job in flight may end, and then the lane is free
    daemon.control(wait_for={"released": released + 1}, timeout_s=20)


def test_async_whole_and_streamed_eight_at_once(base_url: str) -> None:
    async def whole(client: openai.AsyncOpenAI) -> str:
        reply = await client.chat.completions.create(model="m", messages=HI)
        return reply.choices[0].message.content or ""

    async def streamed(client: openai.AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
        return joined([chunk async for chunk in stream])

    async def all_at_once() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="none", timeout=30, max_retries=0) as client:
            return await asyncio.gather(*[ask_one(client) for ask_one in [whole, streamed] * 4])

    assert asyncio.run(all_at_once()) == ["Hello world"] * 8
