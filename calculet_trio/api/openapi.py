"""The surface in OpenAPI's terms, made from the code that parses the requests.

Each parser is run once on a body that has every kind of part; `calculet_trio.api.fields.noting` hears how each field
is read, with its type, bounds and default. What a parser does not read is not described, and what it reads cannot be
described otherwise than it is read.

Source: API.md ``GET /openapi.json``; OpenAPI 3.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any, Final

from calculet_trio.api.fields import Fields, noting
from calculet_trio.api.messages import chat_prompt
from calculet_trio.api.schemas import (
    Asker,
    parse_chat,
    parse_completion,
    parse_llama_completion,
    parse_text,
    parse_tokens,
)
from calculet_trio.api.settings import RequestLimits
from calculet_trio.shell.service import ServedModel

Schema = dict[str, Any]
Parse = Callable[[Mapping[str, Any], RequestLimits], object]

_MODEL: Final = ServedModel(alias="m", loaded_unix_s=0.0, context_tokens=1 << 20, vocab_size=1 << 20, meta={})
_ASKER: Final = Asker(tenant="default", deadline_s=None)
_MESSAGES: Final = [
    {"role": "user", "content": [{"type": "text", "text": "x"}]},
    {"role": "assistant", "tool_calls": [{"id": "i", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "content": "x", "tool_call_id": "i"},
]
_STREAM: Final = {"stream": True, "stream_options": {"include_usage": True}}


def _detokenize(body: Mapping[str, Any], limits: RequestLimits) -> object:
    return parse_tokens(Fields(body), vocab_size=_MODEL.vocab_size, limits=limits)


def _tokenize(body: Mapping[str, Any], limits: RequestLimits) -> object:
    fields = Fields(body)
    return parse_text(fields, "content", limits), fields.boolean("parse_special", True)


BODIES: Final[Mapping[str, tuple[str, Mapping[str, Any], Parse]]] = {
    "/v1/chat/completions": (
        "A reply to a conversation; an event stream with `stream`.",
        {"messages": _MESSAGES, "logprobs": True, "stop": ["x"], **_STREAM},
        lambda body, limits: parse_chat(body, model=_MODEL, asker=_ASKER, limits=limits),
    ),
    "/v1/completions": (
        "A continuation of a prompt; an event stream with `stream`.",
        {"prompt": "x", "stop": ["x"], **_STREAM},
        lambda body, limits: parse_completion(body, model=_MODEL, asker=_ASKER, limits=limits),
    ),
    "/completion": (
        "llama-server's completion.",
        {"prompt": "x", "stop": ["x"]},
        lambda body, limits: parse_llama_completion(body, model=_MODEL, asker=_ASKER, limits=limits),
    ),
    "/tokenize": ("Token ids of a text.", {"content": "x"}, _tokenize),
    "/detokenize": ("The text of token ids.", {"tokens": [1]}, _detokenize),
    "/apply-template": (
        "The prompt as the model's chat template renders it.",
        {"messages": _MESSAGES},
        lambda body, limits: chat_prompt(Fields(body), limits),
    ),
}
"""The endpoints with a body: what they are for, a body that is read in every part, and who reads it."""

LOOKS: Final[Mapping[str, str]] = {
    "/v1/models": "The models that are ready.",
    "/v1/models/{id}": "One of them.",
    "/health": "Whether chat works now.",
    "/health/ready": "The same.",
    "/health/live": "Whether this process answers at all.",
    "/props": "What is served, in llama-server's names.",
    "/slots": "KV lanes and what is in them; no prompts, and only one's own.",
    "/metrics": "Prometheus' page; for operators.",
    "/calrt/device": "Status and memory of the device, as it last told them.",
    "/openapi.json": "This description.",
}

_REQUIRED: Final = ("messages", "prompt", "content", "tokens")
_FREE: Final[Mapping[str, str]] = {
    "prompt": "A string, an array of strings, of token ids, or of arrays of token ids.",
    "stop": "A string or an array of strings.",
}
"""What the fields of several types may be."""


def described(limits: RequestLimits) -> Schema:
    """The OpenAPI document.

    Args:
        limits: the bounds, as configured.
    """
    error = {"$ref": "#/components/responses/Error"}
    paths: dict[str, Any] = {}
    for path, (summary, body, parse) in BODIES.items():
        content = {"application/json": {"schema": _body_schema(body, parse, limits)}}
        paths[path] = {
            "post": {
                "summary": summary,
                "requestBody": {"required": True, "content": content},
                "responses": {"200": {"description": "As the endpoint's own clients expect it."}, "default": error},
            }
        }
    for path, summary in LOOKS.items():
        answer: Schema = {"summary": summary, "responses": {"200": {"description": summary}, "default": error}}
        if "{id}" in path:
            answer["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
        paths[path] = {"get": answer}
    return {
        "openapi": "3.1.0",
        "info": {"title": "calculet-trio", "version": metadata.version("calculet-trio")},
        "paths": paths,
        "security": [{"bearer": []}, {"key": []}, {}],
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "responses": {"Error": {"description": "Refused or failed.", "content": _ERROR_CONTENT}},
        },
    }


_ERROR_CONTENT: Final = {
    "application/json": {
        "schema": {
            "type": "object",
            "required": ["error"],
            "properties": {
                "error": {
                    "type": "object",
                    "required": ["message", "type", "param", "code"],
                    "properties": {
                        "message": {"type": "string"},
                        "type": {"type": "string"},
                        "param": {"type": ["string", "null"]},
                        "code": {"type": ["string", "null"]},
                    },
                }
            },
        }
    }
}


def _body_schema(body: Mapping[str, Any], parse: Parse, limits: RequestLimits) -> Schema:
    root: Schema = {"type": "object", "required": [name for name in _REQUIRED if name in body]}
    with noting() as read:
        parse(body, limits)
    if parse not in (_tokenize, _detokenize):
        alias = "A model's alias; may be left out where one is served."
        _place(root, "model", {"type": "string", "description": alias})
    for path, schema in read.items():
        _place(root, path, schema)
    for name, words in _FREE.items():
        if read.get(name) == {}:
            root["properties"][name]["description"] = words
    return root


def _place(root: Schema, path: str, schema: Schema) -> None:
    """Put ``schema`` where ``path`` (``messages[0].role``) says, making objects and arrays on the way."""
    at = root
    for name in re.findall(r"[^.\[\]]+|\[\d+\]", path):
        if name.startswith("["):
            at = at.setdefault("items", {"type": "object"})
        else:
            at = at.setdefault("properties", {}).setdefault(name, {})
    at.update(schema)
