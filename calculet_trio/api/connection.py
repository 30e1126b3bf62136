"""One connection: who reads, who parses, who writes, and every limit on how long that may take.

hypercorn's own stops reading while a request is answered if another one has arrived, so that it does not see the
client leave; writes inside a shield, so that a stalled reader can hold a shutdown up; and lets an error of
one connection reach all. Here one task always reads, another parses, writing is bounded by progress, and errors
end where they began.

Source: CONVENTIONS.md traps 1, 3, 4, 5; reports B44, B49, B50, B64, B65.
"""

from __future__ import annotations

import math
import os
import socket
import struct
from typing import Final

import structlog
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState
from hypercorn.utils import parse_socket_addr

from calculet_trio.api.http1 import Http1Protocol
from calculet_trio.api.settings import ConnectionLimits

log = structlog.get_logger("api")

READ_BYTES: Final = 64 * 2**10
WRITE_BYTES: Final = 64 * 2**10
"""Written at a time, so that a slow reader shows progress within the write-stall limit."""

RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class Connection:
    """One accepted connection, from its first byte to its close.

    Args:
        app: the application, as hypercorn wraps it.
        config: hypercorn's, for its protocol.
        context: hypercorn's, shared by all connections: it knows whether the server is closing.
        limits: how long and how much.
        stream: the accepted connection.
    """

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        limits: ConnectionLimits,
        stream: trio.SocketStream,
    ) -> None:
        self._app = app
        self._config = config
        self._context = context
        self._limits = limits
        self._stream = stream
        self._writing = trio.Lock()
        self._closing = trio.Event()
        self._is_idle = True
        self._reading = trio.CancelScope()
        self._end_by(trio.current_time() + limits.idle_s)

    async def run(self) -> None:
        """Serve until either side ends it. Raises nothing but cancellation.

        **Cancellation**: may lose what is half written; handlers are cancelled and the socket closed.
        """
        try:
            await self._serve()
        except* OSError:
            pass  # the peer is gone; its handlers have been told
        except* Exception:
            log.exception("connection_defect")
        finally:
            await trio.aclose_forcefully(self._stream)

    async def _serve(self) -> None:
        family = self._stream.socket.family
        client = parse_socket_addr(family, self._stream.socket.getpeername())
        server = parse_socket_addr(family, self._stream.socket.getsockname())
        arrived, parsed = trio.open_memory_channel[bytes](self._limits.read_ahead_chunks)
        state = ConnectionState({})
        async with TaskGroup() as handlers:
            self._protocol = Http1Protocol(
                self._app, self._config, self._context, handlers, state, False, client, server, self._perform
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._parse, parsed)
                nursery.start_soon(self._close_with_server)
                nursery.start_soon(self._say_end)
                await self._read(arrived)
                nursery.cancel_scope.cancel()
            await self._protocol.end()  # the handlers, which are waited for now, learn of it

    async def _read(self, arrived: trio.MemorySendChannel[bytes]) -> None:
        """Read until the peer ends or a limit is met, whatever is being answered meanwhile."""
        with self._reading:
            while data := await self._receive():
                if self._is_closing:
                    continue  # read so that the peer can read our answer, and thrown away
                if self._is_idle and self._protocol.is_head_pending:
                    self._end_by(min(self._reading.deadline, trio.current_time() + self._limits.head_s))
                try:
                    arrived.send_nowait(data)
                except trio.WouldBlock:
                    if self._protocol.is_request_whole:
                        break  # more requests in advance than are kept: no client we know does this
                    await arrived.send(data)

    async def _receive(self) -> bytes:
        try:
            return bytes(await self._stream.receive_some(READ_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    async def _parse(self, arrived: trio.MemoryReceiveChannel[bytes]) -> None:
        """Hand over what arrived; waits inside the protocol while an earlier request is answered."""
        async for data in arrived:
            await self._protocol.take(data)

    async def _close_with_server(self) -> None:
        """End an idle connection when the server closes; one that is not ends after its reply."""
        await self._context.terminated.wait()
        if self._is_idle:
            self._reading.cancel()

    @property
    def _is_closing(self) -> bool:
        return self._closing.is_set()

    def _end_by(self, deadline_s: float) -> None:
        # The reader's scope is the connection's clock: what ends the reading ends the connection.
        self._reading.deadline = deadline_s

    # ---- what the protocol wants done ---------------------------------------------------------------

    async def _perform(self, event: Event) -> None:
        if isinstance(event, RawData):
            await self._write(event.data)
        elif isinstance(event, Updated):
            self._is_idle = event.idle
            self._end_by(trio.current_time() + self._limits.idle_s if event.idle else math.inf)
        elif isinstance(event, Closed):
            self._close()

    async def _write(self, data: bytes) -> None:
        """Write all of it, or end the connection: half a message is worth nothing."""
        await trio.lowlevel.checkpoint_if_cancelled()  # who is being cut has nothing more to say
        if not self._writing.locked():
            data = data[self._write_at_once(data) :]
            if not data:
                return
        async with self._writing:  # a free lock is taken before anybody else runs, so nothing comes in between
            for start in range(0, len(data), WRITE_BYTES):
                with trio.move_on_after(self._limits.write_stall_s) as stall:
                    try:
                        await self._stream.send_all(data[start : start + WRITE_BYTES])
                    except (trio.BrokenResourceError, trio.ClosedResourceError):
                        self._reading.cancel()
                        return
                if stall.cancelled_caught:
                    log.info("client_stalled", write_stall_s=self._limits.write_stall_s)
                    # Else the kernel would keep what the peer does not read, and go on offering it.
                    self._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                    self._reading.cancel()
                    return

    def _write_at_once(self, data: bytes) -> int:
        """How much the kernel takes without anybody waiting: nearly always all, and three task switches less.

        What it does not take, and whatever is wrong, is met again by who may wait.
        """
        try:
            return os.write(self._stream.socket.fileno(), data)
        except OSError:
            return 0

    def _close(self) -> None:
        if not self._is_closing:
            # A client that has sent all it wanted needs no time to be heard out.
            linger_s = 0.0 if self._protocol.is_request_whole else self._limits.linger_s
            self._end_by(trio.current_time() + linger_s)
            self._closing.set()

    async def _say_end(self) -> None:
        """When the connection is to close, end our half of it; the reader then lingers.

        A task of its own: the one that wants it closed is often a handler, which is cancelled by just that.
        """
        await self._closing.wait()
        await self._protocol.end()
        async with self._writing:
            try:
                await self._stream.send_eof()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._reading.cancel()
