"""Which engines may be given work, and how the device under them is.

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
    RESET = "reset"


ENGINE_TABLE: Final = Table[EngineState, EngineEvent](
    "engine",
    EngineState,
    {
        EngineState.HEALTHY: {EngineEvent.QUARANTINE: EngineState.QUARANTINED},
        EngineState.QUARANTINED: {EngineEvent.RESET: EngineState.HEALTHY},  # the device's, which is quiet since
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

    def reset(self) -> None:
        """The device was reset, and is known to be quiet; an engine that was healthy stays so."""
        if self._state is EngineState.QUARANTINED:
            self.advance(EngineEvent.RESET)
            self.reason = None

    @property
    def usable(self) -> bool:
        return self._state is EngineState.HEALTHY


class DeviceState(Symbol):
    SOUND = "sound"
    QUIESCING = "quiescing"
    """Nothing new is asked of it; what it was asked is still to be answered."""
    RESETTING = "resetting"
    LOST = "lost"
    """Only a new process may use it."""


class DeviceEvent(Symbol):
    FAULT = "fault"
    QUIET = "quiet"
    PROVEN = "proven"
    GIVE_UP = "give_up"


_S, _E = DeviceState, DeviceEvent

DEVICE_TABLE: Final = Table[DeviceState, DeviceEvent](
    "device",
    DeviceState,
    {
        _S.SOUND: {_E.FAULT: _S.QUIESCING, _E.GIVE_UP: _S.LOST},
        _S.QUIESCING: {_E.QUIET: _S.RESETTING, _E.GIVE_UP: _S.LOST},
        _S.RESETTING: {_E.PROVEN: _S.SOUND, _E.GIVE_UP: _S.LOST},  # proven: configured, and its golden run agrees
        _S.LOST: {},
    },
)


class DeviceHealth(Machine[DeviceState, DeviceEvent]):
    """The device, why it is not sound, and whose job met that, if it was a job's."""

    __slots__ = ("engine", "reason")

    table = DEVICE_TABLE

    def __init__(self) -> None:
        super().__init__(DeviceState.SOUND)
        self.reason: FaultReason | None = None
        self.engine: EngineId | None = None

    @property
    def is_sound(self) -> bool:
        return self._state is DeviceState.SOUND
