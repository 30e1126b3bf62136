"""Prompts, messages and templates: B21–B26."""

from __future__ import annotations

from typing import Any

import pytest

from tests.reports.served import Served

GO: dict[str, Any] = {"role": "user", "content": "go"}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "c1", "content": "1"}


def without(message: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != key}


@pytest.mark.parametrize("fields", [{"prompt": []}, {"prompt": None}, {}, {"prompt": ""}, {"prompt": [""]}])
async def test_b21_an_empty_prompt_is_refused_where_there_is_no_token_to_begin_from(
    served: Served, fields: dict[str, Any]
) -> None:
    answer = await served.post("/v1/completions", {"model": "m", **fields})
    assert (answer.status, answer.error["param"]) == (400, "prompt")


@pytest.mark.parametrize("fields", [{"messages": []}, {"messages": None}, {}])
async def test_b21_no_messages_are_refused(served: Served, fields: dict[str, Any]) -> None:
    answer = await served.post("/v1/chat/completions", {"model": "m", **fields})
    assert (answer.status, answer.error["param"]) == (400, "messages")


@pytest.mark.parametrize("content", ["", "   "])
async def test_b21_an_empty_message_is_answered(served: Served, content: str) -> None:
    assert (await served.chat(content)).json()["choices"][0]["message"]["content"] == "Hello world"


async def test_b21_nothing_has_no_tokens(served: Served) -> None:
    assert (await served.post("/tokenize", {"content": ""})).json() == {"tokens": []}


@pytest.mark.parametrize(
    "prompt", [[999999], [-1], [4294967296], [2**64], [1, "a"], [1.0], [True], [[1], [-1]], [[1], []], 5, {"a": 1}]
)
async def test_b22_ids_outside_the_vocabulary_are_refused(served: Served, prompt: Any) -> None:
    answer = await served.post("/v1/completions", {"model": "m", "prompt": prompt})
    assert answer.status == 400
    assert answer.error["param"].startswith("prompt")


async def test_b22_two_lists_of_ids_are_two_choices(served: Served) -> None:
    reply = (await served.post("/v1/completions", {"model": "m", "prompt": [[1], [2]]})).json()
    assert [(choice["index"], choice["text"]) for choice in reply["choices"]] == [
        (0, "Hello world"),
        (1, "Hello world"),
    ]


@pytest.mark.parametrize("body", [{"tokens": [4294967295]}, {"tokens": "x"}, {}, {"tokens": [-1]}, {"tokens": [1.5]}])
async def test_b22_detokenize_refuses_what_are_no_ids(served: Served, body: dict[str, Any]) -> None:
    answer = await served.post("/detokenize", body)
    assert (answer.status, answer.error["param"]) == (400, "tokens")


async def test_b22_detokenize_of_nothing_and_of_half_a_character(served: Served) -> None:
    assert (await served.post("/detokenize", {"tokens": []})).json() == {"content": ""}
    assert (await served.post("/detokenize", {"tokens": [0xF0, 0x9F]})).json() == {"content": "\ufffd"}


@pytest.mark.parametrize("call", [CALL, without(CALL, "content")])
async def test_b24_our_own_tool_call_may_be_sent_back(served: Served, call: dict[str, Any]) -> None:
    answer = await served.post("/v1/chat/completions", {"model": "m", "messages": [GO, call, RESULT]})
    assert answer.json()["choices"][0]["message"]["content"] == "Hello world"


async def test_b24_parts_are_the_joined_text(served: Served) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    counts = [(await served.chat(content)).json()["usage"]["prompt_tokens"] for content in (parts, "ab")]  # type: ignore[arg-type]
    assert counts[0] == counts[1]
    rendered = await served.post("/apply-template", {"messages": [{"role": "user", "content": parts}]})
    assert "\nab<" in rendered.json()["prompt"]


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ([{"type": "image_url", "image_url": {"url": "data:,"}}], "messages[0].content[0].type"),
        ([{"type": "text"}], "messages[0].content[0].text"),
        (None, "messages[0].content"),
        (5, "messages[0].content"),
        ({}, "messages[0].content"),
        ([], "messages[0].content"),
    ],
)
async def test_b24_other_contents_are_refused_with_their_place(served: Served, content: Any, param: str) -> None:
    answer = await served.chat(content)
    assert (answer.status, answer.error["param"]) == (400, param)


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([GO, GO], "roles must alternate"),
        ([{"role": "system", "content": "be brief"}], "nobody asked anything"),
        ([RESULT, GO], "a conversation begins with the user"),
    ],
)
async def test_b26_a_template_that_refuses_is_quoted_and_no_more(
    served: Served, messages: list[dict[str, Any]], said: str
) -> None:
    answer = await served.post("/v1/chat/completions", {"model": "m", "messages": messages})
    assert (answer.status, answer.error["param"]) == (400, "messages")
    assert said in answer.error["message"]
    for leak in ("Traceback", ".py", "/", "jinja2"):
        assert leak not in answer.error["message"]
    assert (await served.chat()).status == 200


async def test_b26_an_unknown_role_is_refused(served: Served) -> None:
    answer = await served.post("/v1/chat/completions", {"model": "m", "messages": [{"role": "robot", "content": "x"}]})
    assert (answer.status, answer.error["param"]) == (400, "messages[0].role")


@pytest.mark.parametrize("content", ["spin for ever", "range too far"])
async def test_b26_a_template_without_end_is_ended_while_others_are_served(served: Served, content: str) -> None:
    spinning = await served.begin(content)
    assert (await served.get("/health")).status == 200
    answer = await spinning.read_answer()
    assert (answer.status, answer.error["param"]) == (400, "messages")
    assert (await served.chat()).status == 200
