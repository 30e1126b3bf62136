"""The application: routes, one error shape, request ids, cross-origin rules.

Source: API.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog
from quart import Response, current_app
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from calculet_trio.api.auth import authorize
from calculet_trio.api.board import BoardRoutes
from calculet_trio.api.cors import CrossOrigin
from calculet_trio.api.envelope import ServiceConnection, ServiceRequest, current
from calculet_trio.api.errors import http_error, is_defect, plain
from calculet_trio.api.json_reply import error_reply
from calculet_trio.api.llama import LlamaRoutes, MetricsPage
from calculet_trio.api.openai import OpenAIRoutes
from calculet_trio.api.settings import ApiSettings
from calculet_trio.settings.key_ring import KeyRing
from calculet_trio.shell.service import Service

log = structlog.get_logger("api")


class ServiceApp(QuartTrio):
    """Quart with our request and our handling of one; it has no start or end of its own."""

    asgi_http_class = ServiceConnection
    request_class = ServiceRequest


def create_app(
    service: Service, settings: ApiSettings, *, metrics: MetricsPage, keys: Callable[[], KeyRing] = KeyRing
) -> QuartTrio:
    """The service socket's application.

    Args:
        service: the daemon, as a surface sees it.
        settings: the bounds.
        metrics: the ``Accept`` header → the page of ``/metrics`` and its content type.
        keys: the keys of now; none by default, for everybody who can reach the socket.
    """
    app = ServiceApp("calculet_trio.api", static_folder=None, template_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = settings.request.body_bytes
    app.config["BODY_TIMEOUT"] = settings.connection.body_s
    # Quart would answer with a redirect, which is a page of HTML.
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False
    app.register_blueprint(OpenAIRoutes(service, settings).blueprint())
    app.register_blueprint(LlamaRoutes(service, settings, metrics).blueprint())
    app.register_blueprint(BoardRoutes(service, settings).blueprint())
    app.register_error_handler(Exception, _told)
    _register_envelope(app, CrossOrigin(settings.cors_origins), keys)
    return app


def _register_envelope(app: QuartTrio, cross_origin: CrossOrigin, keys: Callable[[], KeyRing]) -> None:
    @app.before_request
    async def admit() -> Response | None:
        preflight = cross_origin.preflight(current())  # carries no key, and says nothing
        if preflight is None:
            current().credential = authorize(keys, path=current().path, headers=current().headers)
        return preflight

    @app.after_request
    async def mark(response: Response) -> Response:
        response.headers["x-request-id"] = current().id
        cross_origin.mark(current(), response)
        return response


def _limits() -> Mapping[int, str]:
    """What Quart itself holds a body to, by the status of its refusal."""
    config = current_app.config
    return {408: f"{config['BODY_TIMEOUT']:g} s", 413: f"{config['MAX_CONTENT_LENGTH']} bytes"}


async def _told(error: Exception) -> Response:
    """Whatever a handler raised, Quart's own pages included, in our shape."""
    if isinstance(error, HTTPException):
        status = error.code or 500
        methods = error.valid_methods if isinstance(error, MethodNotAllowed) else None
        allow = {"Allow": ", ".join(sorted(methods))} if methods else {}
        return error_reply(plain(status, limit=_limits().get(status, ""), headers=allow))
    if is_defect(error):
        log.error("request_defect", path=current().path, exc_info=error)
    return error_reply(http_error(error))
