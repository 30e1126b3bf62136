"""The life of one model generation: loaded, proven, served, drained, unloaded.

Source: SPEC section 8 (S §10–§12).
"""

from __future__ import annotations

from typing import Final

from calculet_trio.core.profiles import ModelShape
from calculet_trio.core.transition import Machine, Symbol, Table
from calculet_trio.ids import GenerationId


class GenerationState(Symbol):
    UNLOADED = "unloaded"
    VALIDATING = "validating"
    CONFIGURING = "configuring"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    UNLOADING = "unloading"
    RECOVERING = "recovering"
    FAILED = "failed"


class GenerationEvent(Symbol):
    VALIDATE = "validate"
    CONFIGURE = "configure"
    WARM = "warm"
    PUBLISH = "publish"
    DRAIN = "drain"
    UNLOAD = "unload"
    UNLOADED = "unloaded"
    FAULT = "fault"
    RECOVERED = "recovered"
    GIVE_UP = "give_up"


_S, _E = GenerationState, GenerationEvent

GENERATION_TABLE: Final = Table[GenerationState, GenerationEvent](
    "generation",
    GenerationState,
    {
        _S.UNLOADED: {_E.VALIDATE: _S.VALIDATING},
        _S.VALIDATING: {_E.CONFIGURE: _S.CONFIGURING, _E.GIVE_UP: _S.FAILED},
        _S.CONFIGURING: {_E.WARM: _S.WARMING, _E.GIVE_UP: _S.FAILED, _E.FAULT: _S.RECOVERING},
        _S.WARMING: {_E.PUBLISH: _S.READY, _E.GIVE_UP: _S.FAILED, _E.FAULT: _S.RECOVERING},
        _S.READY: {_E.DRAIN: _S.DRAINING, _E.FAULT: _S.RECOVERING},
        # A drain whose deadline passes with a job outstanding frees nothing: that is a FAULT.
        _S.DRAINING: {_E.UNLOAD: _S.UNLOADING, _E.FAULT: _S.RECOVERING},
        _S.UNLOADING: {_E.UNLOADED: _S.UNLOADED, _E.FAULT: _S.RECOVERING},
        # One that is to leave meanwhile drains, and goes on with it after the reset.
        _S.RECOVERING: {_E.RECOVERED: _S.READY, _E.DRAIN: _S.DRAINING, _E.GIVE_UP: _S.FAILED},
        _S.FAILED: {_E.UNLOADED: _S.UNLOADED},
    },
)


class ModelGeneration(Machine[GenerationState, GenerationEvent]):
    """One load of one package under one alias; its shape is known once it is published."""

    __slots__ = ("id", "alias", "shape")

    table = GENERATION_TABLE

    def __init__(self, generation: GenerationId, alias: str) -> None:
        super().__init__(GenerationState.UNLOADED)
        self.id = generation
        self.alias = alias
        self.shape: ModelShape | None = None

    def fault(self) -> None:
        """The device was lost; a generation that holds nothing of it does not mind."""
        if GenerationEvent.FAULT in self.table.rows[self._state]:
            self.advance(GenerationEvent.FAULT)
