"""DeviceRecovery: resets the device when the core asks for it, and says what came of it.

    ResetDevice ─▶ reset by the runtime's contract ─▶ quiet? ─▶ configure, warm up, golden of every model ─▶ DeviceReset

The core asks only once nothing is out. Whatever does not go as it must is a reason, and the core gives the device up.

Source: SPEC section 9 (S §14, §16).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import structlog
import trio

from calculet_trio.core.effects import ResetDevice
from calculet_trio.core.events import (
    DeviceReset,
    Event,
    FaultReason,
    JobFailed,
    JobFinished,
    JobNotSubmitted,
    JobUnknown,
    SequenceReleased,
)
from calculet_trio.core.faults import FAULTS, Next
from calculet_trio.errors import DeviceLost, DeviceNotQuiet
from calculet_trio.runtimes.port import Runtime
from calculet_trio.shell.blocking import BlockingRunner
from calculet_trio.shell.fault_history import FaultHistory
from calculet_trio.shell.model_manager import ModelManager

_log = structlog.get_logger(__name__)


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
        models: ModelManager,
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

    def begin(self, effect: ResetDevice) -> None:
        """Have the device reset; never waits."""
        self._asked[0].send_nowait(effect)

    async def run(self) -> None:
        """Reset the device whenever that is asked for, until cancelled.

        **Cancellation**: drains: a begun device call is ended first, and its outcome goes nowhere.
        """
        async for effect in self._asked[1]:
            await self._reset(effect.reason)

    def heard(self, event: Event) -> None:
        """Write a fault that the core is being told of to the log, once."""
        match event:
            case JobUnknown(job, _, reason) | JobFailed(job, _, reason) | JobNotSubmitted(job, _, reason):
                _note(reason, job=job)
            case JobFinished(job, anomaly=reason) if reason is not None:
                _note(reason, job=job)
            case JobFinished(job, lost=lost) if lost:
                _note(FaultReason.LANE_LOST, job=job, lanes=sorted(lost))
            case SequenceReleased(_, lane, confirmed=False):
                _note(FaultReason.UNCONFIRMED_RELEASE, lane=lane)

    async def _reset(self, reason: FaultReason) -> None:
        _log.warning("device_reset_begun", reason=reason.value)
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

    async def _try_to_reset(self) -> FaultReason | None:
        """Why the device must not be used, or None."""
        try:
            if not await self._call(self._runtime.reset_configuration):
                return FaultReason.UNKNOWN_DMA
            await self._see_quiet()
            return await self._models.restore()
        except DeviceNotQuiet as error:
            _log.error("device_not_quiet", error=str(error))
            return FaultReason.UNKNOWN_DMA
        except DeviceLost:
            return FaultReason.STUCK_WAIT
        except Exception:  # noqa: BLE001 - a runtime that raises here has told us that it is not as it was
            _log.exception("device_reset_raised")
            return FaultReason.RUNTIME_ERROR


def _note(reason: FaultReason, **where: object) -> None:
    rule = FAULTS[reason]
    level = "debug" if rule.next is Next.TRY_AGAIN else "warning" if rule.next is Next.GO_ON else "error"
    getattr(_log, level)(rule.log, code=reason.value, next=rule.next.value, **where)
