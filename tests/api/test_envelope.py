"""What surrounds a request's fields. Reports B21, B31, B32, B34, B37, B57, B59."""

from __future__ import annotations

import attrs
import pytest
import trio

from calculet_trio.api.settings import ApiSettings, ConnectionLimits, RequestLimits
from calculet_trio.errors import (
    CapacityExceeded,
    ContextLengthExceeded,
    GenerationFailed,
    InvalidRequest,
    ServiceUnavailable,
)
from calculet_trio.shell.service import Health
from tests.api.conftest import Server
from tests.api.fake_service import MODEL, Script
from tests.api.wire import get, post

POST_ROUTES = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/apply-template", "/completion"]
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("path", POST_ROUTES)
@pytest.mark.parametrize(
    "raw", [b"{", b"", b"null", b"[]", b'{"a":1}x', b'{"a":"\xff"}', '{"a":1}'.encode("utf-16"), b"[" * 100_000]
)
async def test_a_malformed_body_is_400_in_our_shape_on_every_route(server: Server, path: str, raw: bytes) -> None:
    answer = await server.ask(post(path, raw))
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
    assert server.service.requests == []


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "Application/JSON; Charset=UTF-8",
        'application/json;charset="utf-8"',
        "application/vnd.api+json",
    ],
)
async def test_json_types_are_taken_whatever_their_case(server: Server, content_type: str) -> None:
    answer = await server.ask(post("/v1/chat/completions", CHAT, content_type=content_type))
    assert answer.status == 200


@pytest.mark.parametrize(
    "content_type",
    [None, "", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1", "json"],
)
async def test_other_types_are_415(server: Server, content_type: str | None) -> None:
    """CHOICES.md: B32."""
    answer = await server.ask(post("/v1/chat/completions", CHAT, content_type=content_type))
    assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate, gzip"])
async def test_compressed_bodies_are_415(server: Server, coding: str) -> None:
    answer = await server.ask(post("/v1/chat/completions", b"\x1f\x8b", f"Content-Encoding: {coding}"))
    assert answer.status == 415


async def test_pages_of_http_itself_have_our_shape(server: Server) -> None:
    assert (await server.ask(get("/nope"))).error["code"] == "not_found"
    assert (await server.ask(get("//v1/models"))).json()  # whatever it is, it is no page of HTML
    wrong_verb = await server.ask(get("/v1/chat/completions"))
    assert (wrong_verb.status, wrong_verb.error["code"]) == (405, "method_not_allowed")
    assert "POST" in wrong_verb.headers["allow"]
    assert (await server.ask(get("/v1/models/"))).status == 200


class TestSmallBodies:
    @pytest.fixture
    def settings(self) -> ApiSettings:
        return ApiSettings(
            request=RequestLimits(body_bytes=1000), connection=ConnectionLimits(body_s=0.2, linger_s=0.5, graceful_s=5)
        )

    async def test_a_body_too_large_is_413_before_it_was_read(self, server: Server) -> None:
        answer = await server.ask(post("/v1/chat/completions", {**CHAT, "x": "y" * 2000}))
        assert (answer.status, answer.error["code"]) == (413, "body_too_large")
        assert answer.error["message"] == "the body is too large; the limit is 1000 bytes"

    async def test_a_large_body_still_under_way_can_read_its_refusal(self, server: Server) -> None:
        wire = await server.connect()
        answer = await wire.answer(post("/v1/chat/completions", b" " * 3_000_000))
        assert answer.status == 413

    async def test_a_chunked_body_is_counted_too(self, server: Server) -> None:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
        chunk = b"190\r\n" + b" " * 400 + b"\r\n"
        answer = await server.ask(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 4 + b"0\r\n\r\n")
        assert answer.status == 413

    async def test_a_trickled_body_is_408(self, server: Server) -> None:
        wire = await server.connect()
        answer = await wire.answer(post("/v1/chat/completions", CHAT)[:-5])
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert answer.error["message"] == "the body took too long to arrive; the limit is 0.2 s"


async def test_text_too_long_is_400_before_the_service_hears_of_it(server: Server) -> None:
    """Report B55."""
    for path, body in (
        ("/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": "a" * 5_000_000}]}),
        ("/v1/completions", {"model": "m", "prompt": "😸" * 300_000}),
        ("/tokenize", {"content": "a" * 5_000_000}),
    ):
        answer = await server.ask(post(path, body))
        assert answer.status == 400
        assert answer.error["param"] in ("messages", "prompt", "content")
    assert server.service.requests == []


# ---- the model ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize"])
@pytest.mark.parametrize("name", ["nope", "", "M", "m/", "x" * 10_000])
async def test_a_model_that_is_not_served_is_404_and_told_what_is(server: Server, path: str, name: str) -> None:
    answer = await server.ask(post(path, {**CHAT, "prompt": "x", "content": "x", "model": name}))
    assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "model_not_found", "model")
    assert answer.error["message"].endswith("served: m")
    assert len(answer.error["message"]) < 300
    assert server.service.requests == []


@pytest.mark.parametrize("name", [None, 5, ["m"], {}])
async def test_a_model_that_is_no_name_is_400(server: Server, name: object) -> None:
    """CHOICES.md: B31."""
    answer = await server.ask(post("/v1/chat/completions", {**CHAT, "model": name}))
    assert (answer.status, answer.error["param"]) == (400, "model")


async def test_without_a_model_the_only_one_is_meant(server: Server) -> None:
    """CHOICES.md: B31."""
    body = {"messages": CHAT["messages"]}
    answer = await server.ask(post("/v1/chat/completions", body))
    assert (answer.status, answer.json()["model"]) == (200, "m")
    server.service.served = (MODEL, attrs.evolve(MODEL, alias="n"))
    assert (await server.ask(post("/v1/chat/completions", body))).error["param"] == "model"


async def test_models_are_listed_and_shown(server: Server) -> None:
    [listed] = (await server.ask(get("/v1/models"))).json()["data"]
    assert (listed["id"], listed["object"], listed["created"]) == ("m", "model", 1_700_000_000)
    assert listed["meta"] == {"n_ctx": 2048, "n_vocab": 1000, "lanes": 16}
    assert (await server.ask(get("/v1/models/m"))).json() == listed
    assert (await server.ask(get("/v1/models/a/b"))).error["code"] == "model_not_found"


# ---- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "status", "headers"),
    [
        (InvalidRequest("roles must alternate", param="messages"), 400, {}),
        (ContextLengthExceeded(prompt_tokens=2049, limit_tokens=2047), 400, {}),
        (CapacityExceeded("full", code="queue_full", retry_after_s=2.2), 429, {"retry-after": "3"}),
        (CapacityExceeded("full", code="queue_full"), 429, {"retry-after": "1"}),
        (ServiceUnavailable("waited too long", code="deadline_exceeded"), 503, {"retry-after": "1"}),
        (GenerationFailed("device_lost", retryable=True), 503, {"retry-after": "1"}),
        (GenerationFailed("bad_logits", retryable=False), 500, {"x-should-retry": "false"}),
    ],
)
async def test_a_refusal_has_its_status_streamed_or_not(
    server: Server, stream: bool, refusal: Exception, status: int, headers: dict[str, str]
) -> None:
    """Report B41: headers are not sent before admission."""
    server.service.refusal = refusal  # type: ignore[assignment]
    answer = await server.chat(stream=stream)
    assert answer.status == status
    assert answer.error["message"]
    assert headers.items() <= answer.headers.items()


async def test_a_context_that_is_too_small_is_told_with_both_counts(server: Server) -> None:
    """Report B62: agents match this to make their history shorter."""
    server.service.refusal = ContextLengthExceeded(prompt_tokens=2049, limit_tokens=2047)
    error = (await server.chat()).error
    assert error["code"] == "context_length_exceeded"
    assert (error["n_prompt_tokens"], error["n_prompt_tokens_max"]) == (2049, 2047)
    assert "2049" in error["message"]
    assert "2047" in error["message"]


async def test_a_defect_of_ours_is_500_and_says_nothing_of_itself(server: Server) -> None:
    def defect(request: object) -> Script:
        raise ZeroDivisionError("a secret")

    server.service.script = defect
    answer = await server.chat()
    assert (answer.status, answer.error["code"], answer.headers["x-should-retry"]) == (500, "internal_error", "false")
    assert b"secret" not in answer.body
    assert [entry["event"] for entry in server.take_errors()] == ["choice_defect", "request_defect"]


@pytest.mark.parametrize("status", ["loading", "draining", "recovering", "failed"])
async def test_health_and_chat_agree_in_every_state(server: Server, status: str) -> None:
    """Report B57."""
    server.service.status = Health(status, "because")
    server.service.served = ()
    server.service.coming = frozenset({"m"})
    for request in (
        get("/health"),
        get("/v1/health"),
        get("/health/ready"),
        get("/props"),
        get("/v1/models/m"),
        post("/v1/chat/completions", CHAT),
        post("/tokenize", {"content": "x"}),
    ):
        answer = await server.ask(request)
        assert (answer.status, answer.error["code"]) == (503, status)
        assert "because" in answer.error["message"]
        assert "retry-after" in answer.headers
    assert (await server.ask(get("/health"))).json()["status"] == status
    assert (await server.ask(get("/health/live"))).json() == {"status": "ok"}
    assert (await server.ask(get("/v1/models"))).json()["data"] == []
    assert (await server.ask(get("/metrics"))).status == 200


async def test_what_nobody_loads_is_not_found_though_something_else_is_loading(server: Server) -> None:
    """An operator who unloads the only model, say: who asks for it is not told to come back in two seconds."""
    server.service.status = Health("loading", "no model is ready")
    server.service.served = ()
    answer = await server.ask(post("/v1/chat/completions", CHAT))
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")


async def test_health_does_not_wait_for_a_request_that_waits(server: Server) -> None:
    server.service.admission = trio.Event()
    wire = await server.connect()
    await wire.stream.send_all(post("/v1/chat/completions", CHAT))
    await server.service.until_active(1)
    assert (await server.ask(get("/health"))).json() == {"status": "ok"}


# ---- headers --------------------------------------------------------------------------------------


async def test_a_request_id_is_echoed_if_it_is_short_and_visible_and_made_otherwise(server: Server) -> None:
    assert (await server.ask(get("/health", "x-request-id: abc-1"))).headers["x-request-id"] == "abc-1"
    for odd in ("a b", "x" * 129, ""):
        made = (await server.ask(get("/health", f"x-request-id: {odd}"))).headers["x-request-id"]
        assert made.startswith("req-")
    assert (await server.ask(get("/nope", "x-request-id: e"))).headers["x-request-id"] == "e"


async def test_a_deadline_goes_with_the_request(server: Server) -> None:
    assert (await server.chat("x-request-deadline-ms: 2500")).status == 200
    assert server.service.requests[0].deadline_s == 2.5
    for odd in ("0", "-1", "1.5", "x", "9" * 5000, "²"):
        answer = await server.chat(f"x-request-deadline-ms: {odd}")
        assert (answer.status, answer.error["param"]) == (400, "x-request-deadline-ms")


async def test_metrics_come_in_the_format_that_accept_names(server: Server) -> None:
    """Report B59."""
    text = await server.ask(get("/metrics"))
    assert (text.headers["content-type"], text.body) == ("text/plain; version=0.0.4; charset=utf-8", b"up 1\n")
    other = await server.ask(get("/metrics", "Accept: application/openmetrics-text"))
    assert other.headers["content-type"].startswith("application/openmetrics-text")
    head = await server.ask(get("/metrics", method="HEAD"))
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", "5")


async def test_without_configured_origins_no_page_may_call(server: Server) -> None:
    """CHOICES.md: B37."""
    answer = await server.ask(get("/health", "Origin: http://o"))
    assert not [name for name in answer.headers if name.startswith("access-control")]


class TestCors:
    @pytest.fixture
    def settings(self) -> ApiSettings:
        return ApiSettings(cors_origins=("http://o",))

    async def test_a_preflight_needs_no_key_and_covers_what_it_asks_for(self, server: Server) -> None:
        """Report B37."""
        asked = "authorization,content-type,x-stainless-os"
        lines = ["Origin: http://o", "Access-Control-Request-Method: POST", f"Access-Control-Request-Headers: {asked}"]
        answer = await server.ask(get("/v1/chat/completions", *lines, method="OPTIONS"))
        assert answer.status == 204
        assert answer.headers["access-control-allow-origin"] == "http://o"
        assert answer.headers["access-control-allow-headers"] == asked
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert "access-control-allow-credentials" not in answer.headers

    async def test_replies_errors_and_streams_are_marked(self, server: Server) -> None:
        for answer in (
            await server.chat("Origin: http://o", stream=True),
            await server.chat("Origin: http://o", temperature=9),
            await server.ask(get("/nope", "Origin: http://o")),
        ):
            assert answer.headers["access-control-allow-origin"] == "http://o"
            assert answer.headers["vary"] == "Origin"

    async def test_another_origin_is_not(self, server: Server) -> None:
        lines = ["Origin: http://evil", "Access-Control-Request-Method: POST"]
        for request in (get("/v1/models", *lines), get("/v1/models", *lines, method="OPTIONS")):
            answer = await server.ask(request)
            assert not [name for name in answer.headers if name.startswith("access-control")]
