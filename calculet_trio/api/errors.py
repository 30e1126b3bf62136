"""The one table from errors to HTTP: status, type, code and headers.

Source: API.md "Conventions that clients rely on"; the ``openai`` SDK retries 408, 409, 429 and 5xx unless
``x-should-retry: false`` is sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import attrs

from calculet_trio.errors import (
    CalculetError,
    CapacityExceeded,
    ContextLengthExceeded,
    GenerationFailed,
    InvalidRequest,
    KeyRefused,
    ModelNotFound,
    NotPermitted,
    ServiceUnavailable,
)

RETRY_AFTER_DEFAULT_S: Final = 1
"""Said where the queue has no estimate: soon enough for a person, late enough not to be a storm."""


class MediaTypeRefused(CalculetError):
    """The body is not declared as plain JSON: 415."""


@attrs.frozen
class HttpError:
    """An error as it goes over the wire.

    Args:
        status: HTTP status.
        message: one sentence for a person.
        type: OpenAI's family of errors.
        param: path of the offending field, or None.
        code: machine-readable code, or None.
        headers: beyond those that every reply has.
        counts: further members of the error object.
    """

    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = attrs.field(factory=dict)
    counts: Mapping[str, int] = attrs.field(factory=dict)

    def as_object(self) -> dict[str, Any]:
        """The error shape of every 4xx and 5xx, and of the error event of a stream."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": {**error, **self.counts}}


# Type, code and message of HTTP's own statuses: an unknown path, a wrong verb, a body that is too large or slow.
PLAIN_STATUSES: Final[Mapping[int, tuple[str, str, str]]] = {
    400: ("invalid_request_error", "bad_request", "the request is not valid HTTP"),
    404: ("invalid_request_error", "not_found", "there is nothing at this path; GET /openapi.json says what there is"),
    405: ("invalid_request_error", "method_not_allowed", "this path does not take this method"),
    408: ("invalid_request_error", "request_timeout", "the body took too long to arrive"),
    413: ("invalid_request_error", "body_too_large", "the body is too large"),
    415: (
        "invalid_request_error",
        "unsupported_media_type",
        "send the body as application/json, in UTF-8, uncompressed",
    ),
    431: ("invalid_request_error", "headers_too_large", "the request's line and headers are too large"),
    500: ("server_error", "internal_error", "an internal error; the service's log has the details"),
    501: ("invalid_request_error", "not_implemented", "this transfer coding is not supported"),
    503: ("server_error", "too_many_connections", "too many connections are open; try again soon"),
    505: ("invalid_request_error", "http_version", "speak HTTP/1.1 or HTTP/1.0"),
}


def plain(status: int, *, limit: str = "", headers: Mapping[str, str] | None = None) -> HttpError:
    """An error that HTTP itself knows; a status without a row of its own is told as 400 or 500 is.

    Args:
        status: of HTTP.
        limit: what would have been taken, with its unit, where that was the reason.
        headers: beyond those that every reply has.
    """
    kind, code, message = PLAIN_STATUSES.get(status, PLAIN_STATUSES[400 if status < 500 else 500])
    extra = {"x-should-retry": "false"} if status >= 500 and status != 503 else {}
    told = f"{message}; the limit is {limit}" if limit else message
    return HttpError(status, told, kind, code=code, headers={**extra, **(headers or {})})


def unwrapped(error: BaseException) -> BaseException:
    """The error inside a group of one, as nurseries make them; of several, the first that we raised on purpose."""
    while isinstance(error, BaseExceptionGroup):
        named = [one for one in error.exceptions if isinstance(one, CalculetError)]
        error = (named or error.exceptions)[0]
    return error


def _retry_after(seconds: float | None) -> dict[str, str]:
    whole = RETRY_AFTER_DEFAULT_S if seconds is None else max(1, math.ceil(seconds))
    return {"Retry-After": str(whole)}


def http_error(error: BaseException) -> HttpError:
    """The table. Anything that is not in it is a defect of ours and says nothing about itself to the client."""
    match unwrapped(error):
        case ContextLengthExceeded() as e:
            counts = {"n_prompt_tokens": e.prompt_tokens, "n_prompt_tokens_max": e.limit_tokens}
            return HttpError(400, e.message, "invalid_request_error", e.param, e.code, counts=counts)
        case InvalidRequest() as e:
            return HttpError(400, e.message, "invalid_request_error", e.param, e.code)
        case KeyRefused() as e:
            headers = {"WWW-Authenticate": "Bearer"}
            return HttpError(401, str(e), "authentication_error", code="invalid_api_key", headers=headers)
        case NotPermitted() as e:
            return HttpError(403, str(e), "permission_error", code="not_permitted")
        case ModelNotFound() as e:
            return HttpError(404, str(e), "invalid_request_error", "model", "model_not_found")
        case MediaTypeRefused() as e:
            return HttpError(415, str(e), "invalid_request_error", code="unsupported_media_type")
        case CapacityExceeded() as e:
            return HttpError(429, e.message, "rate_limit_error", code=e.code, headers=_retry_after(e.retry_after_s))
        case ServiceUnavailable() as e:
            return HttpError(503, e.message, "server_error", code=e.code, headers=_retry_after(e.retry_after_s))
        case GenerationFailed(retryable=True) as e:
            return HttpError(503, str(e), "server_error", code=e.reason, headers=_retry_after(None))
        case GenerationFailed() as e:
            return HttpError(500, str(e), "server_error", code=e.reason, headers={"x-should-retry": "false"})
    return plain(500)


def is_defect(error: BaseException) -> bool:
    """Whether the error is not one that this package raises on purpose."""
    return not isinstance(unwrapped(error), CalculetError)
