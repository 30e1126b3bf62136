"""Checkers: what must never happen, watched from outside while it does not.

They keep ledgers of their own from the events and effects that pass, so that a mistake in the core's books is
seen as a difference. Each is seen to fire on a planted fault (``tests/sim/test_ablation.py``).

Source: SPEC section 3, 4, 7 (S §4, §9.2, §17); TigerBeetle's VOPR for the manner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

import attrs

from calculet_trio.core import effects as ef
from calculet_trio.core import events as ev
from calculet_trio.core.jobs import Job
from calculet_trio.core.lanes import LaneState
from calculet_trio.core.snapshot import CoreSnapshot
from calculet_trio.ids import GenerationId, JobId, LaneId, RequestId, SequenceId
from calculet_trio.sim.determinism import Trace

_TERMINAL: Final = (ef.Refuse, ef.Finish, ef.Fail, ef.Drop)


class Violated(AssertionError):
    """A checker fired."""


@attrs.define
class _Lane:
    """What the ledger knows of a lane: whose it is, which sequence, which job; Unknown for ever once lost."""

    request: RequestId | None = None
    sequence: SequenceId | None = None
    job: JobId | None = None
    is_unknown: bool = False


@attrs.define
class _Request:
    tenant: str
    deadline_s: float
    is_over: bool = False
    tokens: int = 0


class Ledger:
    """Requests end once and lanes are nobody's twice; one per life of a daemon.

    Args:
        trace: every event and effect is noted in it.
        deadline_s: seconds that a request has where its client says nothing.
    """

    def __init__(self, trace: Trace, *, deadline_s: float) -> None:
        self.trace = trace
        self.outcomes: Counter[str] = Counter()
        self._deadline_s = deadline_s
        self._requests: dict[RequestId, _Request] = {}
        self._lanes: dict[tuple[GenerationId, LaneId], _Lane] = {}
        self._jobs: dict[JobId, Job] = {}
        self._snapshot: Callable[[], CoreSnapshot] | None = None

    # ---- the observer of a daemon ---------------------------------------------------------------

    def watch(self, snapshot: Callable[[], CoreSnapshot], clock: Callable[[], float]) -> None:
        """See `calculet_trio.shell.lifecycle.Observer`."""
        self._snapshot = snapshot

    def job_finished(self, job: Job, device_s: float | None, taken_s: float) -> None:
        """See `calculet_trio.shell.lifecycle.Observer`."""

    def heard(self, event: ev.Event, now: float) -> None:
        """See `calculet_trio.shell.lifecycle.Observer`."""
        match event:
            case ev.TimePassed():
                return
            case ev.Arrived(request, tenant, _, deadline_s):
                latest_s = now + self._deadline_s
                own_s = latest_s if deadline_s is None else min(latest_s, deadline_s)
                self._requests[request] = _Request(tenant, own_s)
            case ev.SequenceAllocated(generation, lane, request, sequence):
                self._allocated(self._lane(generation, lane), request, sequence)
            case ev.SequenceRefused(generation, lane):
                self._lane(generation, lane).request = None
            case ev.SequenceReleased(generation, lane, _, confirmed):
                self._released(self._lane(generation, lane), confirmed=confirmed)
            case ev.JobFinished(job, generation, _, lost):
                self._job_ended(job, generation, lost=lost)
            case ev.JobFailed(job, generation) | ev.JobNotSubmitted(job, generation):
                self._job_ended(job, generation)
            case ev.JobUnknown(job, generation):
                self._job_ended(job, generation, lost=None)
        self.trace.note(now, type(event).__name__ + _key_of(event))

    def saw(self, effect: ef.Effect, now: float) -> None:
        """See `calculet_trio.shell.lifecycle.Observer`."""
        match effect:
            case ef.AllocateSequence(generation, lane, request):
                held = self._lane(generation, lane)
                _require(held.request is None and not held.is_unknown, f"lane {lane} is given away while it is held")
                held.request = request
            case ef.SubmitJob(_, job):
                self._submitted(job, now)
            case ef.ReleaseSequence(generation, lane, sequence):
                held = self._lane(generation, lane)
                _require(held.sequence == sequence and held.job is None, f"lane {lane} is released in the middle")
            case ef.Deliver(request):
                self._alive(request).tokens += 1
            case ef.Refuse(request) | ef.Finish(request) | ef.Fail(request) | ef.Drop(request):
                self._alive(request).is_over = True
                self.outcomes[type(effect).__name__] += 1
        self.trace.note(now, type(effect).__name__ + _key_of(effect))

    def conclude(self, *, device_lost: bool) -> None:
        """The daemon has ended: everybody who came was told an end, and no lane is held."""
        open_requests = [request for request, entry in self._requests.items() if not entry.is_over]
        _require(not open_requests, f"requests without an end: {open_requests[:5]}")
        _require(sum(self.outcomes.values()) == len(self._requests), "more ends than requests")
        if not device_lost:
            held = [key for key, lane in self._lanes.items() if lane.request is not None and not lane.is_unknown]
            _require(not held, f"lanes are still held: {held[:5]}")
            _require(not self._jobs, f"jobs have not ended: {list(self._jobs)[:5]}")
        assert self._snapshot is not None
        states = self._snapshot().lanes_by_state
        unknown = sum(lane.is_unknown for lane in self._lanes.values())
        _require(states[LaneState.UNKNOWN] >= unknown, "an Unknown lane was made free")

    # ---- lanes ----------------------------------------------------------------------------------

    def _lane(self, generation: GenerationId, lane: LaneId) -> _Lane:
        return self._lanes.setdefault((generation, lane), _Lane())

    def _allocated(self, lane: _Lane, request: RequestId, sequence: SequenceId) -> None:
        _require(lane.request == request and lane.sequence is None, "a lane was allocated to another request")
        lane.sequence = sequence

    def _released(self, lane: _Lane, *, confirmed: bool) -> None:
        lane.request = lane.sequence = None
        lane.is_unknown = lane.is_unknown or not confirmed

    def _submitted(self, job: Job, now: float) -> None:
        self._jobs[job.job] = job
        for work in job.lanes:
            lane = self._lane(job.generation, work.lane)
            _require(not lane.is_unknown, f"an Unknown lane is in job {job.job}")
            _require(lane.job is None, f"lane {work.lane} is in two jobs")
            _require(lane.request == work.request, f"lane {work.lane} is another request's")
            _require(lane.sequence == work.sequence, f"lane {work.lane} holds another sequence")
            _require(now < self._alive(work.request).deadline_s, "an expired request is sent to the device")
            lane.job = job.job

    def _job_ended(
        self, job_id: JobId, generation: GenerationId, *, lost: frozenset[LaneId] | None = frozenset()
    ) -> None:
        job = self._jobs.pop(job_id, None)
        if job is None:
            return  # late or doubled: the core is to ignore it, and its effects would show if it did not
        for work in job.lanes:
            lane = self._lane(generation, work.lane)
            lane.job = None
            lane.is_unknown = lane.is_unknown or lost is None or bool(lost)

    def _alive(self, request: RequestId) -> _Request:
        entry = self._requests.get(request)
        _require(entry is not None, f"request {request} was never here")
        assert entry is not None
        _require(not entry.is_over, f"request {request} has ended already")
        return entry


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Violated(otherwise)


def _key_of(item: object) -> str:
    """The ids in an event or effect, for the trace."""
    match item:
        case ef.SubmitJob(engine, job):
            lanes = ",".join(f"{work.request}@{work.lane}" for work in job.lanes)
            return f" {engine.value} {job.job} {job.phase} {lanes}"
        case ev.JobFinished(job_id, _, results):
            return f" {job_id} {[result.token for result in results]}"
    names = ("request", "job", "lane")
    return "".join(f" {name}={getattr(item, name)}" for name in names if hasattr(item, name))
