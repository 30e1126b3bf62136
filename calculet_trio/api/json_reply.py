"""Replies of one JSON object, errors included: strict, UTF-8, with our own headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quart import Response

from calculet_trio.api import strict_json
from calculet_trio.api.errors import HttpError


def json_reply(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """``value`` as the body; raises `ValueError` if it holds a number that is not finite."""
    body = strict_json.encode(value).encode()
    return Response(body, status=status, headers=dict(headers or {}), content_type="application/json; charset=utf-8")


def error_reply(error: HttpError) -> Response:
    """The error shape that every 4xx and 5xx has."""
    return json_reply(error.as_object(), status=error.status, headers=error.headers)
