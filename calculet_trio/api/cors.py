"""Which pages in a browser may call us. None, unless an operator names their origins.

Source: Fetch standard, "CORS protocol"; report B37.
"""

from __future__ import annotations

import re
from typing import Final

from quart import Response

from calculet_trio.api.envelope import ServiceRequest

METHODS: Final = "GET, POST, OPTIONS"
EXPOSED: Final = "x-request-id, x-queue-time, x-inference-time, retry-after"
ASKED_HEADERS: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,1024}")
PREFLIGHT_AGE_S: Final = 600


class CrossOrigin:
    """The rule.

    Args:
        origins: allowed ones, as browsers write them; ``*`` allows all, which is safe in that credentials (cookies)
            are never allowed.
    """

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._origins = frozenset(origins)

    def _allowed(self, request: ServiceRequest) -> str | None:
        origin = request.headers.get("Origin")
        if origin is None or not self._origins:
            return None
        if "*" in self._origins:
            return "*"
        return origin if origin in self._origins else None

    def preflight(self, request: ServiceRequest) -> Response | None:
        """The answer to a browser's question, which carries no key; None if the request is none."""
        if request.method != "OPTIONS" or "Access-Control-Request-Method" not in request.headers:
            return None
        response = Response(b"", status=204)
        if self._allowed(request) is not None:
            response.headers["Access-Control-Allow-Methods"] = METHODS
            response.headers["Access-Control-Max-Age"] = str(PREFLIGHT_AGE_S)
            asked = request.headers.get("Access-Control-Request-Headers", "")
            if ASKED_HEADERS.fullmatch(asked):
                response.headers["Access-Control-Allow-Headers"] = asked
        return response

    def mark(self, request: ServiceRequest, response: Response) -> None:
        """Say on any reply, errors and streams included, whether the page may read it."""
        if not self._origins:
            return
        if "*" not in self._origins:
            response.headers.add("Vary", "Origin")
        if (allowed := self._allowed(request)) is not None:
            response.headers["Access-Control-Allow-Origin"] = allowed
            response.headers["Access-Control-Expose-Headers"] = EXPOSED
