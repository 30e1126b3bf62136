"""Notifier: tells the service manager how the daemon fares, so that it waits, restarts and reports rightly.

    loading    STATUS, and EXTEND_TIMEOUT_USEC again and again: the start takes as long as it makes progress
    serving    READY once a chat would be answered; then WATCHDOG at half of WATCHDOG_USEC, while there is progress,
               and STATUS whenever a model is being loaded beside it
    stopping   STOPPING, with the reason and the time it may take; the watchdog goes on

A manager that is absent or unreachable is never an error: what could not be delivered is tried again, and the
daemon serves.

Source: sd_notify(3), sd_watchdog_enabled(3), systemd.service(5).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

import structlog
import trio

_log = structlog.get_logger(__name__)

REPEAT_S: Final = 5.0
"""Between two words while loading, and before what did not arrive is said again."""
EXTENSION_S: Final = 30.0
"""How much longer a start that makes progress may take, said every `REPEAT_S`; a busy machine may skip a few."""
_RETRIES_PER_WATCHDOG: Final = 16
"""A beat that was withheld is tried again after this part of the watchdog's time: half of it later is too late."""
_STATUS_CHARACTERS_MAX: Final = 200


class NotifySocket:
    """The manager's datagram socket. Nobody waits for it, and nothing fails with it.

    Args:
        address: of ``NOTIFY_SOCKET``: an absolute path, or an abstract name that begins with ``@``.
    """

    def __init__(self, address: str) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._is_reachable = True

    def send(self, *assignments: str) -> bool:
        """One datagram of ``NAME=value`` lines; whether it was taken. What becomes unreachable is logged once."""
        try:
            self._socket.sendto("\n".join(assignments).encode(), self._address)
        except (OSError, ValueError) as error:  # ValueError: a zero byte in a path
            if self._is_reachable:
                _log.warning("service_manager_unreachable", error=str(error))
            self._is_reachable = False
        else:
            self._is_reachable = True
        return self._is_reachable

    def close(self) -> None:
        self._socket.close()


def notify_socket(environ: Mapping[str, str]) -> NotifySocket | None:
    """The socket that the manager named; None if there is no manager, or it speaks no Unix sockets."""
    address = environ.get("NOTIFY_SOCKET", "")
    return NotifySocket(address) if address[:1] in ("/", "@") and len(address) > 1 else None


def watchdog_s(environ: Mapping[str, str], pid: int) -> float | None:
    """The time after which the manager takes a silent process ``pid`` for dead; None if it does not watch."""
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    try:
        period_us = int(environ.get("WATCHDOG_USEC", ""))
    except ValueError:
        return None
    return period_us / 1e6 if period_us > 0 else None


class _Phase(Enum):
    LOADING = "loading"
    SERVING = "serving"
    STOPPING = "stopping"


class Notifier:
    """The daemon's voice towards its service manager.

    Args:
        manager: where to speak; None if nobody listens.
        watchdog_s: see `watchdog_s`.
        hindrance: why there is no progress now, or None if there is; asked once a beat.
        doing: one line on how far a load is; None while nothing is being loaded.
    """

    def __init__(
        self,
        manager: NotifySocket | None,
        *,
        watchdog_s: float | None,
        hindrance: Callable[[], str | None],
        doing: Callable[[], str | None],
    ) -> None:
        self._manager = manager
        self._watchdog_s = watchdog_s
        self._hindrance = hindrance
        self._doing = doing
        self._phase = _Phase.LOADING
        self._status = self._shown = ""
        self._undelivered: tuple[str, ...] = ()
        self._is_hindered = False

    @classmethod
    def from_environment(cls, *, hindrance: Callable[[], str | None], doing: Callable[[], str | None]) -> Notifier:
        """A notifier to the manager that started this process, if one did."""
        period_s = watchdog_s(os.environ, os.getpid())
        return cls(notify_socket(os.environ), watchdog_s=period_s, hindrance=hindrance, doing=doing)

    # ---- changes, told at once ------------------------------------------------------------------

    def ready(self, status: str) -> None:
        """A chat request would be answered. A daemon that is leaving already does not become ready any more."""
        if self._phase is _Phase.LOADING:
            self._enter(_Phase.SERVING, "READY=1", status=status)

    def stopping(self, status: str, *, within_s: float) -> None:
        """The daemon leaves, in ``within_s`` at most. Said again, the newer word holds."""
        self._enter(_Phase.STOPPING, "STOPPING=1", _extension(within_s), status=status)

    # ---- what is said again and again -----------------------------------------------------------

    async def run(self) -> None:
        """Keep the manager informed until cancelled; returns at once if there is none.

        **Cancellation**: atomic.
        """
        if self._manager is None:
            return
        while True:
            self.beat()
            await trio.sleep(self._pause_s())

    def close(self) -> None:
        """Say no more."""
        if self._manager is not None:
            self._manager.close()

    def beat(self) -> None:
        """Say what is due now: what was not taken before, and that there is progress, if there is."""
        if self._undelivered:
            self._announce(*self._undelivered)
        hindrance = self._hindrance()
        if hindrance is not None:
            if not self._is_hindered:
                _log.error("no_progress", hindrance=hindrance)
            self._is_hindered = True
            self._show(f"no progress: {hindrance}")
            return
        self._is_hindered = False
        if self._phase is _Phase.LOADING:
            self._shown = self._doing() or "loading"
            self._say(_status(self._shown), _extension(EXTENSION_S))
            return
        self._show((self._doing() if self._phase is _Phase.SERVING else None) or self._status)
        if self._watchdog_s is not None:
            self._say("WATCHDOG=1")

    def _pause_s(self) -> float:
        if self._watchdog_s is None:
            return REPEAT_S
        if self._is_hindered or self._undelivered:
            return min(REPEAT_S, self._watchdog_s / _RETRIES_PER_WATCHDOG)
        beat_s = self._watchdog_s / 2
        return min(REPEAT_S, beat_s) if self._phase is _Phase.LOADING else beat_s

    def _enter(self, phase: _Phase, *assignments: str, status: str) -> None:
        self._phase = phase
        self._status = self._shown = status
        self._announce(*assignments, _status(status))

    def _announce(self, *assignments: str) -> None:
        """Say it now, and again at every beat until it was taken."""
        self._undelivered = () if self._say(*assignments) else assignments

    def _show(self, status: str) -> None:
        """Say what is new; what was not taken is still new at the next beat."""
        if status != self._shown and self._say(_status(status)):
            self._shown = status

    def _say(self, *assignments: str) -> bool:
        return self._manager is None or self._manager.send(*assignments)


def _extension(seconds: float) -> str:
    return f"EXTEND_TIMEOUT_USEC={max(1, round(seconds * 1e6))}"


def _status(text: str) -> str:
    """One line: a line break would begin another assignment."""
    line = "".join(character if character.isprintable() else " " for character in text)
    return f"STATUS={line[:_STATUS_CHARACTERS_MAX]}"
