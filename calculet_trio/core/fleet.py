"""Fleet: the model generations of one device, which alias means which of them, and who waits for one.

    load     VALIDATING ─▶ CONFIGURING ─▶ WARMING ─▶ READY: from here on the alias means it
    swap     the old one is DRAINING; who waited for it waits for its successor, who runs ends on it
    unload   DRAINING ─▶ `effects.Vacated` ─▶ UNLOADING ─▶ UNLOADED
    overdue  the drain's deadline passes with a job still out ─▶ RECOVERING, and nothing is freed

A request pins its generation when it is created, or when it leaves WaitingModel, and never another one's tokens
come to it: what was tokenized for the old generation is tokenized again for the new.

Source: SPEC section 8 (S §10–§13).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Final

from calculet_trio.core import events as ev
from calculet_trio.core.degradation import EnginePair
from calculet_trio.core.effects import Effect, Place, Vacated
from calculet_trio.core.endings import LOADING, UNLOADED, Endings
from calculet_trio.core.events import FaultReason
from calculet_trio.core.generation import GenerationEvent, GenerationState, ModelGeneration
from calculet_trio.core.jobs import JobTable
from calculet_trio.core.policy import Policy
from calculet_trio.core.registry import RequestRegistry
from calculet_trio.core.request import Request, RequestEvent, RequestState
from calculet_trio.core.residency import Residency
from calculet_trio.core.retention import ReuseCounts
from calculet_trio.core.served import Served
from calculet_trio.core.tenant_queue import TenantQueue
from calculet_trio.ids import NO_GENERATION, GenerationId

_BETWEEN: Final = (
    GenerationState.VALIDATING,
    GenerationState.CONFIGURING,
    GenerationState.WARMING,
    GenerationState.UNLOADING,
)


class Fleet:
    """Which generations there are.

    Attributes:
        generations: all that are not forgotten, by id.
        served: those that were published and still hold something.
        residency: which of the aliases that share the device by time has it.
        reuse: what retained lanes have come to, over all generations.

    Args:
        policy: what a published generation is scheduled by.
        policies: the same for aliases that have their own.
        dwell_s: see `Residency`.
        registry: moves requests.
        queue: where requests wait for a lane.
        jobs: what is in flight.
        endings: ends requests; knows who waits for a model.
        pair: doubts its engines after a recovery.
        effects: what is to be done.
    """

    def __init__(
        self,
        policy: Policy,
        registry: RequestRegistry,
        queue: TenantQueue,
        jobs: JobTable,
        endings: Endings,
        pair: EnginePair,
        effects: list[Effect],
        *,
        policies: Mapping[str, Policy],
        dwell_s: float,
    ) -> None:
        self.generations: dict[GenerationId, ModelGeneration] = {}
        self.served: dict[GenerationId, Served] = {}
        self.residency = Residency(self.generations, endings, effects, dwell_s=dwell_s)
        self.reuse = ReuseCounts()
        self._policy = policy
        self._policies = policies
        self._registry = registry
        self._queue = queue
        self._room = endings.room
        self._jobs = jobs
        self._endings = endings
        self._pair = pair
        self._effects = effects
        self._alias: dict[str, GenerationId] = {}
        self._expected: set[str] = set()
        self._draining: dict[GenerationId, float] = {}
        self._overdue: set[GenerationId] = set()

    # ---- who is meant ---------------------------------------------------------------------------

    def current(self, alias: str) -> Served | None:
        """What the alias means now; None before it was ever published, and while one replaces another."""
        generation = self._alias.get(alias)
        return None if generation is None else self.served[generation]

    def is_expected(self, alias: str) -> bool:
        """Whether a generation of the alias is being made for those who ask meanwhile, or will have its turn."""
        return alias in self._expected or alias in self.residency

    @property
    def is_loading(self) -> bool:
        """Whether a generation is being put on the device, or taken off."""
        return any(generation.state in _BETWEEN for generation in self.generations.values())

    def admit_to_room(self, request: Request) -> None:
        """The new request waits for its model."""
        self._registry.move(request, RequestEvent.WAIT_MODEL)
        self._room.enter(request)

    # ---- the life of a generation -----------------------------------------------------------------

    def heard(self, event: ev.ModelEvent, now: float) -> None:
        """A load, drain or unload took a step; or a model will come for those who ask, or will not."""
        match event:
            case ev.GenerationAdvanced():
                self._advanced(event)
            case ev.ModelExpected():
                self._expected.add(event.alias)
            case ev.ModelForgone():
                self._expected.discard(event.alias)
                for request in self._room.leave_all(event.alias):
                    self._endings.refuse(request, UNLOADED)
        self.residency.heard(event, now)

    def _advanced(self, event: ev.GenerationAdvanced) -> None:
        generation = self.generations.get(event.generation)
        if generation is None:
            generation = self.generations[event.generation] = ModelGeneration(event.generation, event.alias)
        generation.advance(event.step)
        if event.step is GenerationEvent.PUBLISH:
            self._published(generation, event)
        elif event.step is GenerationEvent.RECOVERED:
            self._queue.bring_back(generation.id)
            self._pair.doubted(ev.Doubt.RECOVERY)
        elif event.step is GenerationEvent.DRAIN:
            self._draining[generation.id] = inf if event.drain_by_s is None else event.drain_by_s
            for lane in self.served[generation.id].retention.evict_all():
                self._endings.give_back(lane, generation.id)
            self._send_on(generation)
        elif event.step in (GenerationEvent.UNLOADED, GenerationEvent.GIVE_UP):
            self._lose_name(generation)
            self._send_on(generation)

    def _published(self, generation: ModelGeneration, event: ev.GenerationAdvanced) -> None:
        assert event.shape is not None, "a published generation has a shape"
        generation.shape = event.shape
        policy = self._policies.get(generation.alias, self._policy)
        self.served[generation.id] = Served(generation, event.shape, policy, event.evidence, self.reuse)
        self._alias[generation.alias] = generation.id
        self._expected.discard(generation.alias)
        for request in self._room.leave_all(generation.alias):
            self._hand(request, generation.id)

    def _hand(self, request: Request, generation: GenerationId) -> None:
        """It has waited for this generation, and is tokenized for it now."""
        self._registry.pin(request, generation)
        self._registry.move(request, RequestEvent.MODEL_READY)
        self._effects.append(Place(request.id, generation, request.tenant))

    def _lose_name(self, generation: ModelGeneration) -> None:
        if self._alias.get(generation.alias) == generation.id:
            del self._alias[generation.alias]

    def _send_on(self, generation: ModelGeneration) -> None:
        """Nobody new is served by it: who waits for it goes to its successor, waits for one, or is told."""
        if generation.id not in self.served:
            return
        self._lose_name(generation)
        successor = self._alias.get(generation.alias)
        is_hoped_for = successor is not None or self.is_expected(generation.alias)
        being_allocated = set(self.served[generation.id].lanes.being_allocated)
        for request in self._of(generation.id):
            if not request.is_waiting or request.id in being_allocated:
                continue  # it has its lane, or is about to: it ends here
            if not is_hoped_for:
                self._endings.refuse(request, UNLOADED if generation.state is GenerationState.DRAINING else LOADING)
                continue
            self._queue.discard(request)
            self._registry.unprice(request)
            is_new = request.state is RequestState.NEW
            self._registry.move(request, RequestEvent.WAIT_MODEL if is_new else RequestEvent.MODEL_GONE)
            self._registry.pin(request, NO_GENERATION)
            if successor is None:
                self._room.enter(request)
            else:
                self._hand(request, successor)

    # ---- what follows from time and from emptiness --------------------------------------------------

    def next_s(self) -> float | None:
        """The next drain deadline, monotonic; None while there is none."""
        deadline_s = min(self._draining.values()) if self._draining else inf
        return None if deadline_s == inf else deadline_s

    def proceed(self, now: float) -> None:
        """Let drain deadlines fall, and say which drained generations hold nothing any more."""
        if self._draining:
            self._drain(now)
        self._forget_unloaded()

    def _drain(self, now: float) -> None:
        for generation in [self.generations[each] for each in self._draining]:
            if generation.state is GenerationState.READY:  # a recovery has brought it back: it goes on draining
                generation.advance(GenerationEvent.DRAIN)
            if now >= self._draining[generation.id]:
                self._draining[generation.id] = inf
                self._overrun(generation)
            if self._is_vacant(generation.id):
                del self._draining[generation.id]
                self._effects.append(Vacated(generation.id, overdue=generation.id in self._overdue))
                self._overdue.discard(generation.id)

    def _overrun(self, generation: ModelGeneration) -> None:
        for request in self._of(generation.id):
            if request.is_running:
                request.give_up = request.give_up or FaultReason.MODEL_UNLOADED
            elif request.is_waiting:
                self._endings.refuse(request, UNLOADED)
            elif request.state is not RequestState.FINISHING:
                self._endings.fail(request, FaultReason.MODEL_UNLOADED)
        lanes = self.served[generation.id].lanes
        is_outstanding = self._jobs.in_flight_of(generation.id) or lanes.usable < len(lanes)
        if is_outstanding and generation.state is GenerationState.DRAINING:
            generation.advance(GenerationEvent.FAULT)
            self._overdue.add(generation.id)

    def _is_vacant(self, generation: GenerationId) -> bool:
        lanes = self.served[generation].lanes
        # An Unknown lane is nobody's, and only the device's reset, which an overdue drain ends in, empties it.
        empty = lanes.free + (len(lanes) - lanes.usable if generation in self._overdue else 0)
        is_left = not self._registry.pinned(generation) and not self._jobs.in_flight_of(generation)
        return is_left and empty == len(lanes)

    def _forget_unloaded(self) -> None:
        """An unloaded generation is let go once all its lanes are back; one with an Unknown lane never is."""
        for generation in [each for each in self.generations.values() if each.state is GenerationState.UNLOADED]:
            served = self.served.get(generation.id)
            if served is None or served.lanes.free == len(served.lanes):
                del self.generations[generation.id]
                self.served.pop(generation.id, None)
                self._draining.pop(generation.id, None)

    def _of(self, generation: GenerationId) -> Iterator[Request]:
        return (request for request in self._registry if request.generation == generation)
