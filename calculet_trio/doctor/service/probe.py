"""One short look at an HTTP server that may be ours, may be somebody else's, and may not answer."""

from __future__ import annotations

import http.client
import json
from typing import Final

import attrs

from calculet_trio.doctor.addresses import to_connect

ANSWER_S: Final = 0.6
"""For each read; two looks stay within what a check may take. Health is answered from memory, in milliseconds."""
BODY_BYTES_MAX: Final = 64 * 1024


@attrs.frozen
class Answer:
    """What came back: the status, and the JSON object or an empty one."""

    status: int
    body: dict[str, object]


def get(host: str, port: int, path: str) -> Answer | None:
    """``GET path``; None if nothing listens there.

    Raises:
        TimeoutError: something listens and says nothing in time.
        OSError: the connection broke.
        http.client.HTTPException: what answers does not speak HTTP.
    """
    connection = http.client.HTTPConnection(to_connect(host), port, timeout=ANSWER_S)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        reply = connection.getresponse()
        content = reply.read(BODY_BYTES_MAX)
    except ConnectionRefusedError:
        return None
    finally:
        connection.close()
    return Answer(reply.status, _object(content))


def is_ours(host: str, port: int) -> bool:
    """Whether the server is a calculet-trio: it alone among its like answers ``/health/live`` so.

    Raises:
        TimeoutError: it says nothing in time.
    """
    try:
        answer = get(host, port, "/health/live")
    except TimeoutError:
        raise
    except (OSError, http.client.HTTPException):
        return False
    return answer is not None and answer.status == http.client.OK and answer.body.get("status") == "ok"


def _object(content: bytes) -> dict[str, object]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
