"""Residency: several aliases share a device that holds one of them, and this says whose model is wanted next.

    nobody is there            whoever has been waited for longest is wanted at once; else who was there last
    one is there               it stays `dwell_s` from its publication, and after that while no other is waited for
    something is on its way    nothing more is wanted
    a load has failed          who waited for it is told, and who comes within a growing pause; others are not held up

Between two publications lies at least the dwell time, so that in t seconds the device is switched t / dwell + 1 times
at most. An alias keeps its place in the line from when somebody first waits for it, whoever of them leaves: each
of n aliases is wanted after n - 1 others at most.

Source: SPEC section 8 (S §13.1: time-sharing one board).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from calculet_trio.core import events as ev
from calculet_trio.core.backoff import Backoff
from calculet_trio.core.effects import Effect, Refusal, RefusalKind, Wanted
from calculet_trio.core.endings import Endings
from calculet_trio.core.generation import GenerationEvent, GenerationState, ModelGeneration
from calculet_trio.ids import GenerationId

_FIRST_PAUSE_S: Final = 5.0
"""A try may take the present model off the device: it is not made for everybody who comes."""
_LONGEST_PAUSE_S: Final = 300.0
"""A package that was mended is served again within so long, without anybody's word."""

_AT_REST: Final = frozenset({GenerationState.READY, GenerationState.FAILED, GenerationState.UNLOADED})


def _pause() -> Backoff:
    return Backoff(first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S)


class Residency:
    """The aliases that share the device by time; without any, it wants nothing.

    Args:
        generations: of the device, whatever their alias.
        endings: knows who waits for a model, and ends requests.
        effects: what is to be done.
        dwell_s: how long a model stays at least.
    """

    def __init__(
        self,
        generations: Mapping[GenerationId, ModelGeneration],
        endings: Endings,
        effects: list[Effect],
        *,
        dwell_s: float,
    ) -> None:
        self._generations = generations
        self._endings = endings
        self._room = endings.room
        self._effects = effects
        self._dwell_s = dwell_s
        self._pauses: dict[str, Backoff] = {}
        self._wanted: str | None = None
        self._last: str | None = None
        self._published_s = 0.0

    def __contains__(self, alias: str) -> bool:
        return alias in self._pauses

    @property
    def is_switching(self) -> bool:
        """Whether a model that shares the device is on its way to it, or is to be."""
        return self._wanted is not None or (bool(self._pauses) and not self._is_at_rest)

    def heard(self, event: ev.ModelEvent, now: float) -> None:
        """An alias shares the device, or does not any more; a model came, or could not."""
        match event:
            case ev.ModelParked(alias):
                self._pauses.setdefault(alias, _pause())
            case ev.ModelForgone(alias):
                self._pauses.pop(alias, None)
                self._conclude(alias)
                if self._last == alias:
                    self._last = None
            case ev.SwitchFailed(alias):
                self._conclude(alias)
                self._failed(alias, now)
            case ev.GenerationAdvanced(_, alias, GenerationEvent.PUBLISH):
                self._conclude(alias)
                self._published_s = now
                self._last = alias
                if alias in self._pauses:
                    self._pauses[alias].accepted()

    def refusal(self, alias: str, now: float) -> Refusal | None:
        """What somebody is told who asks for an alias whose load has just failed; None if there is hope."""
        pause = self._pauses.get(alias)
        if pause is None or pause.allows(now) or self._is_ready(alias):
            return None
        assert pause.until_s is not None, "a pause that is not over ends some time"
        return Refusal(
            RefusalKind.UNAVAILABLE,
            "load_failed",
            "the model could not be loaded; the operator sees why (calculet-trio models list)",
            retry_after_s=pause.until_s - now,
        )

    def proceed(self, now: float) -> None:
        """Say which model is wanted now, if another than there is. Only while the device is sound and is to serve."""
        if self._wanted is not None or not self._pauses or not self._is_at_rest:
            return
        alias = self._next(now)
        if alias is not None:
            self._wanted = alias
            self._effects.append(Wanted(alias))

    def next_s(self) -> float | None:
        """When `proceed` may want another model although nothing has happened, monotonic; None: never."""
        if self._wanted is not None or not self._pauses or not self._is_at_rest:
            return None
        if self._is_occupied:
            return self._published_s + self._dwell_s if self._waited_for() else None
        pause = None if self._last is None else self._pauses.get(self._last)
        return None if pause is None else pause.until_s

    # ---- inside -----------------------------------------------------------------------------------

    def _next(self, now: float) -> str | None:
        if self._is_occupied:
            return self._waited_for() if now >= self._published_s + self._dwell_s else None
        waited_for = self._waited_for()
        if waited_for is not None:
            return waited_for
        pause = None if self._last is None else self._pauses.get(self._last)
        return self._last if pause is not None and pause.allows(now) else None

    def _waited_for(self) -> str | None:
        return next((alias for alias in self._room.aliases() if alias in self._pauses), None)

    def _conclude(self, alias: str) -> None:
        if self._wanted == alias:
            self._wanted = None

    def _failed(self, alias: str, now: float) -> None:
        pause = self._pauses.get(alias)
        if pause is None:
            return
        pause.refused(now)
        refusal = self.refusal(alias, now)
        if refusal is not None:
            for request in self._room.leave_all(alias):
                self._endings.refuse(request, refusal)

    @property
    def _is_at_rest(self) -> bool:
        return all(generation.state in _AT_REST for generation in self._generations.values())

    @property
    def _is_occupied(self) -> bool:
        return any(generation.state is GenerationState.READY for generation in self._generations.values())

    def _is_ready(self, alias: str) -> bool:
        return any(
            generation.alias == alias and generation.state is GenerationState.READY
            for generation in self._generations.values()
        )
