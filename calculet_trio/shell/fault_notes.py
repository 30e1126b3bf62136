"""FaultNotes: what went wrong and was survived, once in the log and once in the history that outlives the process.

What ends the process is written by `calculet_trio.shell.custody`; what is tried again at once, in log and metrics only.

Source: SPEC section 9; `calculet_trio.core.faults` has each fault's name in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Any, Final

import structlog
import trio

from calculet_trio.core.effects import Effect, PairDegraded, PairRestored, Quarantined, ResetDevice
from calculet_trio.core.events import Event, FaultReason
from calculet_trio.core.fault_record import FaultRecord, Quarantine
from calculet_trio.core.fault_sightings import OF_REQUESTS, seen_in_effect, seen_in_event
from calculet_trio.core.faults import FAULTS, Next
from calculet_trio.core.jobs import EngineId
from calculet_trio.core.lanes import LaneState
from calculet_trio.core.snapshot import CoreSnapshot
from calculet_trio.shell.blocking import BlockingRunner
from calculet_trio.shell.fault_history import FaultHistory

REMEMBERED_EVERY_S: Final = 60.0
"""One that comes with every job would push all others out of the history, and write to the disk without end."""

NOTHING: Final = Quarantine()

_LEVELS: Final = {Next.TRY_AGAIN: "debug", Next.GO_ON: "warning"}
"""In the log, of faults that the device goes on after."""

_log = structlog.get_logger(__name__)


class FaultNotes:
    """Writes faults down that the service goes on after.

    Args:
        history: where they are remembered, each reason at most once in `REMEMBERED_EVERY_S`.
        snapshot: the core's counts.
        runner: how the history's writes run.
    """

    def __init__(self, history: FaultHistory, *, snapshot: Callable[[], CoreSnapshot], runner: BlockingRunner) -> None:
        self._history = history
        self._snapshot = snapshot
        self._runner = runner
        self._remembered_s: dict[FaultReason, float] = {}
        self._written = trio.open_memory_channel[FaultRecord](len(FaultReason))

    def heard(self, event: Event) -> None:
        """Note a fault that the core was told of; never waits."""
        for reason, where in seen_in_event(event):
            self._note(reason, where)

    def saw(self, effect: Effect) -> None:
        """Note a fault that the core's own decision shows, or what follows from one; never waits."""
        for reason, where in seen_in_effect(effect):
            self._note(reason, where)
        match effect:
            case Quarantined(engine, reason):
                _log.error("engine_quarantined", engine=engine.value, reason=reason.value)
            case PairDegraded(doubt):
                _log.warning("ping_pong_degraded", doubt=doubt.value)
            case PairRestored(by):
                _log.info("ping_pong_restored", by=by)

    def reset_follows(self, effect: ResetDevice) -> None:
        """The device is reset because of it: it and all that was put in quarantine are remembered; never waits."""
        if effect.reason is not FaultReason.OPERATOR_RESET:
            quarantine = quarantine_of(self._snapshot())
            self._remember(effect.reason, Next.RESET, quarantine=quarantine, engine=effect.engine)

    async def run(self) -> None:
        """Write what is to be remembered, for ever.

        **Cancellation**: may lose what was not begun to be written; it is in the log.
        """
        limiter = trio.CapacityLimiter(1)
        async for record in self._written[1]:
            await self._runner.run_whole(partial(self._history.fault_happened, record), limiter)

    def _note(self, reason: FaultReason, where: Mapping[str, Any]) -> None:
        rule = FAULTS[reason]
        level = "info" if reason in OF_REQUESTS else _LEVELS.get(rule.next, "error")
        getattr(_log, level)(rule.log, code=reason.value, next=rule.next.value, **where)
        if rule.next is Next.GO_ON and reason not in OF_REQUESTS:
            self._remember(reason, rule.next)

    def _remember(
        self,
        reason: FaultReason,
        step: Next,
        *,
        quarantine: Quarantine = NOTHING,
        engine: EngineId | None = None,
    ) -> None:
        now = trio.current_time()
        if step is Next.GO_ON and now - self._remembered_s.get(reason, -inf) < REMEMBERED_EVERY_S:
            return
        self._remembered_s[reason] = now
        record = FaultRecord(
            happened_unix_s=self._history.now_unix_s(),
            reason=reason,
            engine=engine,
            quarantine=quarantine,
            next_step=step.value,
        )
        try:
            self._written[0].send_nowait(record)
        except trio.WouldBlock:
            _log.warning("fault_not_remembered", code=reason.value)


def quarantine_of(counts: CoreSnapshot) -> Quarantine:
    """What nobody may use now."""
    return Quarantine(
        jobs=counts.jobs_unknown, lanes=counts.lanes_by_state[LaneState.UNKNOWN], buffers=counts.buffers_unknown
    )
