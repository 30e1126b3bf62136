"""llama-server's shapes. Reports B21, B22."""

from __future__ import annotations

from typing import Any

import pytest

from calculet_trio.core.effects import FinishReason
from calculet_trio.text.params import Output
from tests.api.conftest import Server
from tests.api.fake_service import Script
from tests.api.wire import get, post


async def test_tokenize_and_back(server: Server) -> None:
    assert (await server.ask(post("/tokenize", {"content": "ab"}))).json() == {"tokens": [97, 98]}
    assert (await server.ask(post("/tokenize", {"content": ""}))).json() == {"tokens": []}
    assert (await server.ask(post("/detokenize", {"tokens": [97, 98]}))).json() == {"content": "ab"}
    assert (await server.ask(post("/detokenize", {"tokens": []}))).json() == {"content": ""}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"content": "x", "parse_special": 1}, "parse_special"),
        ("/tokenize", {"content": "x", "with_pieces": True}, "with_pieces"),
        ("/detokenize", {"tokens": [4_294_967_295]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [1.0]}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {}, "tokens"),
        ("/apply-template", {}, "messages"),
        ("/completion", {}, "prompt"),
        ("/completion", {"prompt": ["a", "b"]}, "prompt"),
        ("/completion", {"prompt": "a", "n_probs": 3}, "n_probs"),
    ],
)
async def test_what_cannot_be_is_400_and_named(server: Server, path: str, body: Any, param: str) -> None:
    answer = await server.ask(post(path, body))
    assert (answer.status, answer.error["param"]) == (400, param)


async def test_the_template_is_shown(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    assert (await server.ask(post("/apply-template", body))).json() == {"prompt": "<user>hi"}


async def test_a_completion_in_llama_servers_shape(server: Server) -> None:
    server.service.script = lambda request: Script([Output("a"), Output("b")], reason=FinishReason.LENGTH)
    reply = (await server.ask(post("/completion", {"prompt": "x", "n_predict": 2}))).json()
    assert (reply["content"], reply["stop"], reply["stop_type"], reply["tokens_predicted"]) == ("ab", True, "limit", 2)
    events = (await server.ask(post("/completion", {"prompt": "x", "stream": True}))).events()
    assert [event["content"] for event in events] == ["a", "b", ""]
    assert [event["stop"] for event in events] == [False, False, True]
    assert events[-1]["timings"]["predicted_n"] == 2


async def test_props_tell_what_is_served(server: Server) -> None:
    props = (await server.ask(get("/props"))).json()
    assert props["default_generation_settings"]["n_ctx"] == 2048
    assert (props["model_alias"], props["total_slots"]) == ("m", 16)
    assert props["engines"] == {"mode": "single", "doubt": None}
