"""A real admin socket in front of operations that a test decides about."""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import asynccontextmanager, closing

import attrs
import trio

from calculet_trio.admin import server
from calculet_trio.admin.app import create_app
from calculet_trio.admin.audit import AuditLog
from calculet_trio.admin.jobs import JobDesk
from calculet_trio.admin.listening import bound_socket, held
from calculet_trio.errors import ConfigurationRefused, PackageError
from calculet_trio.shell.blocking import ThreadRunner
from calculet_trio.shell.operations import ModelStatus


class Operations:
    """Says what it was asked; a load waits at a gate."""

    def __init__(self):
        self.asked = []
        self.gate = trio.Event()

    def models(self):
        return (ModelStatus(alias="m", state="ready", generation=1, phases_s={"configuring": 0.25}),)

    async def load(self, alias, package, report):
        self.asked.append(("load", alias, package))
        report("checking")
        await self.gate.wait()
        if package == "bad":
            raise PackageError("the package is bad", hint="build it again")
        report("ready")
        return {"generation": 2}

    async def unload(self, alias, report):
        self.asked.append(("unload", alias))
        return {}

    async def rollback(self, alias, report):
        self.asked.append(("rollback", alias))
        return {}

    async def reset_device(self, report):
        self.asked.append(("reset",))
        return {}

    async def trust_engines(self):
        self.asked.append(("trust",))
        return {"put_aside": "recovery"}

    async def begin_drain(self):
        self.asked.append(("drain",))

    async def reload(self):
        raise ConfigurationRefused("service.yaml:3: weight is -1; allowed: 0.001 to 1000")

    async def trace(self, seconds):
        self.asked.append(("trace", seconds))
        return {"traceEvents": []}

    async def debug_dump(self, *, with_prompts):
        self.asked.append(("dump", with_prompts))
        return {"path": "dump-1.json", "bytes": 2}


@attrs.frozen
class Office:
    operations: Operations
    socket: object
    audit: AuditLog

    async def ask(self, method, path, body=None):
        """Status and object of one call, from a thread, as a command makes it."""
        return await trio.to_thread.run_sync(self._ask, method, path, body)

    def _ask(self, method, path, body):
        connection = UnixConnection(self.socket)
        try:
            raw = body if isinstance(body, (bytes, type(None))) else json.dumps(body)
            connection.request(method, path, raw)
            reply = connection.getresponse()
            text = reply.read()
            lines = [json.loads(line) for line in text.splitlines()]
            return reply.status, lines if path.endswith("/events") else lines[0]
        finally:
            connection.close()


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=20)
        self._path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@asynccontextmanager
async def opened(tmp_path):
    """The admin plane around the block."""
    operations = Operations()
    path = tmp_path / "run" / "admin.sock"
    async with trio.open_nursery() as nursery:
        audit = AuditLog(tmp_path / "audit")
        app = create_app(operations, JobDesk(nursery), audit, ThreadRunner())
        listening = bound_socket(path)
        with closing(audit), held(listening):
            await nursery.start(server.serve, app, listening, trio.Event())
            try:
                yield Office(operations, path, audit)
            finally:
                nursery.cancel_scope.cancel()
