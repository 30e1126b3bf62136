"""EnginePair: whether both engines get new jobs, or one.

Ping/pong is worth having while it is beyond doubt. Any doubt about it sends new jobs to one engine, one at a time;
what is in flight still drains. It comes back when an operator says so, or after a probation without any doubt; while
one of them is in quarantine there is no pair that either could bring back.

Source: SPEC section 9 (S §14: the conditions of automatic degradation; S §19 M2: the gate).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from calculet_trio.core.effects import Effect, PairDegraded, PairRestored
from calculet_trio.core.events import Doubt, FaultReason, PairDoubted, PairTrusted
from calculet_trio.core.faults import FAULTS
from calculet_trio.core.health import EngineHealth
from calculet_trio.core.jobs import DecodeJob, EngineId, JobRecord
from calculet_trio.core.policy import ExecutorPolicy
from calculet_trio.core.transition import Machine, Symbol, Table

BUSY_IN_A_ROW: Final = 3
"""Refusals as busy, one after another, that are a doubt: an engine that the core knows to be idle is not busy."""

STEPS: Final = 200
"""Decode steps whose P99 is held against the gate, and that it is held against."""

SLOW_IN_A_ROW: Final = 2
"""Sets of `STEPS` past the gate, one after another, that are a doubt: one alone may be another process's doing."""


class PairState(Symbol):
    BOTH = "both"
    ONE = "one"


class PairEvent(Symbol):
    DOUBT = "doubt"
    RESTORE = "restore"
    PROVE = "prove"


PAIR_TABLE: Final = Table[PairState, PairEvent](
    "engine pair",
    PairState,
    {
        PairState.BOTH: {PairEvent.DOUBT: PairState.ONE},
        PairState.ONE: {
            PairEvent.DOUBT: PairState.ONE,  # its probation begins anew
            PairEvent.RESTORE: PairState.BOTH,  # an operator's word
            PairEvent.PROVE: PairState.BOTH,  # so many jobs without a doubt
        },
    },
)


class EnginePair(Machine[PairState, PairEvent]):
    """The device's engines, as far as new jobs may use two of them.

    Args:
        policy: the gate, and how long a probation is.
        engines: those that may be used, and whether they are in quarantine.
        jobs_at_most: jobs in flight that engines and budget allow; with 1 there is no pair, and nothing to doubt.
        effects: where its changes are told.

    Attributes:
        doubt: the last one; None while there was none, or since it was restored.
    """

    __slots__ = (
        "_beside",
        "_busy",
        "_clean_jobs",
        "_effects",
        "_engines",
        "_jobs_at_most",
        "_policy",
        "_slow",
        "_steps",
        "doubt",
    )

    table = PAIR_TABLE

    def __init__(
        self,
        policy: ExecutorPolicy,
        engines: Mapping[EngineId, EngineHealth],
        *,
        jobs_at_most: int,
        effects: list[Effect],
    ) -> None:
        super().__init__(PairState.BOTH)
        self._policy = policy
        self._engines = engines
        self._jobs_at_most = jobs_at_most
        self._effects = effects
        self._busy = 0
        self._clean_jobs = 0
        self._steps: dict[str, deque[float]] = {}  # by submodel, of steps that had the device to themselves
        self._beside: dict[str, list[float]] = {}  # of steps beside another
        self._slow = 0
        self.doubt: Doubt | None = None

    @property
    def jobs_at_most(self) -> int:
        """Jobs in flight that a new one may make."""
        if self._jobs_at_most == 1 or self._state is PairState.ONE or self.quarantined:
            return 1
        return self._jobs_at_most

    @property
    def quarantined(self) -> tuple[EngineId, ...]:
        """Engines that nothing but the device's reset brings back."""
        return tuple([engine for engine, health in self._engines.items() if not health.usable])

    @property
    def mode(self) -> str:
        """``single``, ``ping_pong`` or ``degraded``."""
        if self._jobs_at_most == 1:
            return "single"
        return "ping_pong" if self.jobs_at_most > 1 else "degraded"

    def doubted(self, doubt: Doubt) -> None:
        """Something speaks against two engines at a time."""
        if self._jobs_at_most == 1:
            return
        was = self._state
        self.advance(PairEvent.DOUBT)
        self.doubt = doubt
        self._clean_jobs = self._busy = self._slow = 0
        self._beside.clear()
        if was is PairState.BOTH:
            self._effects.append(PairDegraded(doubt))

    def told(self, event: PairDoubted | PairTrusted) -> None:
        """Somebody outside the core doubts it, or an operator trusts it again."""
        if isinstance(event, PairDoubted):
            self.doubted(event.doubt)
        elif self._state is PairState.ONE and not self.quarantined:
            self._return(PairEvent.RESTORE)

    # ---- what jobs say of it --------------------------------------------------------------------

    def faulted(self, reason: FaultReason) -> None:
        """A job ended otherwise than by finishing."""
        doubt = FAULTS[reason].doubt
        if reason is FaultReason.DEVICE_BUSY:
            self._busy += 1
            doubt = Doubt.DEVICE_BUSY if self._busy >= BUSY_IN_A_ROW else None
        if doubt is not None:
            self.doubted(doubt)

    def finished(self, record: JobRecord, taken_s: float) -> None:
        """A job finished as it should."""
        if self._jobs_at_most == 1:
            return
        self._busy = 0
        beside = record.beside
        if isinstance(record.job, DecodeJob) and beside is not None:
            self._measure(record.job.profile.submodel, taken_s, beside=beside)
        if self._state is PairState.ONE and self._policy.probation_jobs is not None and not self.quarantined:
            self._clean_jobs += 1
            if self._clean_jobs >= self._policy.probation_jobs:
                self._return(PairEvent.PROVE)

    def _measure(self, submodel: str, taken_s: float, *, beside: bool) -> None:
        """Hold the P99 of steps beside another against that of steps alone.

        Two in flight serve twice the sequences, so a step may take twice as long before anybody's tokens come later
        than one engine would bring them.
        """
        if not beside:
            self._steps.setdefault(submodel, deque(maxlen=STEPS)).append(taken_s)
            return
        steps = self._beside.setdefault(submodel, [])
        steps.append(taken_s)
        if len(steps) < STEPS:
            return
        alone = self._steps.get(submodel, ())
        allowed_s = 2 * _p99(alone) * (1 + self._policy.p99_gate) if len(alone) == STEPS else None
        is_slow = allowed_s is not None and _p99(steps) > allowed_s
        steps.clear()
        self._slow = self._slow + 1 if is_slow else 0
        if self._slow >= SLOW_IN_A_ROW:
            self.doubted(Doubt.P99_REGRESSION)

    def _return(self, event: PairEvent) -> None:
        self.advance(event)
        self.doubt = None
        self._effects.append(PairRestored(event.value))


def _p99(values: deque[float] | list[float] | tuple[float, ...]) -> float:
    """The largest of all but the slowest hundredth."""
    return sorted(values)[len(values) - 1 - len(values) // 100]
