"""Which engines may be given work.

Source: SPEC section 9 (S §14, §16).
"""

from __future__ import annotations

from typing import Final

from calculet_trio.core.events import FaultReason
from calculet_trio.core.jobs import EngineId
from calculet_trio.core.transition import Machine, Symbol, Table


class EngineState(Symbol):
    HEALTHY = "healthy"
    QUARANTINED = "quarantined"


class EngineEvent(Symbol):
    QUARANTINE = "quarantine"


ENGINE_TABLE: Final = Table[EngineState, EngineEvent](
    "engine",
    EngineState,
    {
        EngineState.HEALTHY: {EngineEvent.QUARANTINE: EngineState.QUARANTINED},
        EngineState.QUARANTINED: {},  # its buffers may still be written to: only a new process starts afresh
    },
)


class EngineHealth(Machine[EngineState, EngineEvent]):
    """One engine, and why it is out of use."""

    __slots__ = ("engine", "reason")

    table = ENGINE_TABLE

    def __init__(self, engine: EngineId) -> None:
        super().__init__(EngineState.HEALTHY)
        self.engine = engine
        self.reason: FaultReason | None = None

    def quarantine(self, reason: FaultReason) -> None:
        self.advance(EngineEvent.QUARANTINE)
        self.reason = reason

    @property
    def usable(self) -> bool:
        return self._state is EngineState.HEALTHY
