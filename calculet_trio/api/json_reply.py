"""Replies of one JSON object, errors included: strict, UTF-8, with our own headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import trio
from quart import Response

from calculet_trio.api import strict_json
from calculet_trio.api.errors import HttpError

JSON_TYPE: Final = "application/json; charset=utf-8"

IDS_AT_ONCE: Final = 8192
"""Take less than a millisecond; a million ids at once would keep everybody else waiting for a hundred."""


def json_reply(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """``value`` as the body; raises `ValueError` if it holds a number that is not finite."""
    body = strict_json.encode(value).encode()
    return Response(body, status=status, headers=dict(headers or {}), content_type=JSON_TYPE)


async def ids_reply(name: str, ids: Sequence[int]) -> Response:
    """An object with one member, ``name``, that lists ``ids``, however many.

    **Cancellation**: atomic.
    """
    windows = []
    for begin in range(0, len(ids), IDS_AT_ONCE):
        windows.append(",".join(map(str, ids[begin : begin + IDS_AT_ONCE])))
        await trio.lowlevel.checkpoint()
    body = f"{{{strict_json.encode(name)}:[{','.join(windows)}]}}"
    return Response(body.encode(), content_type=JSON_TYPE)


def error_reply(error: HttpError) -> Response:
    """The error shape that every 4xx and 5xx has."""
    return json_reply(error.as_object(), status=error.status, headers=error.headers)
