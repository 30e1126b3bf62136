"""The admin socket: a Unix socket of mode 0600, and who is on the other end of each connection.

Whoever may open the socket may do what it offers: the file's mode and its directory's are the lock, the kernel's
word on the peer's process and user goes on record.

Source: API.md (two sockets); unix(7) on SO_PEERCRED; SPEC section 15.
"""

from __future__ import annotations

import socket
import struct
from functools import partial
from typing import Any, Final

import structlog
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.logging import Logger
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import LifespanState
from hypercorn.utils import wrap_app
from quart_trio import QuartTrio

from calculet_trio.admin.listening import CONNECTIONS_MAX

IDLE_S: Final = 120.0
WRITE_STALL_S: Final = 10.0

_CREDENTIALS: Final = struct.Struct("3i")

_log = structlog.get_logger("admin")


class _Silent(Logger):
    """hypercorn's own log: every call is in the audit log, and defects are told by the application."""

    def __init__(self, config: Config) -> None:
        self.access_logger = self.error_logger = None


async def serve(
    app: QuartTrio,
    listening: socket.socket,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve ``app`` until ``stop``, and let replies that run come to their end.

    Args:
        app: see `calculet_trio.admin.app.create_app`.
        listening: see `calculet_trio.admin.listening.bound_socket`.
        stop: when to close.
        task_status: told when connections are accepted.

    **Cancellation**: cuts replies that run.
    """
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
    context = WorkerContext(None)
    accept = _Admission(app, context).accept
    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as accepting:
            accepting.start_soon(partial(trio.serve_listeners, accept, [listener], handler_nursery=connections))
            task_status.started()
            await stop.wait()
            accepting.cancel_scope.cancel()
        await context.terminated.set()  # idle connections end at once


class _Admission:
    """Turns accepted streams into connections, up to a bound."""

    def __init__(self, app: QuartTrio, context: WorkerContext) -> None:
        self._app = wrap_app(app, wsgi_max_body_size=0, mode="asgi")
        self._config = Config()
        self._config.include_server_header = False
        self._config.logger_class = _Silent
        self._config.keep_alive_timeout = IDLE_S
        self._context = context
        self._open = 0

    async def accept(self, stream: trio.SocketStream) -> None:
        if self._open >= CONNECTIONS_MAX:
            _log.info("too_many_operators", limit=CONNECTIONS_MAX)
            await stream.aclose()
            return
        self._open += 1
        try:
            state = LifespanState({"peer": _peer(stream)})
            await _Connection(self._app, self._config, self._context, state, stream)  # type: ignore[arg-type]
        except* OSError:
            pass  # the peer is gone
        except* Exception:  # noqa: BLE001 — one connection's defect is not the daemon's
            _log.exception("admin_connection_defect")
        finally:
            self._open -= 1


class _Connection(TCPServer):
    """hypercorn's, but for two things.

    Its writes would wait for ever, and inside a shield, for an operator that does not read; and after one has
    left it would wait until the connection had been idle for long enough.
    """

    async def _read_data(self) -> None:
        await super()._read_data()
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        if not isinstance(event, RawData):
            await super().protocol_send(event)
            return
        async with self.send_lock:
            with trio.move_on_after(WRITE_STALL_S) as stall:
                try:
                    await self.stream.send_all(event.data)
                    return
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass
        if stall.cancelled_caught:
            await trio.aclose_forcefully(self.stream)  # the reader ends with it
        await super().protocol_send(Closed())  # its handlers learn of it


def _peer(stream: trio.SocketStream) -> dict[str, Any]:
    """The process and user on the other end, as the kernel knew them when it connected."""
    raw = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    return {"pid": pid, "uid": uid, "gid": gid}
