"""What surrounds a request: its model, its type, its bytes, its origin: B31–B37."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.wire import get, post
from tests.reports.conftest import ORIGIN
from tests.reports.served import CHAT, Served, ask

ROUTES = {
    CHAT: ask("hi"),
    "/v1/completions": {"model": "m", "prompt": "hi"},
    "/tokenize": {"content": "hi"},
    "/detokenize": {"tokens": [104, 105]},
    "/apply-template": {"messages": [{"role": "user", "content": "hi"}]},
    "/completion": {"prompt": "hi"},
}


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/tokenize"])
@pytest.mark.parametrize("name", ["nope", "", "M", "m/", "x" * 10_000])
async def test_b31_an_unknown_model_is_not_found(served: Served, path: str, name: str) -> None:
    answer = await served.post(path, {**ROUTES[path], "model": name})
    assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "model_not_found", "model")
    assert len(answer.error["message"]) < 500
    assert answer.error["message"].endswith("; served: m")


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/tokenize"])
@pytest.mark.parametrize("name", [None, 5, ["m"], {}])
async def test_b31_a_model_that_is_no_name_is_refused(served: Served, path: str, name: Any) -> None:
    answer = await served.post(path, {**ROUTES[path], "model": name})
    assert (answer.status, answer.error["param"]) == (400, "model")


async def test_b31_without_a_name_the_only_model_answers_and_is_named(served: Served) -> None:
    body = {name: value for name, value in ask("hi").items() if name != "model"}
    assert (await served.post(CHAT, body)).json()["model"] == "m"


@pytest.mark.parametrize(
    "declared", ["Application/JSON; Charset=UTF-8", "application/vnd.api+json", 'application/json;charset="utf-8"']
)
async def test_b32_every_way_to_say_json_is_taken(served: Served, declared: str) -> None:
    assert (await served.ask(post(CHAT, ask("hi"), content_type=declared))).status == 200


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "declared",
    [
        None,
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/json; charset=latin-1",
        "multipart/form-data",
    ],
)
async def test_b32_anything_else_is_refused(served: Served, path: str, declared: str | None) -> None:
    answer = await served.ask(post(path, ROUTES[path], content_type=declared))
    assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")


async def test_b32_compressed_bodies_are_refused(served: Served) -> None:
    answer = await served.post(CHAT, b"\x1f\x8b\x08\x00", "Content-Encoding: gzip")
    assert answer.status == 415
    assert answer.error["code"] == "unsupported_media_type"


BODIES = {
    "an open brace": b"{",
    "nothing": b"",
    "null": b"null",
    "an array": b"[]",
    "a number": b"5",
    "more than one value": b'{"a":1}x',
    "GBK": '{"content": "中文"}'.encode("gbk"),
    "ff in a string": b'{"content": "\xff"}',
    "UTF-16": json.dumps({"content": "hi"}).encode("utf-16"),
    "a lone surrogate": b'{"content": "\\ud800"}',
    "100,000 brackets": b"[" * 100_000,
    "100,000 brackets inside": b'{"a":' * 100_000,
    "3,000 nested arrays": b'{"tools": ' + b"[" * 3000 + b"]" * 3000 + b"}",
    "a NUL": b'{"content": "a\x00b"}',
}


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("body", BODIES)
async def test_b34_a_malformed_body_is_refused_on_every_route(served: Served, path: str, body: str) -> None:
    answer = await served.post(path, BODIES[body])
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"


async def test_b34_a_byte_order_mark_does_no_harm(served: Served) -> None:
    assert (await served.post(CHAT, b"\xef\xbb\xbf" + json.dumps(ask("hi")).encode())).status == 200


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get("/nothing/here"), 404),
        (get("/slots/1/%2e%2e"), 404),
        (get(CHAT), 405),
        (post("/health", {}), 405),
        (post(CHAT, b'{"x": "' + b"y" * 9_000_000 + b'"}'), 413),
    ],
)
async def test_b34_the_pages_for_errors_are_ours(served: Served, request_: bytes, status: int) -> None:
    answer = await served.ask(request_)
    assert answer.status == status
    assert answer.error["type"] == "invalid_request_error"


PREFLIGHT = "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization,x-stainless-os"


async def test_b37_a_page_of_an_allowed_origin_may_ask(one_lane: Served) -> None:
    answer = await one_lane.ask(get(CHAT, f"Origin: {ORIGIN}", *PREFLIGHT, method="OPTIONS"))
    assert answer.status == 204
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
    assert "access-control-allow-credentials" not in answer.headers
    for fields, status in (({}, 200), ({"stream": True}, 200), ({"top_p": 7}, 400)):
        reply = await one_lane.chat("hi", f"Origin: {ORIGIN}", **fields)
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (status, ORIGIN)


@pytest.mark.parametrize("origin", ["http://other.example", "null", f"{ORIGIN}.evil.example"])
async def test_b37_a_page_of_any_other_origin_may_not(one_lane: Served, origin: str) -> None:
    preflight = await one_lane.ask(get(CHAT, f"Origin: {origin}", *PREFLIGHT, method="OPTIONS"))
    for answer in (preflight, await one_lane.chat("hi", f"Origin: {origin}")):
        assert "access-control-allow-origin" not in answer.headers
