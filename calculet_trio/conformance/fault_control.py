"""FaultControl: what a runtime declares may be made to go wrong, because it can be undone.

On a board that others use, or that only a power cycle would bring back, nothing is provoked: a runtime without such
a declaration has none of it tried.

Source: SPEC section 13 (S §18).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import attrs

from calculet_trio.core.events import FaultReason
from calculet_trio.core.fault_kinds import FaultKind

PATIENCE_S: Final = 60.0
"""A device that has a fault says so at once; one that does not is not waited for much longer."""


@attrs.frozen
class Provoked:
    """A fault that the next job has.

    Args:
        wait_s: how long to wait for the job, so that the fault is met.
        reason: what the wait must say.
    """

    wait_s: float
    reason: FaultReason


class FaultControl(Protocol):
    """Makes a device fail."""

    @property
    def kinds(self) -> frozenset[FaultKind]:
        """What may be provoked; what is not among them comes about never."""

    def provoke(self, kind: FaultKind) -> Provoked:
        """The job that is submitted next has this fault."""


@attrs.define
class PlannedFaults:
    """A plan of faults (`calculet_trio.runtimes.faults.FaultPlan`) that is made while it is followed.

    A timeout is the wait's own, and needs no plan: a job that has just been submitted is not over at once.

    Args:
        kinds: see `FaultControl`.
    """

    kinds: frozenset[FaultKind]
    _wanted: FaultKind | None = attrs.field(default=None, init=False)

    def provoke(self, kind: FaultKind) -> Provoked:
        """See `FaultControl`."""
        assert kind in self.kinds, "asked before"
        if kind is FaultKind.TIMEOUT:
            return Provoked(0.0, FaultReason.TIMEOUT)
        self._wanted = kind
        return Provoked(PATIENCE_S, FaultReason(kind.value))

    def draw(self, kinds: tuple[FaultKind, ...]) -> FaultKind | None:
        """See `calculet_trio.runtimes.faults.FaultPlan.draw`."""
        if self._wanted not in kinds:
            return None
        wanted, self._wanted = self._wanted, None
        return wanted


@attrs.frozen
class EmulatorFaults:
    """Faults that the emulator of the board's runtime brings about by itself, so that all of the binding meets them.

    Its timeout is the driver's, which comes before any of ours: the wait returns, and what the transfer may still
    write is unknown. A wait of ours that expires would end its engine for the life of this process.

    Args:
        plan: has the next job meet the fault of this name (`calculet_trio.runtimes.calrt_emulator`).
    """

    _plan: Callable[[str], object]
    kinds: frozenset[FaultKind] = frozenset({FaultKind.TIMEOUT, FaultKind.CCU_FAULT, FaultKind.PCIE_ERROR})

    def provoke(self, kind: FaultKind) -> Provoked:
        """See `FaultControl`."""
        assert kind in self.kinds, "asked before"
        self._plan(kind.value)
        reason = FaultReason.UNKNOWN_DMA if kind is FaultKind.TIMEOUT else FaultReason(kind.value)
        return Provoked(PATIENCE_S, reason)


NOTHING: Final[FaultControl] = PlannedFaults(frozenset())
"""Of a runtime that declares nothing."""
