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
from calculet_trio.core.jobs import EngineId, Job
from calculet_trio.core.transition import Symbol
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


class Fault(Symbol):
    """What may go wrong, by the call in which it does."""

    # submit
    DEVICE_BUSY = "device_busy"
    """Not taken; a later try may be."""
    # wait
    SLOW = "slow"
    """The outcome is right and comes late, within its bound."""
    OUTPUT_ERROR = "output_error"
    """The device is done, its output is unusable."""
    TIMEOUT = "timeout"
    """The wait ends by its timeout."""
    STUCK = "stuck"
    """The wait does not return, whatever its timeout."""
    CCU_FAULT = "ccu_fault"
    PCIE_ERROR = "pcie_error"
    UNKNOWN_DMA = "unknown_dma"
    DEVICE_LOST = "device_lost"
    """The wait ends at once without an answer; with the last one, every later call fails."""
    CROSS_TALK = "cross_talk"
    """Two lanes get each other's logits: nothing in the service can see that, only a checker can."""
    LOSE_LANE = "lose_lane"
    """One lane's KV is lost, the others' is whole."""
    # allocate, release, status
    NO_CAPACITY = "no_capacity"
    """An allocation is refused; a later try may not be."""
    UNCONFIRMED = "unconfirmed"
    """A release is not confirmed."""
    BAD_STATUS = "bad_status"
    """Status and counters disagree."""


SUBMIT: Final = (Fault.DEVICE_BUSY,)
ALLOCATE: Final = (Fault.NO_CAPACITY,)
RELEASE: Final = (Fault.UNCONFIRMED,)
STATUS: Final = (Fault.BAD_STATUS,)
WAIT: Final = tuple(fault for fault in Fault if fault not in (*SUBMIT, *ALLOCATE, *RELEASE, *STATUS))

MIXED: Final[Mapping[Fault, float]] = {
    Fault.DEVICE_BUSY: 0.01,
    Fault.SLOW: 0.01,
    Fault.OUTPUT_ERROR: 0.003,
    Fault.NO_CAPACITY: 0.05,
}
"""Rates per call: what a board in use does, and the service survives without losing the device."""

HARSH: Final[Mapping[Fault, float]] = {
    **MIXED,
    Fault.DEVICE_BUSY: 0.05,
    Fault.NO_CAPACITY: 0.2,
    Fault.UNCONFIRMED: 0.002,
    Fault.TIMEOUT: 0.0005,
    Fault.CCU_FAULT: 0.0005,
    Fault.PCIE_ERROR: 0.0002,
    Fault.UNKNOWN_DMA: 0.0002,
    Fault.DEVICE_LOST: 0.0002,
    Fault.LOSE_LANE: 0.001,
}
"""With losses of lanes and of the whole device."""


class FaultPlan(Protocol):
    """Decides when something goes wrong."""

    def draw(self, kinds: tuple[Fault, ...]) -> Fault | None:
        """The fault of this call, of those that it may have."""


class Rates:
    """Each kind of fault at its own rate per call, from a seed."""

    def __init__(self, rates: Mapping[Fault, float], *, seed: int) -> None:
        self._rates = rates
        self._rng = np.random.default_rng(seed)
        self._likely: dict[tuple[Fault, ...], list[tuple[Fault, float]]] = {}

    def draw(self, kinds: tuple[Fault, ...]) -> Fault | None:
        likely = self._likely.get(kinds)
        if likely is None:  # once for each kind of call, since calls are many and most kinds have no rate
            likely = self._likely[kinds] = [(kind, self._rates[kind]) for kind in kinds if kind in self._rates]
        point = self._rng.random()
        for kind, rate in likely:
            point -= rate
            if point < 0:
                return kind
        return None


@attrs.frozen
class Planned:
    """The ``nth`` call (from 1) that may have it has this fault."""

    fault: Fault
    nth: int


class Plan:
    """Named faults at named calls."""

    def __init__(self, planned: Iterable[Planned]) -> None:
        self._planned = {(each.fault, each.nth) for each in planned}
        self._calls: Counter[Fault] = Counter()

    def draw(self, kinds: tuple[Fault, ...]) -> Fault | None:
        self._calls.update(kinds)
        return next((kind for kind in kinds if (kind, self._calls[kind]) in self._planned), None)


_ENDS_WAIT: Final = {
    Fault.CCU_FAULT: FaultReason.CCU_FAULT,
    Fault.PCIE_ERROR: FaultReason.PCIE_ERROR,
    Fault.UNKNOWN_DMA: FaultReason.UNKNOWN_DMA,
    Fault.DEVICE_LOST: FaultReason.DEVICE_LOST,
}
_SLOW_S: Final = 0.25
_STUCK_S: Final = 1e7


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
        self.happened: Counter[Fault] = Counter()

    def open(self) -> DeviceInfo:
        return self._inner.open()

    def configure(self, generation: GenerationId, package: Path) -> None:
        self._inner.configure(generation, package)

    def inspect(self, generation: GenerationId) -> ModelDescription:
        return self._inner.inspect(generation)

    def warm_up(self, generation: GenerationId) -> None:
        self._inner.warm_up(generation)

    def golden(self, generation: GenerationId) -> GoldenResult:
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
        return not self._is_lost and self._inner.remove_tail(generation, sequence, tokens)

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
        fault = self._draw(WAIT)
        if fault in _ENDS_WAIT:
            self._is_lost = self._is_lost or fault is Fault.DEVICE_LOST
            return Unknown(_ENDS_WAIT[fault])
        if fault in (Fault.TIMEOUT, Fault.STUCK):
            self._pace.pass_until(self._pace.now() + (timeout_s if fault is Fault.TIMEOUT else _STUCK_S))
            return Unknown(FaultReason.TIMEOUT)
        outcome = self._inner.wait(engine, ticket, timeout_s)
        if isinstance(outcome, Unknown) or fault is None:
            return outcome
        return self._spoil(outcome, fault, job)

    def memory(self) -> MemoryUse:
        return self._inner.memory()

    def status(self) -> DeviceStatus:
        if self._is_lost:
            return DeviceStatus(False, "lost")
        if self._draw(STATUS) is not None:
            return DeviceStatus(False, "counters disagree")
        return self._inner.status()

    def reset_configuration(self) -> bool:
        return not self._is_lost and self._inner.reset_configuration()

    def close(self) -> None:
        self._inner.close()

    def _draw(self, kinds: tuple[Fault, ...]) -> Fault | None:
        fault = self._plan.draw(kinds)
        if fault is not None:
            self.happened[fault] += 1
        return fault

    def _spoil(self, outcome: Finished, fault: Fault, job: Job) -> Finished:
        match fault:
            case Fault.SLOW:
                self._pace.pass_until(self._pace.now() + _SLOW_S)
            case Fault.OUTPUT_ERROR:
                return Finished(None, failed=FaultReason.OUTPUT_ERROR)
            case Fault.LOSE_LANE:
                return attrs.evolve(outcome, lost_lanes=frozenset({job.lanes[0].lane}))
            case Fault.CROSS_TALK if outcome.logits is not None and len(job.lanes) > 1:
                first, second = job.lanes[0].index, job.lanes[1].index
                return attrs.evolve(outcome, logits=_swapped(outcome.logits, first, second))
        return outcome


def _swapped(logits: Logits, first: int, second: int) -> Logits:
    swapped = logits.copy()
    swapped[[first, second]] = logits[[second, first]]
    return swapped
