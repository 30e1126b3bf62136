"""Connections: hypercorn's HTTP, our socket, our limits, our way to close.

Source: ARCHITECTURE.md "Lifetimes"; reports B50, B64, B65.
"""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

import structlog
import trio
from hypercorn.config import Config
from hypercorn.logging import Logger
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.utils import wrap_app
from quart_trio import QuartTrio

from calculet_trio.api import strict_json
from calculet_trio.api.connection import READ_BYTES, Connection
from calculet_trio.api.errors import plain
from calculet_trio.api.settings import ApiSettings, ConnectionLimits

log = structlog.get_logger("api")

REFUSE_S: Final = 1.0
"""For all of a refused connection; it counts in no limit, so it must not last."""

BODY_MESSAGES: Final = 10
"""Parts of a body between parser and handler; the handler takes them at once."""


class Waitable(Protocol):
    """What tells the server to close: a `trio.Event`, or anything like it."""

    async def wait(self) -> object:
        """Return when the time has come."""


class QuietLogger(Logger):
    """hypercorn's log, of which only its unexpected errors are ours to tell; access is counted by metrics."""

    def __init__(self, config: Config) -> None:
        self.access_logger = self.error_logger = None

    async def exception(self, message: str, *args: Any, **kwargs: Any) -> None:
        log.error("handler_defect", said=message, exc_info=sys.exception())


async def serve(
    app: QuartTrio,
    listening: socket.socket,
    *,
    settings: ApiSettings,
    shutdown: Waitable,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until ``shutdown``, then close the listener at once and let replies that run come to their end.

    Connections that work on after ``graceful_s`` are cut.

    Args:
        app: see `calculet_trio.api.app.create_app`.
        listening: see `calculet_trio.api.listening.bound_socket`; closed at the end.
        settings: the bounds.
        shutdown: waited for; what it returns is not looked at.
        task_status: told when connections are accepted.

    **Cancellation**: may lose replies; every handler is cancelled and every socket closed.
    """
    limits = settings.connection
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
    context = WorkerContext(None)
    accept = _Acceptor(app, context, limits).accept
    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as accepting:
            accepting.start_soon(partial(trio.serve_listeners, accept, [listener], handler_nursery=connections))
            task_status.started()
            await shutdown.wait()
            accepting.cancel_scope.cancel()  # which closes the listener
        await context.terminated.set()
        connections.cancel_scope.deadline = trio.current_time() + limits.graceful_s


class _Acceptor:
    """Turns accepted streams into connections, up to a bound.

    Args:
        app: the application.
        context: hypercorn's; says whether the server is closing.
        limits: see `ConnectionLimits`.
    """

    def __init__(self, app: QuartTrio, context: WorkerContext, limits: ConnectionLimits) -> None:
        self._app = wrap_app(app, wsgi_max_body_size=0, mode="asgi")
        self._config = _config(limits)
        self._context = context
        self._limits = limits
        self._open = 0

    async def accept(self, stream: trio.SocketStream) -> None:
        if self._open >= self._limits.connections:
            await self._refuse(stream)
            return
        self._open += 1
        try:
            await Connection(self._app, self._config, self._context, self._limits, stream).run()
        finally:
            self._open -= 1

    async def _refuse(self, stream: trio.SocketStream) -> None:
        body = strict_json.encode(plain(503, limit=str(self._limits.connections)).as_object())
        head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json; charset=utf-8\r\n"
        head += f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
        log.info("too_many_connections", limit=self._limits.connections)
        async with stream:
            with trio.move_on_after(REFUSE_S), suppress(trio.BrokenResourceError):
                await stream.send_all((head + body).encode())
                await stream.send_eof()
                await stream.receive_some(READ_BYTES)  # closing on unread bytes would take our answer back


def _config(limits: ConnectionLimits) -> Config:
    """What hypercorn's protocol reads; limits on time are `Connection`'s."""
    config = Config()
    config.h11_max_incomplete_size = limits.head_bytes
    config.max_app_queue_size = BODY_MESSAGES
    config.include_server_header = False
    config.logger_class = QuietLogger
    return config
