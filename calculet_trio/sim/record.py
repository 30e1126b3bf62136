"""Record: what a world measured, thin enough for days.

Source: SPEC section 11.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from calculet_trio.core.effects import Effect, SubmitJob
from calculet_trio.core.events import Event, JobFailed, JobFinished, JobNotSubmitted, JobUnknown
from calculet_trio.core.snapshot import CoreSnapshot
from calculet_trio.shell.daemon import Observer
from calculet_trio.shell.service import Timings
from calculet_trio.sim.population import Visit

_SAMPLES_MAX = 2000
_SPANS_MAX = 2000
_REPLIES_MAX = 100_000
"""Later ones are counted, and not kept: percentiles over so many stand still."""
_JOB_ENDS = (JobFinished, JobFailed, JobNotSubmitted, JobUnknown)


@attrs.frozen
class Reply:
    """One whole reply: when it ended, whose, and its times."""

    ended_s: float
    tenant: str
    prompt_tokens: int
    timings: Timings


@attrs.frozen
class Sample:
    """Counts at one moment."""

    moment_s: float
    waiting: int
    running: int
    lanes_in_use: int


@attrs.frozen
class Span:
    """A job on an engine."""

    engine: str
    phase: str
    began_s: float
    ended_s: float
    lanes: int


class Record:
    """Measurements over all lives of the daemon. Samples thin out by halves as they grow too many."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.samples: list[Sample] = []
        self.spans: list[Span] = []
        self.restarts_s: list[float] = []
        self.busy_s: dict[str, float] = {}
        self.jobs = 0
        self._period_s = 1.0
        self._next_s = 0.0
        self._running: dict[int, tuple[SubmitJob, float]] = {}

    def replied(self, moment_s: float, visit: Visit, timings: Timings) -> None:
        """A client has its whole reply."""
        if len(self.replies) < _REPLIES_MAX:
            self.replies.append(Reply(moment_s, visit.tenant, visit.prompt_tokens, timings))

    def restarted(self, moment_s: float) -> None:
        """A daemon has lost its device."""
        self.restarts_s.append(moment_s)

    def beside(self, other: Observer) -> Observer:
        """An observer that tells this record and the other one."""
        return _Both(self, other)

    def sample(self, snapshot: CoreSnapshot, now: float) -> None:
        """Keep the counts of now, if it is time for it."""
        if now < self._next_s:
            return
        self.samples.append(Sample(now, snapshot.waiting_requests, snapshot.running_requests, snapshot.lanes_in_use))
        if len(self.samples) > _SAMPLES_MAX:
            self.samples = self.samples[::2]
            self._period_s *= 2
        self._next_s = now + self._period_s

    def job_began(self, effect: SubmitJob, now: float) -> None:
        """An engine was given a job."""
        self._running[effect.job.job] = (effect, now)

    def job_ended(self, job: int, now: float) -> None:
        """A job has ended, in whatever way."""
        began = self._running.pop(job, None)
        if began is None:
            return
        self.jobs += 1
        effect, began_s = began
        engine = effect.engine.value
        self.busy_s[engine] = self.busy_s.get(engine, 0.0) + now - began_s
        if len(self.spans) < _SPANS_MAX:
            self.spans.append(Span(engine, effect.job.phase, began_s, now, len(effect.job.lanes)))

    def sample_due(self, now: float) -> bool:
        return now >= self._next_s


class _Both:
    """Tells a record and another observer; the other one first, since it may object."""

    def __init__(self, record: Record, other: Observer) -> None:
        self._record = record
        self._other = other
        self._snapshot: Callable[[], CoreSnapshot] | None = None

    def watch(self, snapshot: Callable[[], CoreSnapshot], clock: Callable[[], float]) -> None:
        self._snapshot = snapshot
        self._other.watch(snapshot, clock)

    def watch_device(self, reading: object, memory: object) -> None:
        """No record is made of these."""

    def heard(self, event: Event, now: float) -> None:
        self._other.heard(event, now)
        if isinstance(event, _JOB_ENDS):
            self._record.job_ended(event.job, now)
        if self._record.sample_due(now) and self._snapshot is not None:
            self._record.sample(self._snapshot(), now)

    def saw(self, effect: Effect, now: float) -> None:
        self._other.saw(effect, now)
        if isinstance(effect, SubmitJob):
            self._record.job_began(effect, now)

    def load_step(self, step: str, taken_s: float) -> None:
        self._other.load_step(step, taken_s)
