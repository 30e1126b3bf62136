"""OpenAI's endpoints: chat completions, completions, models.

Source: OpenAI API reference; API.md "Service endpoints".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quart import Blueprint, Response

from calculet_trio.api import sse
from calculet_trio.api.choices import Choices, Ended, Piece, running
from calculet_trio.api.envelope import asker, body_object, current, model_named
from calculet_trio.api.json_reply import json_reply
from calculet_trio.api.schemas import ParsedRequest, parse_chat, parse_completion
from calculet_trio.api.settings import ApiSettings
from calculet_trio.api.shapes import CHAT, COMPLETION, Reply, ReplyShape
from calculet_trio.shell.service import ServedModel, Service

Parse = Callable[..., ParsedRequest]


class OpenAIRoutes:
    """The handlers, and what they know.

    Args:
        service: the daemon, as a surface sees it.
        settings: the bounds.
    """

    def __init__(self, service: Service, settings: ApiSettings) -> None:
        self._service = service
        self._settings = settings

    def blueprint(self) -> Blueprint:
        routes = Blueprint("openai", __name__, url_prefix="/v1")
        routes.add_url_rule("/chat/completions", view_func=self.chat, methods=["POST"])
        routes.add_url_rule("/completions", view_func=self.completion, methods=["POST"])
        routes.add_url_rule("/models", view_func=self.models)
        routes.add_url_rule("/models/<path:name>", view_func=self.model)
        return routes

    async def chat(self) -> Response:
        """``POST /v1/chat/completions``."""
        return await self._reply(CHAT, parse_chat)

    async def completion(self) -> Response:
        """``POST /v1/completions``."""
        return await self._reply(COMPLETION, parse_completion)

    async def models(self) -> Response:
        """``GET /v1/models``: the aliases that may be asked for."""
        return json_reply({"object": "list", "data": [_model_object(one) for one in self._service.models()]})

    async def model(self, name: str) -> Response:
        """``GET /v1/models/{id}``."""
        return json_reply(_model_object(model_named(self._service, name, given=True)))

    async def _reply(self, shape: ReplyShape, parse: Parse) -> Response:
        body = await body_object(self._settings.request)
        model = model_named(self._service, body.get("model"), given="model" in body)
        parsed = parse(body, model=model, asker=asker(), limits=self._settings.request)
        silence_s = self._settings.keep_alive_s if parsed.stream else None
        opened = running(self._service, parsed.choices, silence_s=silence_s)
        choices = await current().held.enter_async_context(opened)
        reply = Reply(shape, parsed)
        if parsed.stream:
            frames = StreamFrames(reply, parsed)
            return await sse.stream(choices, frames)
        return await _whole(choices, reply, parsed)


class StreamFrames:
    """The events of a stream: for each choice its role once, its pieces and its end; then usage and the end mark."""

    def __init__(self, reply: Reply, parsed: ParsedRequest) -> None:
        self._reply = reply
        self._include_usage = parsed.include_usage
        self._opened: set[int] = set()
        self._ended: list[Ended] = []

    def __call__(self, said: Piece | Ended | None) -> bytes:
        if said is None:
            usage = sse.event(self._reply.usage(self._ended)) if self._include_usage else b""
            return usage + sse.DONE
        chunks: list[dict[str, Any] | None] = []
        if said.index not in self._opened:
            self._opened.add(said.index)
            chunks.append(self._reply.opening(said.index))
        if isinstance(said, Piece):
            chunks.append(self._reply.piece(said))
        else:
            self._ended.append(said)
            chunks.append(self._reply.finish(said))
        return b"".join(sse.event(chunk) for chunk in chunks if chunk is not None)


async def _whole(choices: Choices, reply: Reply, parsed: ParsedRequest) -> Response:
    pieces, ended = await collected(choices, len(parsed.choices))
    headers = {
        "x-queue-time": f"{max(one.timings.queue_s for one in ended) * 1e3:.3f}",
        "x-inference-time": f"{max(one.timings.prompt_s + one.timings.predicted_s for one in ended) * 1e3:.3f}",
    }
    return json_reply(reply.complete(pieces, ended), headers=headers)


async def collected(choices: Choices, size: int) -> tuple[list[list[Piece]], list[Ended]]:
    """Everything that ``size`` choices say, by index; raises what they raise."""
    pieces: list[list[Piece]] = [[] for _ in range(size)]
    ended: list[Ended] = []
    while (said := await choices.next()) is not None:
        if isinstance(said, Piece):
            pieces[said.index].append(said)
        elif isinstance(said, Ended):
            ended.append(said)
    return pieces, sorted(ended, key=lambda one: one.index)


def _model_object(model: ServedModel) -> dict[str, Any]:
    meta = {"n_ctx": model.context_tokens, "n_vocab": model.vocab_size, **model.meta}
    return {
        "id": model.alias,
        "object": "model",
        "created": int(model.loaded_unix_s),
        "owned_by": "calculet-trio",
        "meta": meta,
    }
