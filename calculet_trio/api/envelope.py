"""What surrounds a request's fields: its body's type and bytes, its id, its deadline, and how long it is held.

A `ServiceRequest` has a ``held`` stack: what a handler enters there is left when the reply has been sent, or
when it cannot be any more. A stream is made in the handler and sent after it, so the handler's own ``async with``
would be too short for it.

Source: API.md "Conventions that clients rely on"; reports B32, B34; CONVENTIONS.md traps 2, 6, 11.
"""

from __future__ import annotations

import re
import secrets
from contextlib import AsyncExitStack
from typing import Any, Final, cast

import trio
from hypercorn.typing import ASGISendCallable
from quart import Request, request
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioRequest
from werkzeug.datastructures import Headers

from calculet_trio.api import strict_json
from calculet_trio.api.auth import EVERYBODY
from calculet_trio.api.errors import MediaTypeRefused
from calculet_trio.api.schemas import Asker
from calculet_trio.api.settings import RequestLimits
from calculet_trio.errors import InvalidRequest, ModelNotFound, ServiceUnavailable
from calculet_trio.shell.service import ServedModel, Service

REQUEST_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")
JSON_TYPE: Final = re.compile(r"application/(?:json|[a-z0-9!#$&^_.+-]+\+json)", re.IGNORECASE)
UTF_8: Final = frozenset({"utf-8", "utf8", "us-ascii"})
DEADLINE_MS_MAX: Final = 24 * 3600 * 1000
DEADLINE_HEADER: Final = "x-request-deadline-ms"
_LOADING_S: Final = 2.0
"""When to ask again for a model that is being loaded: a small one takes so long."""

DECODED_AT_ONCE_BYTES: Final = 64 * 2**10
"""Larger bodies are decoded in a thread: a hop costs less than they do."""

_decoders: Final = trio.CapacityLimiter(2)
"""More threads at this would not make it faster, and would keep the interpreter from everybody else for longer."""


class ServiceRequest(TrioRequest):
    """A request, the contexts held for it, and its id.

    Args:
        held: left after the reply, by the task that runs the handler.
        id: the client's ``x-request-id`` where it is bounded and visible, else one of ours.
        credential: whom the request's key proves; set before any handler runs.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.held = AsyncExitStack()
        self.credential = EVERYBODY
        asked = self.headers.get("x-request-id", "")
        self.id = asked if REQUEST_ID.fullmatch(asked) else f"req-{secrets.token_hex(12)}"


class ServiceConnection(TrioASGIHTTPConnection):
    """quart-trio's handling of one request, with two changes: what is held, and no time limit on sending.

    Its own limit of 60 s cuts a long stream without a word; the deadline is the core's. A client that leaves
    cancels the handler, whether or not it has begun to answer.
    """

    async def handle_request(  # type: ignore[override]  # quart-trio's own, which Quart's has no nursery for
        self, nursery: trio.Nursery, request: Request, send: ASGISendCallable
    ) -> None:
        """Answer, with the contexts that the handler entered kept open until the last byte is sent."""
        async with cast("ServiceRequest", request).held:
            response = await self.app.handle_request(request)
            await self._send_response(send, response)
        nursery.cancel_scope.cancel()


def current() -> ServiceRequest:
    """The request that this task handles."""
    return cast("ServiceRequest", request)


async def body_object(limits: RequestLimits) -> dict[str, Any]:
    """The request's body, which must be a JSON object, declared as such.

    Raises:
        MediaTypeRefused: another type, charset or coding is declared, or none.
        calculet_trio.errors.InvalidRequest: it is not what it is declared to be.
        werkzeug.exceptions.HTTPException: it is too large (413) or too slow (408).

    **Cancellation**: atomic.
    """
    _refuse_media_type(current().headers)
    raw = await current().get_data(False, False, False)  # neither cached, nor text, nor a form
    if len(raw) <= DECODED_AT_ONCE_BYTES:
        return strict_json.decode(raw, limits)
    return await trio.to_thread.run_sync(strict_json.decode, raw, limits, limiter=_decoders)


def _refuse_media_type(headers: Headers) -> None:
    declared = headers.get("Content-Type", "")
    media_type, _, parameters = declared.partition(";")
    if not JSON_TYPE.fullmatch(media_type.strip()):
        shown = declared[:64] or "nothing"
        raise MediaTypeRefused(f"the body is declared as {shown!r}; send Content-Type: application/json")
    for parameter in parameters.split(";"):
        name, _, value = parameter.strip().partition("=")
        if name.lower() == "charset" and value.strip('"').lower() not in UTF_8:
            raise MediaTypeRefused(f"the body's charset is declared as {value[:32]!r}; send UTF-8")
    coding = headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise MediaTypeRefused(f"the body's Content-Encoding is {coding[:32]!r}; send it uncompressed")


def asker() -> Asker:
    """Who asks, and until when; raises `InvalidRequest` for a deadline that is none."""
    headers = current().headers
    return Asker(tenant=current().credential.tenant, deadline_s=_deadline_s(headers.get(DEADLINE_HEADER)))


def _deadline_s(value: str | None) -> float | None:
    if value is None:
        return None
    # The length is checked before int(), which takes quadratic time.
    if not (value.isascii() and value.isdigit() and len(value) <= 9 and 0 < int(value) <= DEADLINE_MS_MAX):
        fault = f"must be an integer between 1 and {DEADLINE_MS_MAX}"
        raise InvalidRequest(f"{DEADLINE_HEADER} {fault}", param=DEADLINE_HEADER)
    return int(value) / 1e3


def model_named(service: Service, name: object, *, given: bool) -> ServedModel:
    """The model that serves a request.

    Args:
        service: the daemon, as a surface sees it.
        name: the body's ``model``, of whatever type.
        given: whether the body has that field; without it the only served model is meant.

    Raises:
        calculet_trio.errors.ModelNotFound: no such alias.
        calculet_trio.errors.ServiceUnavailable: nothing is served now, or this one is being loaded.
        calculet_trio.errors.InvalidRequest: no string, or missing where several are served.
    """
    if given and not isinstance(name, str):
        raise InvalidRequest("model must be a string", param="model")
    models = service.models()
    for model in models:
        if model.alias == name or (not given and len(models) == 1):
            return model
    nobody_loads_it = isinstance(name, str) and not service.is_coming(name)
    if not (nobody_loads_it and service.health().status == "loading"):  # which speaks of other names
        refuse_unless_ok(service)
    if isinstance(name, str):
        if service.is_coming(name):
            raise ServiceUnavailable("the model is being loaded", code="loading", retry_after_s=_LOADING_S)
        raise ModelNotFound(name, served=tuple(model.alias for model in models))
    raise InvalidRequest("model must be given where several are served", param="model")


def refuse_unless_ok(service: Service) -> None:
    """Raises `ServiceUnavailable` with the state's name as its code, unless the service is ok."""
    health = service.health()
    if health.status != "ok":
        reason = f": {health.reason}" if health.reason else ""
        raise ServiceUnavailable(f"the service is {health.status}{reason}", code=health.status)
