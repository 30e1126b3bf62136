"""Faults: wraps any runtime and makes it fail, by seed and rate or by script.

Source: SPEC section 9 (S §14, §16); S §17.3; A §12.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

import attrs
import numpy as np

from calculet_trio.core.events import FaultReason
from calculet_trio.core.fault_kinds import FaultKind
from calculet_trio.core.jobs import EngineId, Job
from calculet_trio.ids import GenerationId, LaneId, SequenceId
from calculet_trio.runtimes.pace import Pace
from calculet_trio.runtimes.port import (
    Allocated,
    DeviceInfo,
    DeviceStatus,
    Finished,
    GoldenResult,
    Logits,
    MemoryUse,
    ModelDescription,
    NotAllocated,
    NotSubmitted,
    Runtime,
    Submitted,
    Ticket,
    Unknown,
)

SUBMIT: Final = (FaultKind.DEVICE_BUSY,)
ALLOCATE: Final = (FaultKind.NO_CAPACITY,)
RELEASE: Final = (FaultKind.UNCONFIRMED,)
STATUS: Final = (FaultKind.BAD_STATUS,)
GOLDEN: Final = (FaultKind.GOLDEN_MISMATCH,)
RESET: Final = (FaultKind.RESET_FAILED,)
WAIT: Final = tuple(kind for kind in FaultKind if kind not in (*SUBMIT, *ALLOCATE, *RELEASE, *STATUS, *GOLDEN, *RESET))
"""The kinds that each call may have."""

MIXED: Final[Mapping[FaultKind, float]] = {
    FaultKind.DEVICE_BUSY: 0.01,
    FaultKind.SLOW: 0.01,
    FaultKind.OUTPUT_ERROR: 0.0001,  # a reply is hundreds of jobs: about one in fifty is lost by it
    FaultKind.STATUS_ANOMALY: 0.0002,
    FaultKind.COUNTER_ANOMALY: 0.0002,
    FaultKind.NO_CAPACITY: 0.05,
}
"""Rates per call: what a board in use does, and the service survives without losing the device."""

HARSH: Final[Mapping[FaultKind, float]] = {
    **MIXED,
    FaultKind.DEVICE_BUSY: 0.05,
    FaultKind.OUTPUT_ERROR: 0.003,
    FaultKind.STATUS_ANOMALY: 0.001,
    FaultKind.COUNTER_ANOMALY: 0.001,
    FaultKind.NO_CAPACITY: 0.2,
    FaultKind.UNCONFIRMED: 0.002,
    FaultKind.LOSE_LANE: 0.001,
    FaultKind.TIMEOUT: 0.0003,
    FaultKind.CCU_FAULT: 0.0003,
    FaultKind.SLOW_DRAIN: 0.0002,
    FaultKind.WRONG_COMPLETION: 0.0002,
    FaultKind.DUPLICATE_COMPLETION: 0.0002,
    FaultKind.LATE_COMPLETION: 0.0002,
    FaultKind.STUCK: 0.0001,
    FaultKind.PCIE_ERROR: 0.0001,
    FaultKind.UNKNOWN_DMA: 0.0001,
    FaultKind.DEVICE_LOST: 0.0001,
    FaultKind.RESET_FAILED: 0.1,
}
"""With losses of lanes and of the whole device."""


class FaultPlan(Protocol):
    """Decides when something goes wrong."""

    def draw(self, kinds: tuple[FaultKind, ...]) -> FaultKind | None:
        """The fault of this call, of those that it may have."""


class Rates:
    """Each kind of fault at its own rate per call, from a seed."""

    def __init__(self, rates: Mapping[FaultKind, float], *, seed: int) -> None:
        self._rates = rates
        self._rng = np.random.default_rng(seed)
        self._likely: dict[tuple[FaultKind, ...], list[tuple[FaultKind, float]]] = {}

    def draw(self, kinds: tuple[FaultKind, ...]) -> FaultKind | None:
        likely = self._likely.get(kinds)
        if likely is None:  # once for each kind of call, since calls are many and most kinds have no rate
            likely = self._likely[kinds] = [(kind, self._rates[kind]) for kind in kinds if kind in self._rates]
        if not likely:
            return None
        point = self._rng.random()
        for kind, rate in likely:
            point -= rate
            if point < 0:
                return kind
        return None


@attrs.frozen
class Planned:
    """The ``nth`` call (from 1) that may have it has this fault."""

    fault: FaultKind
    nth: int


class Plan:
    """Named faults at named calls."""

    def __init__(self, planned: Iterable[Planned]) -> None:
        self._planned = {(each.fault, each.nth) for each in planned}
        self._calls: Counter[FaultKind] = Counter()

    def draw(self, kinds: tuple[FaultKind, ...]) -> FaultKind | None:
        self._calls.update(kinds)
        return next((kind for kind in kinds if (kind, self._calls[kind]) in self._planned), None)


_ENDS_WAIT: Final = {
    FaultKind.CCU_FAULT: FaultReason.CCU_FAULT,
    FaultKind.PCIE_ERROR: FaultReason.PCIE_ERROR,
    FaultKind.UNKNOWN_DMA: FaultReason.UNKNOWN_DMA,
    FaultKind.DEVICE_LOST: FaultReason.DEVICE_LOST,
}
_ANOMALIES: Final = {
    FaultKind.STATUS_ANOMALY: FaultReason.STATUS_ANOMALY,
    FaultKind.COUNTER_ANOMALY: FaultReason.COUNTER_ANOMALY,
}
_SLOW_S: Final = 0.25
_LATE_S: Final = 600.0
"""After the timeout: longer than anybody lets a runtime overrun it."""
_STUCK_S: Final = 1e7
_NOBODYS: Final = Ticket(-1)


class FaultyRuntime:
    """See `calculet_trio.runtimes.port.Runtime` for every method.

    Args:
        inner: what works.
        plan: when it does not.
        pace: the clock by which waits are slow or stuck.

    Attributes:
        happened: how often each fault has come about.
    """

    def __init__(self, inner: Runtime, plan: FaultPlan, pace: Pace) -> None:
        self._inner = inner
        self._plan = plan
        self._pace = pace
        self._is_lost = False
        self._jobs: dict[Ticket, Job] = {}
        self._last: dict[EngineId, Finished] = {}
        self.happened: Counter[FaultKind] = Counter()

    def open(self) -> DeviceInfo:
        return self._inner.open()

    def configure(self, generation: GenerationId, package: Path) -> None:
        self._inner.configure(generation, package)

    def inspect(self, generation: GenerationId) -> ModelDescription:
        return self._inner.inspect(generation)

    def warm_up(self, generation: GenerationId) -> None:
        self._inner.warm_up(generation)

    def golden(self, generation: GenerationId) -> GoldenResult:
        if self._draw(GOLDEN) is not None:
            return GoldenResult(False, "says something else than was recorded")
        return self._inner.golden(generation)

    def can_allocate(self, generation: GenerationId, sequences: int) -> bool:
        return self._inner.can_allocate(generation, sequences)

    def allocate(self, generation: GenerationId, lane: LaneId, tokens: int) -> Allocated | NotAllocated:
        if self._is_lost:
            return NotAllocated(FaultReason.DEVICE_LOST)
        if self._draw(ALLOCATE) is not None:
            return NotAllocated(FaultReason.NO_CAPACITY)
        return self._inner.allocate(generation, lane, tokens)

    def release(self, generation: GenerationId, lane: LaneId, sequence: SequenceId) -> bool:
        if self._is_lost or self._draw(RELEASE) is not None:
            return False
        return self._inner.release(generation, lane, sequence)

    def remove_tail(self, generation: GenerationId, sequence: SequenceId, tokens: int) -> bool:
        if self._is_lost or self._draw(RELEASE) is not None:
            return False
        return self._inner.remove_tail(generation, sequence, tokens)

    def submit(self, engine: EngineId, job: Job) -> Submitted | NotSubmitted:
        if self._is_lost:
            return NotSubmitted(FaultReason.DEVICE_LOST)
        if self._draw(SUBMIT) is not None:
            return NotSubmitted(FaultReason.DEVICE_BUSY)
        taken = self._inner.submit(engine, job)
        if isinstance(taken, Submitted):
            self._jobs[taken.ticket] = job
        return taken

    def wait(self, engine: EngineId, ticket: Ticket, timeout_s: float) -> Finished | Unknown:
        job = self._jobs.pop(ticket)
        fault = self._draw_for(engine, job)
        bound_s = self._pace.now() + timeout_s
        if fault in _ENDS_WAIT:
            self._is_lost = self._is_lost or fault is FaultKind.DEVICE_LOST
            return Unknown(_ENDS_WAIT[fault])
        if fault in (FaultKind.TIMEOUT, FaultKind.STUCK):
            self._pace.pass_until(bound_s if fault is FaultKind.TIMEOUT else bound_s + _STUCK_S)
            return Unknown(FaultReason.TIMEOUT)
        if fault is FaultKind.DUPLICATE_COMPLETION:
            return self._last[engine]
        outcome = self._inner.wait(engine, ticket, timeout_s)
        if isinstance(outcome, Unknown):
            return outcome
        self._last[engine] = outcome
        return outcome if fault is None else self._spoil(outcome, fault, job, bound_s=bound_s)

    def memory(self) -> MemoryUse:
        return self._inner.memory()

    def status(self) -> DeviceStatus:
        if self._is_lost:
            return DeviceStatus(False, "lost")
        if self._draw(STATUS) is not None:
            return DeviceStatus(False, "not well")
        return self._inner.status()

    def unload(self, generation: GenerationId) -> bool:
        return self._inner.unload(generation)

    def reset_configuration(self) -> bool:
        if self._is_lost or self._draw(RESET) is not None:
            return False
        self._jobs.clear()
        self._last.clear()
        return self._inner.reset_configuration()

    def close(self) -> None:
        self._inner.close()

    def _draw(self, kinds: tuple[FaultKind, ...]) -> FaultKind | None:
        fault = self._plan.draw(kinds)
        if fault is not None:
            self.happened[fault] += 1
        return fault

    def _draw_for(self, engine: EngineId, job: Job) -> FaultKind | None:
        """The fault of a wait; None where it cannot come about: one lane has nobody to talk across to."""
        fault = self._plan.draw(WAIT)
        if fault is FaultKind.CROSS_TALK and len(job.lanes) < 2:
            return None
        if fault is FaultKind.DUPLICATE_COMPLETION and engine not in self._last:
            return None
        if fault is not None:
            self.happened[fault] += 1
        return fault

    def _spoil(self, outcome: Finished, fault: FaultKind, job: Job, *, bound_s: float) -> Finished:
        match fault:
            case FaultKind.SLOW:
                self._pace.pass_until(self._pace.now() + _SLOW_S)
            case FaultKind.SLOW_DRAIN:
                self._pace.pass_until(bound_s)
            case FaultKind.LATE_COMPLETION:
                self._pace.pass_until(bound_s + _LATE_S)
            case FaultKind.STATUS_ANOMALY | FaultKind.COUNTER_ANOMALY:
                return attrs.evolve(outcome, anomaly=_ANOMALIES[fault])
            case FaultKind.OUTPUT_ERROR:
                return Finished(None, failed=FaultReason.OUTPUT_ERROR)
            case FaultKind.WRONG_COMPLETION:
                return attrs.evolve(outcome, ticket=_NOBODYS)
            case FaultKind.LOSE_LANE:
                return attrs.evolve(outcome, lost_lanes=frozenset({job.lanes[0].lane}))
            case FaultKind.CROSS_TALK if outcome.logits is not None:
                first, second = job.lanes[0].index, job.lanes[1].index
                return attrs.evolve(outcome, logits=_swapped(outcome.logits, first, second), candidates=None)
        return outcome


def _swapped(logits: Logits, first: int, second: int) -> Logits:
    swapped = logits.copy()
    swapped[[first, second]] = logits[[second, first]]
    return swapped
