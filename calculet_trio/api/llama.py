"""llama-server's endpoints, since the board's clients of today use that server; and the ones that watch us.

Source: llama.cpp ``tools/server/README.md``; API.md "Service endpoints"; reports B21, B22, B57, B59.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import Any

from quart import Blueprint, Response

from calculet_trio.api import sse
from calculet_trio.api.choices import Ended, Piece, running
from calculet_trio.api.envelope import asker, body_object, current, model_named, refuse_unless_ok
from calculet_trio.api.errors import http_error
from calculet_trio.api.fields import Fields
from calculet_trio.api.json_reply import ids_reply, json_reply
from calculet_trio.api.messages import chat_prompt
from calculet_trio.api.openai import collected
from calculet_trio.api.schemas import LLAMA_DEFAULTS, parse_llama_completion, parse_text, parse_tokens
from calculet_trio.api.settings import ApiSettings
from calculet_trio.api.shapes import timings_of
from calculet_trio.api.unsupported import refuse_unsupported
from calculet_trio.errors import ServiceUnavailable
from calculet_trio.shell.service import ServedModel, Service

MetricsPage = Callable[[str], tuple[bytes, str]]
"""The ``Accept`` header → the page in the format it asks for, and its content type."""


class LlamaRoutes:
    """The handlers, and what they know.

    Args:
        service: the daemon, as a surface sees it.
        settings: the bounds.
        metrics: makes the page of ``/metrics``.
    """

    def __init__(self, service: Service, settings: ApiSettings, metrics: MetricsPage) -> None:
        self._service = service
        self._settings = settings
        self._metrics = metrics

    def blueprint(self) -> Blueprint:
        routes = Blueprint("llama", __name__)
        for path in ("/health", "/v1/health", "/health/ready"):
            routes.add_url_rule(path, view_func=self.health)
        routes.add_url_rule("/health/live", view_func=self.live)
        routes.add_url_rule("/props", view_func=self.props)
        routes.add_url_rule("/metrics", view_func=self.metrics)
        for name, view in (
            ("/tokenize", self.tokenize),
            ("/detokenize", self.detokenize),
            ("/apply-template", self.apply_template),
            ("/completion", self.completion),
        ):
            routes.add_url_rule(name, view_func=view, methods=["POST"])
        return routes

    # ---- watching -----------------------------------------------------------------------------------

    async def health(self) -> Response:
        """200 if chat works now; else 503 and why. From cached state, whatever the device does."""
        found = self._service.health().notes
        notes = {"notes": list(found)} if found else {}
        try:
            refuse_unless_ok(self._service)
        except ServiceUnavailable as unavailable:
            error = http_error(unavailable)
            body = {"status": unavailable.code, **error.as_object(), **notes}
            return json_reply(body, status=error.status, headers=error.headers)
        return json_reply({"status": "ok", **notes})

    async def live(self) -> Response:
        """200 as long as this process can answer at all."""
        return json_reply({"status": "ok"})

    async def metrics(self) -> Response:
        """The page that Prometheus scrapes; served while loading, too."""
        page, content_type = self._metrics(current().headers.get("Accept", ""))
        return Response(page, content_type=content_type)

    async def props(self) -> Response:
        """What is served, in llama-server's names; no prompts."""
        refuse_unless_ok(self._service)  # as chat is refused, at the same instant
        models = self._service.models()
        if not models:
            raise ServiceUnavailable("no model is loaded now", code="loading", retry_after_s=2.0)
        model = models[0]
        health = self._service.health()
        shown: dict[str, Any] = {
            "default_generation_settings": {"n_ctx": model.context_tokens, "params": _default_params()},
            "model_alias": model.alias,
            "modalities": {"vision": False, "audio": False},
            "build_info": f"calculet-trio {metadata.version('calculet-trio')}",
            "meta": dict(model.meta),
            "engines": {"mode": health.engines, "doubt": health.doubt},
        }
        if isinstance(lanes := model.meta.get("lanes"), int):
            shown["total_slots"] = lanes
        return json_reply(shown)

    # ---- text and tokens ------------------------------------------------------------------------------

    async def _body(self) -> tuple[Fields, ServedModel]:
        body = await body_object(self._settings.request)
        fields = Fields(body)
        refuse_unsupported(fields)
        return fields, model_named(self._service, body.get("model"), given="model" in body)

    async def tokenize(self) -> Response:
        """``{"content"}`` → ``{"tokens"}``; special tokens in the text count as such unless told otherwise."""
        fields, model = await self._body()
        text = parse_text(fields, "content", self._settings.request)
        parse_special = fields.boolean("parse_special", True)
        tokens = await self._service.tokenize(model.alias, text, parse_special=parse_special) if text else []
        return await ids_reply("tokens", tokens)

    async def detokenize(self) -> Response:
        """``{"tokens"}`` → ``{"content"}``."""
        fields, model = await self._body()
        tokens = parse_tokens(fields, vocab_size=model.vocab_size, limits=self._settings.request)
        content = await self._service.detokenize(model.alias, tokens) if tokens else ""
        return json_reply({"content": content})

    async def apply_template(self) -> Response:
        """``{"messages"}`` → ``{"prompt"}``, as the model's chat template renders it."""
        fields, model = await self._body()
        prompt = chat_prompt(fields, self._settings.request)
        return json_reply({"prompt": await self._service.apply_template(model.alias, prompt)})

    async def completion(self) -> Response:
        """llama-server's own completion, stream and not."""
        body = await body_object(self._settings.request)
        model = model_named(self._service, body.get("model"), given="model" in body)
        parsed = parse_llama_completion(body, model=model, asker=asker(), limits=self._settings.request)
        silence_s = self._settings.keep_alive_s if parsed.stream else None
        opened = running(self._service, parsed.choices, silence_s=silence_s)
        choices = await current().held.enter_async_context(opened)
        if parsed.stream:
            return await sse.stream(choices, _completion_frames)
        [pieces], [ended] = await collected(choices, 1)
        text = "".join(piece.output.text for piece in pieces)
        return json_reply({**_completion_end(ended), "content": text, "model": model.alias})


def _completion_frames(said: Piece | Ended | None) -> bytes:
    if said is None:
        return b""  # llama-server's streams end with "stop": true, and nothing after it
    if isinstance(said, Ended):
        return sse.event(_completion_end(said))
    if not said.output.text:
        return b""
    return sse.event({"index": 0, "content": said.output.text, "tokens": [], "stop": False})


def _completion_end(ended: Ended) -> dict[str, Any]:
    stop_type = {"stop": "eos", "length": "limit"}[ended.ending.reason.value]
    return {
        "index": 0,
        "content": "",
        "tokens": [],
        "stop": True,
        "stop_type": stop_type,
        "tokens_predicted": ended.timings.predicted_tokens,
        "tokens_evaluated": ended.prompt_tokens,
        "tokens_cached": ended.cached_tokens,
        "timings": timings_of(ended),
    }


def _default_params() -> dict[str, Any]:
    shown = LLAMA_DEFAULTS
    return {
        "temperature": shown.temperature,
        "top_k": shown.top_k,
        "top_p": shown.top_p,
        "min_p": shown.min_p,
        "repeat_penalty": shown.repetition_penalty,
        "presence_penalty": shown.presence_penalty,
        "frequency_penalty": shown.frequency_penalty,
    }
