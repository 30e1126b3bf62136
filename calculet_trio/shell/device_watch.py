"""DeviceWatch: asks the device for status and memory now and then, so that nobody else need ask it.

What is shown of the device is the last reading: a request for it never reaches the device, however often it comes.

Source: SPEC section 11, 15; API.md ``GET /calrt/device``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import structlog
import trio

from calculet_trio.core.device_reading import DeviceReading
from calculet_trio.core.events import Doubt, Event, FaultReason, PairDoubted
from calculet_trio.errors import DeviceLost
from calculet_trio.runtimes.port import Runtime

LOOK_EVERY_S: Final = 5.0
CALL_S: Final = 60.0
"""Status and memory answer at once, by the port's contract; one that has not by then never will."""

_log = structlog.get_logger(__name__)


class DeviceWatch:
    """Holds the last reading.

    Args:
        runtime: the device.
        call: runs one blocking device call to its end, beside the jobs.
        post: tells the core of a device that says that it is not well.

    Attributes:
        reading: None until the device was asked.
    """

    def __init__(self, runtime: Runtime, call: Callable[..., Awaitable[Any]], *, post: Callable[[Event], None]) -> None:
        self._runtime = runtime
        self._call = call
        self._post = post
        self.reading: DeviceReading | None = None

    async def run(self) -> None:
        """Read every `LOOK_EVERY_S` until cancelled; a device that does not answer any more is lost.

        **Cancellation**: drains the call that is under way.
        """
        while True:
            try:
                read_s, before = trio.current_time(), self.reading
                self.reading = await self._call(partial(self._read, read_s), bound_s=CALL_S)
            except DeviceLost:  # who is to be told has been
                return
            self._doubt(before)
            await trio.sleep(LOOK_EVERY_S)

    def _doubt(self, before: DeviceReading | None) -> None:
        """A device that is not well is doubted as long as it says so, and its fault is told when it begins."""
        if self.reading is None or self.reading.is_ok:
            return
        is_known = before is not None and not before.is_ok
        self._post(PairDoubted(Doubt.STATUS_ANOMALY, None if is_known else FaultReason.STATUS_ANOMALY))

    def _read(self, read_s: float) -> DeviceReading | None:
        try:
            status, memory = self._runtime.status(), self._runtime.memory()
        except Exception as error:  # noqa: BLE001 - a runtime that raises here has told us nothing, and harmed nobody
            _log.warning("device_not_read", error=f"{type(error).__name__}: {error}")
            return self.reading
        return DeviceReading(
            read_s=read_s,
            is_ok=status.ok,
            word=status.word,
            jobs=status.jobs,
            counters=dict(status.counters),
            used_bytes=memory.used_bytes,
            total_bytes=memory.total_bytes,
        )
