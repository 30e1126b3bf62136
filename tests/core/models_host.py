"""A core with several models and a device that answers at once, but for jobs, which end when a test says so."""

from __future__ import annotations

from collections.abc import Mapping

from calculet_trio.core import events as ev
from calculet_trio.core.effects import (
    AllocateSequence,
    Drop,
    Effect,
    Fail,
    Finish,
    Place,
    Refuse,
    ReleaseSequence,
    SubmitJob,
    Vacated,
    Wanted,
)
from calculet_trio.core.generation import GenerationEvent
from calculet_trio.core.jobs import EngineId, Job
from calculet_trio.core.policy import Policy
from calculet_trio.core.serving import ServingCore
from calculet_trio.ids import GenerationId, RequestId, SequenceId
from tests.core.shapes import small_policy, small_shape

FIRST, SECOND = GenerationId(1), GenerationId(2)
LOAD = (GenerationEvent.VALIDATE, GenerationEvent.CONFIGURE, GenerationEvent.WARM, GenerationEvent.PUBLISH)
UNLOAD = (GenerationEvent.DRAIN, GenerationEvent.UNLOAD, GenerationEvent.UNLOADED)
SHAPE = small_shape(2)


class Host:
    """A core with models ``one`` and ``two``; allocations and releases are answered at once, jobs when told to."""

    def __init__(
        self, policy: Policy | None = None, *, policies: Mapping[str, Policy] | None = None, dwell_s: float = 60.0
    ) -> None:
        self.core = ServingCore(
            policy or small_policy(), (EngineId.PING,), policies={} if policies is None else policies, dwell_s=dwell_s
        )
        self.now = 0.0
        self.jobs: list[Job] = []
        self.refused: dict[RequestId, str] = {}
        self.asked: list[AllocateSequence] = []
        self.answers_releases = True
        self.answers_allocations = True
        self.offers = True
        self.allocations: list[AllocateSequence] = []
        self.releases: list[ReleaseSequence] = []
        self.placed: list[tuple[RequestId, GenerationId]] = []
        self.vacated: list[Vacated] = []
        self.wanted: list[str] = []
        self._wishes: dict[RequestId, int] = {}
        self.ended: dict[RequestId, str] = {}
        self._requests = 0

    def tell(self, event: ev.Event) -> list[Effect]:
        effects = self.core.handle(event, self.now)
        self.core.check()
        for effect in effects:
            match effect:
                case AllocateSequence():
                    self.asked.append(effect)
                    self.allocations.append(effect)
                    if self.answers_allocations:
                        self.allocate()
                case ReleaseSequence():
                    self.releases.append(effect)
                    if self.answers_releases:
                        self.release()
                case Place(request, generation, _):
                    self.placed.append((request, generation))
                    if self.offers:
                        self.tell(ev.Offered(request, generation, (1, 2, 3), self._wishes[request]))
                case Vacated():
                    self.vacated.append(effect)
                case Wanted(alias):
                    self.wanted.append(alias)
                case SubmitJob():
                    self.jobs.append(effect.job)
                case Finish() | Fail() | Drop() | Refuse():
                    self._note_end(effect)
        return effects

    def _note_end(self, effect: Finish | Fail | Drop | Refuse) -> None:
        assert effect.request not in self.ended.keys() | self.refused.keys(), "a stream is closed once"
        if isinstance(effect, Refuse):
            self.refused[effect.request] = effect.refusal.code
        else:
            self.ended[effect.request] = type(effect).__name__

    def allocate(self) -> None:
        asked = self.allocations.pop(0)
        self.tell(
            ev.SequenceAllocated(
                asked.generation, asked.lane, asked.request, asked.reservation, SequenceId(asked.request)
            )
        )

    def release(self, *, confirmed: bool = True) -> None:
        asked = self.releases.pop(0)
        self.tell(ev.SequenceReleased(asked.generation, asked.lane, asked.sequence, confirmed))

    def advance(
        self, generation: GenerationId, alias: str, *steps: GenerationEvent, drain_by_s: float | None = None
    ) -> None:
        for step in steps:
            shape = SHAPE if step is GenerationEvent.PUBLISH else None
            by_s = drain_by_s if step is GenerationEvent.DRAIN else None
            self.tell(ev.GenerationAdvanced(generation, alias, step, shape, drain_by_s=by_s))

    def load(self) -> None:
        self.advance(FIRST, "one", *LOAD)
        self.advance(SECOND, "two", *LOAD)

    def ask(self, alias: str, *, tenant: str = "a", max_new_tokens: int = 4) -> RequestId:
        self._requests += 1
        request = RequestId(self._requests)
        self._wishes[request] = max_new_tokens
        self.tell(ev.Arrived(request, tenant, alias, None))
        return request

    def finish(self) -> GenerationId:
        job = self.jobs.pop(0)
        results = tuple(ev.LaneResult(work.lane, work.request, 7) for work in job.lanes)
        self.tell(ev.JobFinished(job.job, job.generation, results))
        return job.generation

    def finish_all(self) -> None:
        while self.jobs:
            self.finish()

    def waiting(self) -> int:
        return self.core.snapshot().waiting_requests
