"""Reports B11, B12, B15–B19, B21–B24, B28: every field's range, as the requests state them."""

from __future__ import annotations

from typing import Any

import pytest

from calculet_trio.api.schemas import Asker, ParsedRequest, parse_chat, parse_completion, parse_llama_completion
from calculet_trio.api.settings import RequestLimits
from calculet_trio.errors import InvalidRequest
from calculet_trio.text.params import ChatPrompt, TextPrompt, TokenPrompt
from tests.api.fake_service import MODEL

LIMITS = RequestLimits()
ASKER = Asker(tenant="t", deadline_s=1.5)
HI = [{"role": "user", "content": "hi"}]


def chat(limits: RequestLimits = LIMITS, **fields: Any) -> ParsedRequest:
    body = {"model": "m", "messages": HI, **fields}
    return parse_chat(body, model=MODEL, asker=ASKER, limits=limits)


def completion(limits: RequestLimits = LIMITS, **fields: Any) -> ParsedRequest:
    return parse_completion({"model": "m", **fields}, model=MODEL, asker=ASKER, limits=limits)


def param_refused(**fields: Any) -> str | None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.param is not None
    assert caught.value.param.split("[")[0].split(".")[0] in caught.value.message
    return caught.value.param


def prompt_of(parsed: ParsedRequest) -> ChatPrompt:
    prompt = parsed.choices[0].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


WRONG = [
    ("temperature", [-1, 5, 2.0001, "0.7", True, [], 10**400]),
    ("top_p", [0, 1.5, "1", True]),
    ("min_p", [2, -0.1]),
    ("top_k", [-5, 1e9, 10**9, 2.0, "5", True]),
    ("presence_penalty", [100, -2.1, "0"]),
    ("frequency_penalty", [2.1]),
    ("repetition_penalty", [0, -1, 11]),
    ("repeat_penalty", [0]),
    ("seed", [1.5, "1", 2**64, True]),
    ("max_tokens", [0, -1, 2.5, "5", True]),
    ("max_completion_tokens", [0, -1, 2.5, "5", True]),
    ("n", [0, -1, 17, "2", 1.0, True]),
    ("stop", ["", [""], [5], ["a"] * 5, 5, {}, "x" * 1025]),
    ("logit_bias", [{"191222": -100}, {"1000": 1}, {"-1": 1}, {"abc": 1}, {"5": 1000}, {"5": "1"}, {"5": True}, []]),
    ("logit_bias", [{"²": 1}, {"9" * 5000: 1}, {str(i): 0 for i in range(1025)}]),
    ("logprobs", [1, "true"]),
    ("top_logprobs", [5]),  # without logprobs
    ("stream", ["true", 1]),
    ("stream_options", [{}, {"include_usage": True}]),  # without stream
    ("ignore_eos", [1]),
    (
        "response_format",
        [{"type": "json_object"}, {"type": "json_schema", "json_schema": {}}, {"type": "xml"}, {}, "x"],
    ),
    ("tools", [[{"type": "function", "function": {"name": "f"}}]]),
    ("tool_choice", ["required", {"type": "function", "function": {"name": "nope"}}]),
    ("grammar", ["root ::= ("]),
    ("lora", [[{"id": 0}]]),
    ("n_probs", [5, True]),
    ("audio", [{"voice": "x"}]),
    ("modalities", [["text", "audio"]]),
    ("typical_p", [0.5, True]),
    ("mirostat", [1, 2]),
    ("suffix", ["x"]),
    ("chat_template_kwargs", [[], {str(i): 1 for i in range(33)}]),
    ("messages", [None, [], "x", {}, HI * 2049]),
]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG for value in values])
def test_a_wrong_value_is_refused_under_its_fields_name(name: str, value: Any) -> None:
    assert param_refused(**{name: value}) == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0),
        ("top_p", 1),
        ("min_p", 1),
        ("seed", -(2**63)),
        ("logit_bias", {}),
        ("logit_bias", {"999": -100}),
        ("response_format", {"type": "text"}),
        ("tools", []),
        ("tool_choice", "auto"),
        ("tool_choice", "none"),
        ("typical_p", 1.0),
        ("n_probs", 0),
        ("modalities", ["text"]),
        ("user", {"whatever": 1}),
        ("no_such_field", [1]),
        ("stream_options", None),
    ],
)
def test_a_value_at_its_limit_or_of_no_effect_is_taken(name: str, value: Any) -> None:
    assert chat(**{name: value}).choices


@pytest.mark.parametrize("name", sorted({name for name, _ in WRONG} - {"messages"}))
def test_null_is_as_if_absent(name: str) -> None:
    assert chat(**{name: None}) == chat()


def test_sampling_is_taken_over() -> None:
    sampling = (
        chat(temperature=0, top_k=-1, repeat_penalty=1.1, seed=-1, logit_bias={"5": -1}).choices[0].reply.sampling
    )
    assert (sampling.temperature, sampling.top_k, sampling.repetition_penalty) == (0.0, 0, 1.1)
    assert (sampling.seed, sampling.logit_bias) == (2**64 - 1, {5: -1.0})


def test_the_newer_field_of_two_limits_wins_and_a_huge_one_is_the_context() -> None:
    assert chat(max_tokens=5, max_completion_tokens=3).choices[0].max_new_tokens == 3
    assert chat(max_tokens=2, max_completion_tokens=3).choices[0].max_new_tokens == 3
    assert chat(max_tokens=2**63).choices[0].max_new_tokens == MODEL.context_tokens
    assert chat().choices[0].max_new_tokens is None
    assert param_refused(max_tokens=0, max_completion_tokens=3) == "max_tokens"


def test_n_choices_have_seeds_of_their_own() -> None:
    parsed = chat(n=3, seed=7)
    assert [choice.reply.sampling.seed for choice in parsed.choices] == [7, 8, 9]
    assert [choice.reply.sampling.seed for choice in chat(n=2).choices] == [None, None]


def test_who_asks_goes_with_every_choice() -> None:
    assert {(c.alias, c.tenant, c.deadline_s) for c in chat(n=2).choices} == {("m", "t", 1.5)}


def test_logprobs_of_zero_are_those_of_the_chosen_token() -> None:
    assert chat().choices[0].reply.top_logprobs is None
    assert chat(logprobs=True).choices[0].reply.top_logprobs == 0
    assert chat(logprobs=True, top_logprobs=20).choices[0].reply.top_logprobs == 20
    assert param_refused(logprobs=True, top_logprobs=21) == "top_logprobs"
    assert completion(prompt="x", logprobs=0).choices[0].reply.top_logprobs == 0
    assert completion(prompt="x").choices[0].reply.top_logprobs is None
    with pytest.raises(InvalidRequest):
        completion(prompt="x", logprobs=True)


@pytest.mark.parametrize(
    ("options", "usage"),
    [(None, False), ({}, False), ({"include_usage": False}, False), ({"include_usage": True}, True)],
)
def test_usage_is_sent_only_when_asked_for(options: Any, usage: bool) -> None:
    assert chat(stream=True, stream_options=options).include_usage is usage


def test_stream_options_that_are_no_object_are_refused() -> None:
    assert param_refused(stream=True, stream_options="x") == "stream_options"
    assert param_refused(stream=True, stream_options={"include_usage": 1}) == "stream_options.include_usage"


# ---- messages -------------------------------------------------------------------------------------


def test_our_own_tool_call_turn_may_be_sent_back() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [{"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    turns.append({"role": "tool", "tool_call_id": "c1", "content": "1"})
    prompt = prompt_of(chat(messages=turns))
    assert prompt.messages[1] == {"role": "assistant", "content": None, "tool_calls": [call]}
    assert prompt.messages[2] == {"role": "tool", "content": "1", "tool_call_id": "c1"}
    del turns[1]["content"]
    assert prompt_of(chat(messages=turns)) == prompt


def test_text_parts_are_their_joined_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert prompt_of(chat(messages=[{"role": "user", "content": parts}])).messages == [
        {"role": "user", "content": "ab"}
    ]


@pytest.mark.parametrize("content", [None, 5, {}, []])
def test_a_users_content_that_is_no_text_is_refused_with_its_index(content: Any) -> None:
    assert param_refused(messages=[{"role": "user", "content": content}]) == "messages[0].content"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[1].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": ["a"]}, "messages[1].content[0]"),
        ({"role": "robot", "content": "x"}, "messages[1].role"),
        ({"content": "x"}, "messages[1].role"),
        ({"role": ["user"], "content": "x"}, "messages[1].role"),
        ("hi", "messages[1]"),
        (None, "messages[1]"),
        ({"role": "assistant"}, "messages[1].content"),
        ({"role": "assistant", "tool_calls": [{"id": None}]}, "messages[1].tool_calls[0].id"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages[1].tool_calls[0].function"),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {}}}]},
            "messages[1].tool_calls[0].function.arguments",
        ),
        ({"role": "user", "content": "x", "name": "n" * 257}, "messages[1].name"),
    ],
)
def test_a_faulty_message_is_named(message: Any, param: str) -> None:
    assert param_refused(messages=[*HI, message]) == param


def test_a_developer_speaks_as_the_system() -> None:
    assert prompt_of(chat(messages=[{"role": "developer", "content": ""}])).messages == [
        {"role": "system", "content": ""}
    ]


def test_text_is_bounded_by_its_bytes_over_all_messages() -> None:
    limits = RequestLimits(text_bytes=8)
    assert chat(limits, messages=[{"role": "user", "content": "éé"}, {"role": "user", "content": "abcd"}])
    with pytest.raises(InvalidRequest, match="8 bytes"):
        chat(limits, messages=[{"role": "user", "content": "éé"}, {"role": "user", "content": "abcde"}])


def test_tools_that_may_not_be_called_are_not_shown_to_the_model() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert prompt_of(chat(tools=tools, tool_choice="none")).tools is None
    assert param_refused(tools=[{}] * 129, tool_choice="none") == "tools"


# ---- completions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "taken"),
    [
        ("", [TextPrompt("")]),
        ("a", [TextPrompt("a")]),
        (["a", "b"], [TextPrompt("a"), TextPrompt("b")]),
        ([1, 2], [TokenPrompt((1, 2))]),
        ([[1], [2]], [TokenPrompt((1,)), TokenPrompt((2,))]),
    ],
)
def test_a_prompt_is_text_or_ids_one_or_several(prompt: Any, taken: list[Any]) -> None:
    parsed = completion(prompt=prompt, n=2)
    assert [choice.prompt for choice in parsed.choices] == [one for one in taken for _ in range(2)]
    assert parsed.prompts == len(taken)


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        [],
        [[]],
        5,
        {},
        [999_999],
        [1000],
        [-1],
        [4_294_967_296],
        [1, "a"],
        [1.0],
        [True],
        ["a", 1],
        [None],
        ["a"] * 17,
    ],
)
def test_a_prompt_that_is_neither_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        completion(prompt=prompt)
    assert (caught.value.param or "").startswith("prompt")


def test_prompts_times_n_are_bounded() -> None:
    assert len(completion(prompt=["a"] * 8, n=2).choices) == 16
    with pytest.raises(InvalidRequest, match="18 choices"):
        completion(prompt=["a"] * 9, n=2)


@pytest.mark.parametrize("field", [{"echo": True}, {"best_of": 2}, {"suffix": "x"}])
def test_what_completions_cannot_do_is_said(field: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        completion(prompt="a", **field)
    assert caught.value.param in field


def test_llama_servers_minus_one_means_no_limit_and_any_seed() -> None:
    body = {"prompt": "a", "n_predict": -1, "seed": -1}
    [choice] = parse_llama_completion(body, model=MODEL, asker=ASKER, limits=LIMITS).choices
    assert (choice.max_new_tokens, choice.reply.sampling.seed, choice.reply.sampling.top_k) == (None, None, 40)
    with pytest.raises(InvalidRequest):
        parse_llama_completion({"prompt": "a", "n_predict": -2}, model=MODEL, asker=ASKER, limits=LIMITS)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "prompt must be a string or an array, and is missing"),
        ({"prompt": None}, "prompt must be a string or an array, not null"),
        ({"prompt": 5}, "prompt must be a string or an array, not a number"),
        ({"prompt": "a", "n": 1.5}, "n must be an integer between 1 and 16"),
        ({"prompt": "a", "max_tokens": "2"}, "max_tokens must be an integer at least 1"),
    ],
)
def test_a_refusal_says_what_must_be_and_what_is(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        completion(**fields)
    assert caught.value.message == said
