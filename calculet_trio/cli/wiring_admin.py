"""Wiring of the admin plane: its socket, its audit log, and what a debug dump tells.

Source: API.md (two sockets); SPEC section 15.
"""

from __future__ import annotations

import platform
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import structlog
import trio

from calculet_trio import __version__
from calculet_trio.admin.audit import AuditLog
from calculet_trio.admin.jobs import JobDesk
from calculet_trio.admin.listening import bound_socket, held
from calculet_trio.cli import paths
from calculet_trio.cli.configuration_view import effective_json
from calculet_trio.cli.state_files import audit_directory, state_directory
from calculet_trio.cli.surface_code import imported
from calculet_trio.errors import Unavailable
from calculet_trio.observe.dumps import CLEAN_EVERY_S, DumpDirectory
from calculet_trio.observe.metrics import ServiceMetrics
from calculet_trio.settings.configuration import Configuration
from calculet_trio.shell.blocking import ThreadRunner
from calculet_trio.shell.control import DumpSources
from calculet_trio.shell.daemon import AdminServer
from calculet_trio.shell.operations import Operations

_log = structlog.get_logger(__name__)


def dump_directory(configuration: Configuration) -> Path:
    """Where debug dumps go."""
    return state_directory(configuration) / "dumps"


def admin_server(configuration: Configuration) -> AdminServer:
    """The admin socket, at the configured place or this user's.

    Where the configuration names none and another daemon of this user has the usual one, this daemon has none:
    somebody tries something beside the service.
    """
    named = configuration.service.admin_socket
    path = paths.admin_socket() if named is None else configuration.path(named)

    async def serve(operations: Operations, stop: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
        try:
            listening, audit = await trio.to_thread.run_sync(partial(_open, path, configuration))
        except Unavailable as unavailable:
            if named is not None:
                raise
            _log.warning("no_admin_socket", reason=str(unavailable))
            task_status.started()
            return
        with closing(audit), held(listening):
            task_status.started()
            create_app, serve_admin = await imported(_admin_code)
            async with trio.open_nursery() as jobs:
                jobs.start_soon(let_old_dumps_go, DumpDirectory(dump_directory(configuration)))
                app = create_app(operations, JobDesk(jobs), audit, ThreadRunner())
                await serve_admin(app, listening, stop)
                jobs.cancel_scope.cancel()

    return serve


async def let_old_dumps_go(dumps: DumpDirectory) -> None:
    """Take away what is too old, at once and from time to time, for ever."""
    while True:
        try:
            await trio.to_thread.run_sync(dumps.clean)
        except OSError as error:
            _log.warning("old_dumps_stay", error=str(error))
        await trio.sleep(CLEAN_EVERY_S)


def _admin_code() -> tuple[Callable[..., Any], Callable[..., Awaitable[None]]]:
    from calculet_trio.admin.app import create_app
    from calculet_trio.admin.server import serve

    return create_app, serve


def _open(path: Path, configuration: Configuration) -> tuple[socket.socket, AuditLog]:
    listening = bound_socket(path)
    try:
        return listening, AuditLog(audit_directory(configuration))
    except BaseException:
        listening.close()
        path.unlink(missing_ok=True)
        raise


def dump_sources(configuration: Configuration, metrics: ServiceMetrics) -> DumpSources:
    """What a debug dump of this daemon holds, and where it goes."""
    return DumpSources(
        directory=DumpDirectory(dump_directory(configuration)),
        about=partial(_about, configuration),
        metrics=partial(_page, metrics),
    )


def _about(configuration: Configuration) -> Mapping[str, Any]:
    return {
        "calculet_trio": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "installed": {found.name: found.version for found in distributions()},
        "configuration": effective_json(configuration),
    }


def _page(metrics: ServiceMetrics) -> str:
    page, _ = metrics.expose("")
    return page.decode()
