"""Log-probabilities, limits and sampling: B13–B19."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.reports.served import CHAT, Served, ask

HUGE = "1" * 5000


async def test_b13_impossible_tokens_have_finite_logprobs(served: Served) -> None:
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 5, "top_k": 1}
    whole = (await served.chat("b13 chosen", **fields)).json()["choices"][0]
    events = (await served.chat("b13 chosen", stream=True, **fields)).events()
    assert whole["message"]["content"] == "ab"
    streamed = [
        entry for event in events[:-1] for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == whole["logprobs"]["content"]
    assert [entry["token"] for entry in streamed] == ["a", "b"]
    assert all(-9999.0 <= top["logprob"] <= 0 for entry in streamed for top in entry["top_logprobs"])


async def test_b13_no_number_at_all_is_a_fault(served: Served) -> None:
    served.may_log("bad_logits")
    whole = await served.chat("b13 none", logprobs=True)
    assert (whole.status, whole.error["code"]) == (500, "bad_logits")
    assert whole.headers["x-should-retry"] == "false"
    streamed = (await served.chat("b13 none", logprobs=True, stream=True)).events()
    assert streamed[-1]["error"]["code"] == "bad_logits"


async def test_b15_every_visible_token_has_its_one_entry_with_its_delta(served: Served) -> None:
    events = (await served.chat("b15", stream=True, logprobs=True, stop=["zz"])).events()
    shown = []
    for event in events[:-1]:
        choice = event["choices"][0]
        entries = (choice["logprobs"] or {"content": []})["content"]
        assert "".join(entry["token"] for entry in entries) == choice["delta"].get("content", "")
        shown += [entry["token"] for entry in entries]
    assert shown == ["a", "z", "b"]


async def test_b15_zero_logprobs_of_a_completion_are_the_chosen_tokens(served: Served) -> None:
    answer = await served.post("/v1/completions", {"model": "m", "prompt": "b15", "logprobs": 0})
    logprobs = answer.json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "z", "b"]
    assert [len(top) for top in logprobs["top_logprobs"]] == [1, 1, 1]


@pytest.mark.parametrize("fields", [{"logprobs": True, "top_logprobs": 21}, {"top_logprobs": 3}])
async def test_b15_too_many_alternatives_or_alternatives_to_nothing_are_refused(
    served: Served, fields: dict[str, Any]
) -> None:
    answer = await served.chat(**fields)
    assert (answer.status, answer.error["param"]) == (400, "top_logprobs")


async def raw_chat(served: Served, content: str, field: str, literal: str) -> Any:
    """A chat request with a field as it is written, whether or not that is JSON."""
    body = json.dumps(ask(content))[:-1] + f', "{field}": {literal}}}'
    return await served.post(CHAT, body.encode())


@pytest.mark.parametrize("literal", ["0", "-1", "2.5", '"5"', "true", HUGE, "[1]"])
async def test_b16_what_is_no_number_of_tokens_is_refused(served: Served, literal: str) -> None:
    answer = await raw_chat(served, "endless", "max_tokens", literal)
    assert answer.status == 400
    assert answer.error["param"] == ("max_tokens" if literal != HUGE else None)


@pytest.mark.parametrize("literal", ["100000000", str(2**63)])
async def test_b16_a_huge_limit_means_the_context(served: Served, literal: str) -> None:
    whole = (await raw_chat(served, "endless" + " " * 950, "max_tokens", literal)).json()
    assert (whole["usage"]["total_tokens"], whole["choices"][0]["finish_reason"]) == (2048, "length")


async def test_b16_one_token_and_null(served: Served) -> None:
    one = (await raw_chat(served, "endless", "max_tokens", "1")).json()
    assert (one["choices"][0]["message"]["content"], one["choices"][0]["finish_reason"]) == ("x ", "length")
    assert (await raw_chat(served, "hi", "max_tokens", "null")).json()["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("field", "literal"),
    [("temperature", value) for value in ("NaN", "Infinity", "-Infinity", "1e400", "-1", "5", '"0.7"', "true")]
    + [("top_p", value) for value in ("0", "1.5", "NaN", "-0.1")]
    + [("min_p", "2"), ("top_k", "-5"), ("top_k", "1e9"), ("presence_penalty", "100"), ("presence_penalty", "NaN")],
)
async def test_b17_numbers_out_of_range_are_refused_in_strict_json(served: Served, field: str, literal: str) -> None:
    answer = await raw_chat(served, "hi", field, literal)
    assert answer.status == 400
    assert field in answer.error["message"]


@pytest.mark.parametrize(("field", "literal"), [("temperature", "0"), ("top_k", "0"), ("top_k", "-1"), ("top_p", "1")])
async def test_b17_the_ends_of_ranges_mean_off(served: Served, field: str, literal: str) -> None:
    answer = await raw_chat(served, "hi", field, literal)
    assert answer.json()["choices"][0]["message"]["content"] == "Hello world"


@pytest.mark.parametrize(
    "literal",
    ['{"191222": -100}', '{"-1": 1}', '{"abc": 1}', '{"5": NaN}', '{"5": 1000}', "[]", '{"5": "1"}', '{"٥": 1}'],
)
async def test_b19_a_bias_that_makes_no_sense_is_refused_and_hurts_nobody(served: Served, literal: str) -> None:
    other = await served.begin("brief", stream=True)
    await served.release("brief")
    await other.read_until(b'"one"')
    answer = await raw_chat(served, "hi", "logit_bias", literal)
    assert answer.status == 400
    assert "logit_bias" in answer.error["message"]
    await served.release("brief")
    await other.read_until(b"data: [DONE]")


async def test_b19_the_first_id_past_the_vocabulary_is_past_it(served: Served) -> None:
    models = (await served.get("/v1/models")).json()
    size = models["data"][0]["meta"]["n_vocab"]
    assert (await raw_chat(served, "hi", "logit_bias", f'{{"{size}": 1}}')).error["param"] == "logit_bias"
    assert (await raw_chat(served, "hi", "logit_bias", f'{{"{size - 1}": 1}}')).status == 200


@pytest.mark.parametrize("literal", ["{}", "null"])
async def test_b19_no_bias_is_fine(served: Served, literal: str) -> None:
    assert (await raw_chat(served, "hi", "logit_bias", literal)).status == 200
