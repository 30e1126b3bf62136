"""Custody of the device: taken when it is quiet, given back when nothing of ours is on it, or left behind.

Source: SPEC section 9; `calculet_trio.shell.fault_history`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import structlog
import trio

from calculet_trio.core.events import Doubt, Event, FaultReason, PairDoubted
from calculet_trio.core.fault_record import FaultRecord
from calculet_trio.core.jobs import EngineId
from calculet_trio.core.snapshot import CoreSnapshot
from calculet_trio.runtimes.port import DeviceStatus
from calculet_trio.shell.blocking import BlockingRunner
from calculet_trio.shell.fault_history import FaultHistory
from calculet_trio.shell.fault_notes import quarantine_of
from calculet_trio.shell.quiet import see_quiet

LAST_WRITE_S: Final = 5.0
"""A disk that takes longer for a few kilobytes does not keep a process that is to be replaced."""
RESTART: Final = "restart"
"""The next step that a record names when the process leaves."""

_log = structlog.get_logger(__name__)


class Custody:
    """One process's hold on the device, written down before and after.

    Args:
        history: what is remembered.
        look: asks the device for its status; see `calculet_trio.shell.quiet.see_quiet`.
        quiet_s: how long the device may take to become quiet.
        runner: how the disk's blocking calls run.
        post: tells the core; after a fault that ended a process, new jobs begin on one engine.

    Attributes:
        waits_for: why the device is not configured yet, for people; None if nothing is waited for.
    """

    def __init__(
        self,
        history: FaultHistory,
        look: Callable[[], Awaitable[DeviceStatus]],
        *,
        quiet_s: float,
        runner: BlockingRunner,
        post: Callable[[Event], None],
    ) -> None:
        self._history = history
        self._look = look
        self._quiet_s = quiet_s
        self._runner = runner
        self._post = post
        self._limiter = trio.CapacityLimiter(1)
        self._left: FaultRecord | None = None
        self.waits_for: str | None = None

    async def take(self) -> None:
        """Return once the device may be configured, and the history says that we have it.

        Raises:
            calculet_trio.errors.DeviceNotQuiet: it must be quiet and is not.

        **Cancellation**: between two looks at the device, or after the history was written.
        """
        if self._history.was_left_to_a_fault:
            self._post(PairDoubted(Doubt.RECOVERY))
        if self._history.must_be_quiet:
            _log.warning("device_must_be_quiet", reason=self._history.why_quiet, within_s=self._quiet_s)
            self.waits_for = f"waiting for a quiet device: {self._history.why_quiet}"
            await see_quiet(self._look, within_s=self._quiet_s)
            self.waits_for = None
            _log.info("device_quiet")
        await self._runner.run_whole(self._history.begin, self._limiter)

    def give_back(self) -> None:
        """The device was closed in order. Blocks on the disk."""
        self._history.give_back()
        self._history.close()

    def lose(self, reason: FaultReason, engine: EngineId | None, counts: CoreSnapshot) -> None:
        """The process will leave; the first reason is the one that is remembered."""
        if self._left is None:
            self._left = FaultRecord(
                happened_unix_s=self._history.now_unix_s(),
                reason=reason,
                engine=engine,
                quarantine=quarantine_of(counts),
                next_step=RESTART,
            )

    async def leave_behind(self) -> None:
        """Write down why the process leaves, in `LAST_WRITE_S` at most: clients have been told by now.

        **Cancellation**: may lose the record; that the device is held stands in the file since `take`.
        """
        assert self._left is not None, "lose() says why"
        with trio.move_on_after(LAST_WRITE_S) as patience:
            await self._runner.run(partial(self._history.leave_behind, self._left), self._limiter)
        if patience.cancelled_caught:
            _log.error("fault_record_not_written", within_s=LAST_WRITE_S)
        else:
            left = self._left.quarantine
            _log.error("device_left_behind", reason=self._left.reason.value, jobs=left.jobs, lanes=left.lanes)
