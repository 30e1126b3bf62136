"""Watchdog: a thread that ends a process which makes no progress, whoever manages it, or nobody.

A service manager's own watchdog does the same and more (it also ends a process that is stopped, or that never lets
another thread run); this one is there without a manager, too, says where every thread stands, and leaves with
the code that asks for a restart. What is slow is no reason: progress is what `calculet_trio.shell.progress` calls so.

Source: SPEC section 9 ("watchdog"); report B58.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable
from typing import Final

import structlog
import trio

EX_TEMPFAIL: Final = 75
"""As ``cli.exit_codes`` has it: start a fresh process."""
_LOOKS: Final = 16
"""In each watchdog's time. Looks are counted, not seconds: a process that was stopped for an hour has missed one."""

_log = structlog.get_logger(__name__)


def leave(hindrance: str) -> None:
    """End the process at once; the stacks of all threads go to standard error."""
    _log.error("watchdog", hindrance=hindrance)
    sys.stderr.flush()
    faulthandler.dump_traceback(all_threads=True)
    os._exit(EX_TEMPFAIL)


class Watchdog:
    """Calls ``bite`` when ``hindrance`` has not said None for ``within_s``, or could not be asked for so long.

    Args:
        within_s: the longest time without progress.
        hindrance: what stands in the way of progress, or None; asked in the event loop.
        bite: called in the watchdog's thread; does not come back in a daemon.
    """

    def __init__(
        self, within_s: float, hindrance: Callable[[], str | None], *, bite: Callable[[str], None] = leave
    ) -> None:
        self._look_s = within_s / _LOOKS
        self._hindrance = hindrance
        self._bite = bite
        self._over = threading.Event()
        self._hungry_looks = 0
        self._last_seen = "the event loop does not run"

    async def run(self) -> None:
        """Watch until cancelled.

        **Cancellation**: atomic; the thread ends by itself.
        """
        watch = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        watch.start()
        try:
            while True:
                seen = self._hindrance()
                if seen is None:
                    self._hungry_looks = 0
                self._last_seen = seen or "the event loop does not run"
                await trio.sleep(self._look_s)
        finally:
            self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(self._look_s):
            self._hungry_looks += 1
            if self._hungry_looks > _LOOKS:
                self._bite(self._last_seen)
                return
