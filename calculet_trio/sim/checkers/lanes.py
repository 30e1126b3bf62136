"""Lanes are nobody's twice, and one whose content nobody knows is nobody's again.

Source: SPEC section 7 (S §9.1, §9.2).
"""

from __future__ import annotations

import attrs

from calculet_trio.core import effects as ef
from calculet_trio.core import events as ev
from calculet_trio.core.jobs import Job, LaneWork
from calculet_trio.core.lanes import LaneState
from calculet_trio.core.snapshot import CoreSnapshot
from calculet_trio.ids import GenerationId, JobId, LaneId, RequestId, SequenceId
from calculet_trio.sim.checkers.violation import require
from calculet_trio.sim.checkers.watch import Routes


@attrs.define
class _Lane:
    """What the ledger knows of a lane: whose it is or was, which sequence, how long, in which job.

    Attributes:
        is_over: its request has its whole reply: the lane is on its way out, or retained.
    """

    request: RequestId | None = None
    tenant: str | None = None
    is_over: bool = False
    sequence: SequenceId | None = None
    tokens: int = 0
    job: JobId | None = None
    is_unknown: bool = False


class LaneChecker:
    """One daemon's lanes and the jobs on them.

    Args:
        isolation: whether a fault of one lane leaves the job's others whole.
    """

    def __init__(self, *, isolation: bool) -> None:
        self._isolation = isolation
        self._lanes: dict[tuple[GenerationId, LaneId], _Lane] = {}
        self._jobs: dict[JobId, Job] = {}
        self._tenants: dict[RequestId, str] = {}

    def routes(self) -> Routes:
        """See `calculet_trio.sim.checkers.watch.Checker`."""
        return {
            ev.SequenceAllocated: self._allocated,
            ev.SequenceRefused: self._refused,
            ev.SequenceReleased: self._released,
            ev.JobFinished: self._job_finished,
            ev.JobFailed: self._job_withdrawn,
            ev.JobNotSubmitted: self._job_withdrawn,
            ev.JobUnknown: self._job_unknown,
            ev.DeviceReset: self._reset,
            ef.ResetDevice: self._about_to_reset,
            ef.Place: self._placed,
            ef.AllocateSequence: self._given,
            ef.ContinueSequence: self._continued,
            ef.Finish: self._over,
            ef.Refuse: self._ended_for_its_client,
            ef.Fail: self._ended_for_its_client,
            ef.Drop: self._ended_for_its_client,
            ef.SubmitJob: self._submitted,
            ef.ReleaseSequence: self._taken_back,
        }

    @property
    def unknown(self) -> int:
        """Lanes whose content nobody knows."""
        return sum(lane.is_unknown for lane in self._lanes.values())

    def conclude(self, now: float, *, device_lost: bool) -> None:
        """No lane is held, and no job is out."""
        if not device_lost:
            held = [key[1] for key, lane in self._lanes.items() if lane.request is not None and not lane.is_unknown]
            require(not held, f"lanes {held[:5]} are still held")
            require(not self._jobs, f"jobs {list(self._jobs)[:5]} have not ended")

    def compare(self, snapshot: CoreSnapshot) -> None:
        """Hold the core's own counts against these books: an Unknown lane was not made free."""
        unknown = snapshot.lanes_by_state[LaneState.UNKNOWN]
        require(unknown >= self.unknown, f"{self.unknown} lanes are Unknown, and the core counts {unknown}")

    def _lane(self, generation: GenerationId, lane: LaneId) -> _Lane:
        held = self._lanes.get((generation, lane))
        if held is None:
            held = self._lanes[generation, lane] = _Lane()
        return held

    def _given(self, effect: ef.AllocateSequence, now: float) -> None:
        held = self._lane(effect.generation, effect.lane)
        require(not held.is_unknown, f"lane {effect.lane} is Unknown and is given away")
        require(held.request is None, f"lane {effect.lane} is given away while it is held")
        held.request, held.tenant, held.is_over = effect.request, self._tenants[effect.request], False

    def _placed(self, effect: ef.Place, now: float) -> None:
        self._tenants[effect.request] = effect.tenant

    def _over(self, effect: ef.Finish, now: float) -> None:
        for lane in self._lanes.values():
            lane.is_over = lane.is_over or lane.request == effect.request
        self._ended_for_its_client(effect, now)

    def _ended_for_its_client(self, effect: ef.Finish | ef.Refuse | ef.Fail | ef.Drop, now: float) -> None:
        self._tenants.pop(effect.request, None)

    def _continued(self, effect: ef.ContinueSequence, now: float) -> None:
        """Of an ended request of the same tenant, and something of it is left."""
        lane = self._lane(effect.generation, effect.lane)
        tenant = self._tenants[effect.request]
        require(not lane.is_unknown, f"lane {effect.lane} is Unknown and is gone on with")
        require(lane.is_over and lane.job is None, f"lane {effect.lane} is gone on with while it is in use")
        require(lane.sequence == effect.sequence, f"lane {effect.lane} is gone on with as another sequence")
        require(lane.tenant == tenant, f"lane {effect.lane} is {lane.tenant}'s, and {tenant} goes on with it")
        is_left = 0 <= effect.drop_tokens < lane.tokens
        require(is_left, f"{effect.drop_tokens} of {lane.tokens} tokens are dropped of lane {effect.lane}")
        lane.request, lane.is_over = effect.request, False
        lane.tokens -= effect.drop_tokens

    def _allocated(self, event: ev.SequenceAllocated, now: float) -> None:
        lane = self._lane(event.generation, event.lane)
        require(lane.request == event.request, f"lane {event.lane} was allocated to another request")
        if lane.sequence != event.sequence:  # else it was gone on with
            require(lane.sequence is None, f"lane {event.lane} was allocated twice")
            lane.sequence, lane.tokens = event.sequence, 0

    def _refused(self, event: ev.SequenceRefused, now: float) -> None:
        """The lane is empty; or it is about to be emptied, for its tail was not dropped."""
        lane = self._lane(event.generation, event.lane)
        if lane.sequence is None:
            lane.request = None
        lane.is_over = True

    def _taken_back(self, effect: ef.ReleaseSequence, now: float) -> None:
        lane = self._lane(effect.generation, effect.lane)
        require(lane.sequence == effect.sequence, f"lane {effect.lane} is released with another sequence")
        require(lane.job is None, f"lane {effect.lane} is released in the middle of job {lane.job}")

    def _released(self, event: ev.SequenceReleased, now: float) -> None:
        lane = self._lane(event.generation, event.lane)
        lane.request = lane.sequence = None
        lane.is_unknown = lane.is_unknown or not event.confirmed

    def _submitted(self, effect: ef.SubmitJob, now: float) -> None:
        job = effect.job
        self._jobs[job.job] = job
        for work in job.lanes:
            lane = self._lane(job.generation, work.lane)
            require(not lane.is_unknown, "lane {} is Unknown and is in job {}", work.lane, job.job)
            require(lane.job is None, "lane {} is in the jobs {} and {}", work.lane, lane.job, job.job)
            is_own = lane.request == work.request
            require(is_own, "lane {} is request {}'s, not {}'s", work.lane, lane.request, work.request)
            is_there = lane.sequence == work.sequence
            require(is_there, "lane {} holds another sequence than job {} says", work.lane, job.job)
            is_whole = lane.tokens == work.position
            require(is_whole, "lane {} holds {} tokens, not {}", work.lane, lane.tokens, work.position)
            lane.job = job.job

    def _job_finished(self, event: ev.JobFinished, now: float) -> None:
        job = self._jobs.pop(event.job, None)
        if job is None:
            return  # late or doubled: the core is to ignore it
        for work in job.lanes:
            lane = self._ended(job, work)
            if event.lost and (work.lane in event.lost or not self._isolation):
                lane.is_unknown = True
            else:
                lane.tokens += len(work.tokens)

    def _job_withdrawn(self, event: ev.JobFailed | ev.JobNotSubmitted, now: float) -> None:
        job = self._jobs.pop(event.job, None)
        for work in job.lanes if job is not None else ():
            assert job is not None
            self._ended(job, work)

    def _job_unknown(self, event: ev.JobUnknown, now: float) -> None:
        job = self._jobs.pop(event.job, None)
        for work in job.lanes if job is not None else ():
            assert job is not None
            self._ended(job, work).is_unknown = True

    def _about_to_reset(self, effect: ef.ResetDevice, now: float) -> None:
        """Nothing may be out: neither a job, nor an answer about a lane."""
        require(not self._jobs, f"the device is to be reset while jobs {list(self._jobs)[:5]} are out")
        asked = [key[1] for key, lane in self._lanes.items() if lane.request is not None and lane.sequence is None]
        require(not asked, f"the device is to be reset while lanes {asked[:5]} are being allocated")

    def _reset(self, event: ev.DeviceReset, now: float) -> None:
        """Every lane is empty, and nobody's."""
        if event.failed is None:
            self._lanes.clear()

    def _ended(self, job: Job, work: LaneWork) -> _Lane:
        lane = self._lane(job.generation, work.lane)
        lane.job = None
        return lane
