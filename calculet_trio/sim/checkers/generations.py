"""A request is answered by the generation it pinned, a switch loses nobody, and models do not thrash.

Source: SPEC section 8 (S §10–§13).
"""

from __future__ import annotations

from math import inf

import attrs

from calculet_trio.core import effects as ef
from calculet_trio.core import events as ev
from calculet_trio.core.events import FaultReason
from calculet_trio.core.generation import GenerationEvent
from calculet_trio.core.jobs import Job
from calculet_trio.ids import NO_GENERATION, GenerationId, JobId, LaneId, RequestId
from calculet_trio.sim.checkers.violation import Violated, require
from calculet_trio.sim.checkers.watch import Routes

_MOMENT_S = 1e-6


@attrs.define
class _Generation:
    """What the ledger knows of one: whose it is, whether it takes somebody, and what is still on it."""

    alias: str
    is_published: bool = False
    is_draining: bool = False
    is_gone: bool = False
    drain_by_s: float = inf
    lanes: set[LaneId] = attrs.field(factory=set)
    jobs: set[JobId] = attrs.field(factory=set)

    @property
    def takes_in(self) -> bool:
        return self.is_published and not self.is_draining and not self.is_gone


class GenerationChecker:
    """One daemon's generations, and who is served by which.

    Args:
        dwell_s: how long a model stays at least where aliases share the board by time.
    """

    def __init__(self, *, dwell_s: float) -> None:
        self._dwell_s = dwell_s
        self._generations: dict[GenerationId, _Generation] = {}
        self._alias: dict[RequestId, str] = {}
        self._pinned: dict[RequestId, GenerationId] = {}
        self._coming: set[str] = set()
        self._parked: set[str] = set()
        self._jobs: dict[JobId, GenerationId] = {}
        self._published_s = -inf
        self.switches = 0
        """How often a model was published after the first."""

    def routes(self) -> Routes:
        """See `calculet_trio.sim.checkers.watch.Checker`."""
        return {
            ev.Arrived: self._arrived,
            ev.GenerationAdvanced: self._advanced,
            ev.ModelExpected: self._expected,
            ev.ModelParked: self._park,
            ev.ModelForgone: self._forgone,
            ev.SequenceRefused: self._lane_returned,
            ev.SequenceReleased: self._lane_returned,
            ev.JobFinished: self._job_ended,
            ev.JobFailed: self._job_ended,
            ev.JobNotSubmitted: self._job_ended,
            ev.JobUnknown: self._job_ended,
            ev.DeviceReset: self._reset,
            ef.Place: self._placed,
            ef.AllocateSequence: self._given_a_lane,
            ef.ContinueSequence: self._given_a_lane,
            ef.SubmitJob: self._submitted,
            ef.Refuse: self._refused,
            ef.Fail: self._failed,
            ef.Vacated: self._vacated,
            ef.Wanted: self._wanted,
        }

    def conclude(self, now: float, *, device_lost: bool) -> None:
        """Nothing is left to say: each step was held when it was taken."""

    # ---- what is told -----------------------------------------------------------------------------

    def _arrived(self, event: ev.Arrived, now: float) -> None:
        self._alias[event.request] = event.alias

    def _expected(self, event: ev.ModelExpected, now: float) -> None:
        self._coming.add(event.alias)

    def _park(self, event: ev.ModelParked, now: float) -> None:
        self._parked.add(event.alias)

    def _forgone(self, event: ev.ModelForgone, now: float) -> None:
        self._coming.discard(event.alias)
        self._parked.discard(event.alias)

    def _advanced(self, event: ev.GenerationAdvanced, now: float) -> None:
        generation = self._generations.setdefault(event.generation, _Generation(event.alias))
        match event.step:
            case GenerationEvent.PUBLISH:
                self.switches += self._published_s > -inf
                self._published_s = now
                self._coming.discard(event.alias)
                generation.is_published = True
            case GenerationEvent.DRAIN:
                generation.is_draining = True
                generation.drain_by_s = inf if event.drain_by_s is None else event.drain_by_s
            case GenerationEvent.UNLOADED | GenerationEvent.GIVE_UP:
                generation.is_gone = True
                require(not generation.jobs, f"generation {event.generation} is gone while jobs of it are out")

    def _lane_returned(self, event: ev.SequenceRefused | ev.SequenceReleased, now: float) -> None:
        if isinstance(event, ev.SequenceRefused) or event.confirmed:
            self._of(event.generation).lanes.discard(event.lane)

    def _job_ended(self, event: ev.JobFinished | ev.JobFailed | ev.JobNotSubmitted | ev.JobUnknown, now: float) -> None:
        generation = self._jobs.pop(event.job, None)
        if generation is not None:
            self._of(generation).jobs.discard(event.job)

    def _reset(self, event: ev.DeviceReset, now: float) -> None:
        for generation in self._generations.values():
            generation.lanes.clear()

    # ---- what is decided --------------------------------------------------------------------------

    def _placed(self, effect: ef.Place, now: float) -> None:
        generation, own = self._of(effect.generation), self._alias[effect.request]
        require(generation.alias == own, "request {} asks for {}, and is placed with another", effect.request, own)
        require(generation.takes_in, "request {} is placed with a generation that takes nobody", effect.request)
        self._pinned[effect.request] = effect.generation

    def _given_a_lane(self, effect: ef.AllocateSequence | ef.ContinueSequence, now: float) -> None:
        self._expect_pinned(effect.request, effect.generation)
        self._of(effect.generation).lanes.add(effect.lane)

    def _submitted(self, effect: ef.SubmitJob, now: float) -> None:
        job: Job = effect.job
        for work in job.lanes:
            self._expect_pinned(work.request, job.generation)
        generation = self._of(job.generation)
        require(not generation.is_gone, "job {} is of a generation that is gone", job.job)
        generation.jobs.add(job.job)
        self._jobs[job.job] = job.generation

    def _refused(self, effect: ef.Refuse, now: float) -> None:
        if effect.refusal.code in ("model_unloaded", "loading") and not self._is_overdue(effect.request, now):
            alias = self._alias[effect.request]
            is_hoped_for = alias in self._coming or alias in self._parked
            require(not is_hoped_for, "request {} is refused, and {} is on its way", effect.request, alias)

    def _failed(self, effect: ef.Fail, now: float) -> None:
        if effect.reason is FaultReason.MODEL_UNLOADED:
            require(self._is_overdue(effect.request, now), "request {} is cut before its time", effect.request)

    def _vacated(self, effect: ef.Vacated, now: float) -> None:
        generation = self._of(effect.generation)
        require(not generation.jobs, f"generation {effect.generation} is vacated while jobs of it are out")
        held = sorted(generation.lanes)[:5]
        require(not held or effect.overdue, f"generation {effect.generation} is vacated while lanes {held} are held")

    def _wanted(self, effect: ef.Wanted, now: float) -> None:
        require(effect.alias in self._parked, f"{effect.alias} is wanted, and does not share the board")
        if any(generation.takes_in for generation in self._generations.values()):
            stayed_s = now - self._published_s
            require(stayed_s >= self._dwell_s - _MOMENT_S, f"{effect.alias} is wanted {stayed_s:.3f} s after the last")

    # ---- look-ups ---------------------------------------------------------------------------------

    def _of(self, generation: GenerationId) -> _Generation:
        found = self._generations.get(generation)
        if found is None:
            raise Violated(f"generation {generation} was never here")
        return found

    def _expect_pinned(self, request: RequestId, generation: GenerationId) -> None:
        own = self._pinned.get(request, NO_GENERATION)
        require(own == generation, "request {} pinned generation {}, and is served by another", request, own)

    def _is_overdue(self, request: RequestId, now: float) -> bool:
        own = self._generations.get(self._pinned.get(request, NO_GENERATION))
        return own is not None and now >= own.drain_by_s - _MOMENT_S
