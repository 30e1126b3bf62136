"""DeviceRecovery: resets the device when the core asks for it, and says what came of it.

    ResetDevice ─▶ reset by the runtime's contract ─▶ quiet? ─▶ configure, warm up, golden of every model ─▶ DeviceReset

The core asks only once nothing is out. Whatever does not go as it must is a reason, and the core gives the device up.
An operator asks the core (`ResetAsked`), and follows how it goes.

Source: SPEC section 9 (S §14, §16).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import attrs
import structlog
import trio

from calculet_trio.core.effects import ResetDevice, ResetRefused
from calculet_trio.core.events import DeviceReset, Event, FaultReason, ResetAsked
from calculet_trio.errors import DeviceLost, DeviceNotQuiet, OperationFailed, OperationRefused
from calculet_trio.runtimes.port import Runtime
from calculet_trio.shell.blocking import BlockingRunner
from calculet_trio.shell.fault_history import FaultHistory
from calculet_trio.shell.operations import Report
from calculet_trio.shell.residents import Residents

_log = structlog.get_logger(__name__)


@attrs.define(eq=False)
class _Order:
    """An operator's reset, on its way."""

    report: Report
    ended: trio.Event = attrs.field(factory=trio.Event)
    refused: str | None = None
    failed: FaultReason | None = None
    took_s: float = 0.0

    def end(self, *, refused: str | None = None, failed: FaultReason | None = None, took_s: float = 0.0) -> None:
        if not self.ended.is_set():
            self.refused, self.failed, self.took_s = refused, failed, took_s
            self.ended.set()


class DeviceRecovery:
    """One device's resets.

    Args:
        runtime: the device.
        models: puts its models back.
        call: runs one blocking device call to its end.
        see_quiet: returns once the device is quiet, or raises `calculet_trio.errors.DeviceNotQuiet`.
        post: tells the core.
        history: remembers resets for later processes.
        runner: how the history's writes run.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        models: Residents,
        call: Callable[[Callable[[], Any]], Awaitable[Any]],
        see_quiet: Callable[[], Awaitable[None]],
        post: Callable[[Event], None],
        history: FaultHistory,
        runner: BlockingRunner,
    ) -> None:
        self._runtime = runtime
        self._models = models
        self._call = call
        self._see_quiet = see_quiet
        self._post = post
        self._history = history
        self._runner = runner
        self._asked = trio.open_memory_channel[ResetDevice](1)  # the core asks again only after it has heard
        self._order: _Order | None = None

    async def order(self, report: Report) -> Mapping[str, Any]:
        """Have the device reset by an operator's word; returns when it serves again.

        Returns:
            ``reset_s``: how long it took once nothing was out any more.

        Raises:
            calculet_trio.errors.OperationRefused: it is not made now; nothing has changed.
            calculet_trio.errors.OperationFailed: the device was given up, and the process leaves.

        **Cancellation**: safe; a reset that the core has been asked for is seen through without the operator.
        """
        if self._order is not None:
            raise OperationRefused("another operator has the device reset", hint="wait for its end")
        self._order = order = _Order(report)
        report.past_return()
        report("asking; what is out is let end, and nothing new is begun")
        self._post(ResetAsked())
        try:
            await order.ended.wait()
        finally:
            self._order = None
        if order.refused is not None:
            raise OperationRefused(f"the device is not reset: {order.refused}")
        if order.failed is not None:
            raise OperationFailed(
                f"the device was given up: {order.failed.value}", hint="the service manager starts the daemon anew"
            )
        return {"reset_s": round(order.took_s, 3)}

    def refused(self, effect: ResetRefused) -> None:
        """The core makes no reset for the operator."""
        if self._order is not None:
            self._order.end(refused=effect.why)

    def given_up(self, reason: FaultReason) -> None:
        """Nobody resets the device any more."""
        if self._order is not None:
            self._order.end(failed=reason)

    def begin(self, effect: ResetDevice) -> None:
        """Have the device reset; never waits."""
        self._asked[0].send_nowait(effect)

    async def run(self) -> None:
        """Reset the device whenever that is asked for, until cancelled.

        **Cancellation**: drains: a begun device call is ended first, and its outcome goes nowhere.
        """
        async for effect in self._asked[1]:
            await self._reset(effect.reason)

    async def _reset(self, reason: FaultReason) -> None:
        _log.warning("device_reset_begun", reason=reason.value)
        self._say("nothing is out; resetting the device")
        began_s = trio.current_time()
        limiter = trio.CapacityLimiter(1)
        await self._runner.run_whole(self._history.reset_begun, limiter)
        failed = await self._try_to_reset()
        took_s = trio.current_time() - began_s
        ended = partial(self._history.reset_ended, succeeded=failed is None, took_s=took_s)
        await self._runner.run_whole(ended, limiter)
        if failed is None:
            _log.warning("device_reset", reason=reason.value, took_s=round(took_s, 3))
        else:
            _log.error("device_reset_failed", reason=reason.value, failed=failed.value, took_s=round(took_s, 3))
        self._post(DeviceReset(failed))
        if self._order is not None:
            self._order.end(failed=failed, took_s=took_s)

    def _say(self, line: str) -> None:
        if self._order is not None:
            self._order.report(line)

    async def _try_to_reset(self) -> FaultReason | None:
        """Why the device must not be used, or None."""
        try:
            return await self._models.restore(self._made_quiet)
        except DeviceNotQuiet as error:
            _log.error("device_not_quiet", error=str(error))
            return FaultReason.UNKNOWN_DMA
        except DeviceLost:
            return FaultReason.STUCK_WAIT
        except Exception:  # noqa: BLE001 - a runtime that raises here has told us that it is not as it was
            _log.exception("device_reset_raised")
            return FaultReason.RUNTIME_ERROR

    async def _made_quiet(self) -> FaultReason | None:
        if not await self._call(self._runtime.reset_configuration):
            return FaultReason.UNKNOWN_DMA
        self._say("making sure that it is quiet")
        await self._see_quiet()
        self._say("putting its models back, each proven by its golden run")
        return None
