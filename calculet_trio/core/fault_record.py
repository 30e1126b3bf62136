"""What must be remembered of faults when the process that met them is gone: pure records, with times as arguments.

Times are those of the wall clock (Unix seconds), since they outlive the process and the machine's start. A time that
lies in the future was written before the clock was set back, and counts as now: a budget is never forgotten by it.

Source: SPEC section 9 ("Budgets, quarantine and history survive restarts").
"""

from __future__ import annotations

from typing import Final

import attrs

from calculet_trio.core.events import FaultReason
from calculet_trio.core.jobs import EngineId

SCHEMA: Final = "calculet-faults/v1"

FAULTS_MAX: Final = 256
"""Faults kept, the latest: more than a person reads, and some tens of kilobytes."""
RESETS_MAX: Final = 128
"""Resets kept; more than the largest budget, which is 100 in 10 minutes."""
RESET_WINDOW_S: Final = 600.0
"""The 10 minutes of ``recovery.max_resets_per_10min``."""


@attrs.frozen(kw_only=True)
class Quarantine:
    """How much nobody may use, because a job may still write to it; buffers until the process ends, sets of a job's."""

    jobs: int = 0
    lanes: int = 0
    buffers: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.jobs or self.lanes or self.buffers)


@attrs.frozen(kw_only=True)
class FaultRecord:
    """One fault.

    Args:
        happened_unix_s: when.
        reason: of the closed set.
        engine: whose job it was; None if it was no job's.
        quarantine: what was put out of use.
        next_step: what was tried next, in the word of the table of faults.
    """

    happened_unix_s: float
    reason: FaultReason
    engine: EngineId | None = None
    quarantine: Quarantine = Quarantine()
    next_step: str = ""


@attrs.frozen(kw_only=True)
class ResetRecord:
    """One reset of the device; written before it begins, so that one which ends the process counts.

    Args:
        began_unix_s: when.
        succeeded: whether the device was ready again after it; None while nobody knows.
        took_s: from its beginning until then.
    """

    began_unix_s: float
    succeeded: bool | None = None
    took_s: float | None = None


@attrs.frozen(kw_only=True)
class Holding:
    """A process has the device, or ended without giving it back.

    Args:
        since_unix_s: when it took it.
        lost_to: why it left without giving it back; None for a process that runs, or was killed.
        quarantine: what it left behind.
    """

    since_unix_s: float
    lost_to: FaultReason | None = None
    quarantine: Quarantine = Quarantine()


@attrs.frozen(kw_only=True)
class FaultMemory:
    """Everything that is remembered, bounded.

    Args:
        faults: oldest first.
        resets: oldest first.
        restarts: processes that left because of a fault, ever.
        holding: who has the device; None if it was given back in order.
    """

    schema: str = SCHEMA
    faults: tuple[FaultRecord, ...] = ()
    resets: tuple[ResetRecord, ...] = ()
    restarts: int = 0
    holding: Holding | None = None

    def with_fault(self, fault: FaultRecord) -> FaultMemory:
        return attrs.evolve(self, faults=(*self.faults, fault)[-FAULTS_MAX:])

    def with_reset_begun(self, now_unix_s: float) -> FaultMemory:
        return attrs.evolve(self, resets=(*self.resets, ResetRecord(began_unix_s=now_unix_s))[-RESETS_MAX:])

    def with_reset_ended(self, *, succeeded: bool, took_s: float) -> FaultMemory:
        """The latest reset has come to this."""
        assert self.resets, "a reset is written down before it begins"
        ended = attrs.evolve(self.resets[-1], succeeded=succeeded, took_s=took_s)
        return attrs.evolve(self, resets=(*self.resets[:-1], ended))

    def held(self, since_unix_s: float) -> FaultMemory:
        return attrs.evolve(self, holding=Holding(since_unix_s=since_unix_s))

    def given_back(self) -> FaultMemory:
        return attrs.evolve(self, holding=None)

    def left_behind(self, fault: FaultRecord) -> FaultMemory:
        """The process leaves because of ``fault`` and cannot give the device back."""
        since_s = fault.happened_unix_s if self.holding is None else self.holding.since_unix_s
        holding = Holding(since_unix_s=since_s, lost_to=fault.reason, quarantine=fault.quarantine)
        return attrs.evolve(self.with_fault(fault), holding=holding, restarts=self.restarts + 1)

    def settled_at(self, now_unix_s: float) -> FaultMemory:
        """The same with no reset in the future."""
        resets = tuple(attrs.evolve(reset, began_unix_s=min(reset.began_unix_s, now_unix_s)) for reset in self.resets)
        return attrs.evolve(self, resets=resets)

    def reset_ages_s(self, now_unix_s: float) -> tuple[float, ...]:
        """How long ago each reset that still counts began, oldest first."""
        ages_s = (max(0.0, now_unix_s - reset.began_unix_s) for reset in self.resets)
        return tuple(age_s for age_s in ages_s if age_s < RESET_WINDOW_S)
