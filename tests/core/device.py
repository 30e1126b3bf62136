"""A device of a few lanes that remembers what was written into them, and objects to what no device may be told.

It knows the rules of SPEC section 7 from the other side: it is told jobs and releases, and holds tokens.
"""

from __future__ import annotations

from collections.abc import Collection

from calculet_trio.core.jobs import DecodeJob, EngineId, Job, LaneWork, PrefillJob
from calculet_trio.ids import JobId, LaneId, RequestId, SequenceId


class Device:
    """Lanes with their content; jobs that are out; engines that were lost.

    Attributes:
        sequence: the KV sequence that each lane holds; None for an empty lane.
        content: the tokens committed to each lane.
        singly: of each of these, whether its job had no other token for the lane, as a decode step has none.
        dirty: lanes whose last job's output failed: what they hold may only be thrown away.
        pool: the KV pool that the lane's sequence has been decoded in; None before that.
        lost: lanes of which nobody knows what they hold; they may never be named again.
    """

    def __init__(self, lanes: int, engines: tuple[EngineId, ...]) -> None:
        self.sequence: dict[LaneId, SequenceId | None] = {LaneId(lane): None for lane in range(lanes)}
        self.content: dict[LaneId, list[int]] = {LaneId(lane): [] for lane in range(lanes)}
        self.singly: dict[LaneId, list[bool]] = {LaneId(lane): [] for lane in range(lanes)}
        self.pool: dict[LaneId, str | None] = {}
        self.dirty: set[LaneId] = set()
        self.lost: set[LaneId] = set()
        self.jobs: dict[JobId, Job] = {}
        self.busy: dict[EngineId, JobId | None] = dict.fromkeys(engines)
        self._engines = engines
        self._engine_of: dict[JobId, EngineId] = {}
        self._sequences = 0
        self._releasing: set[LaneId] = set()

    # ---- lanes ----------------------------------------------------------------------------------

    def expect_empty(self, lane: LaneId) -> None:
        """A lane that is about to be allocated holds nothing, and that is certain."""
        assert lane not in self.lost, f"lane {lane} is unknown: it goes to nobody"
        assert self.sequence[lane] is None, f"lane {lane} still holds a sequence"

    def allocate(self, lane: LaneId) -> SequenceId:
        self.expect_empty(lane)
        self._sequences += 1
        sequence = self.sequence[lane] = SequenceId(self._sequences)
        self.content[lane] = []
        self.singly[lane] = []
        self.pool[lane] = None
        return sequence

    def shorten(self, lane: LaneId, sequence: SequenceId, tokens: int) -> None:
        """Drop the last tokens of a sequence that was left in its lane."""
        assert lane not in self.lost, f"lane {lane} is unknown: nobody goes on from it"
        assert lane not in self._releasing, "it is on its way out"
        assert lane not in self.dirty, "nothing is built on an output that failed"
        assert self.sequence[lane] == sequence, "the lane holds another sequence"
        assert all(lane != work.lane for job in self.jobs.values() for work in job.lanes), "the lane is in a job"
        assert 0 <= tokens < len(self.content[lane])
        kept = len(self.content[lane]) - tokens
        del self.content[lane][kept:], self.singly[lane][kept:]

    def begin_release(self, lane: LaneId, sequence: SequenceId) -> None:
        assert lane not in self.lost, f"lane {lane} is unknown: nothing of it may be freed"
        assert self.sequence[lane] == sequence, "only what a lane holds can be released"
        assert lane not in self._releasing, "a sequence is released once"
        assert all(lane != work.lane for job in self.jobs.values() for work in job.lanes), "the lane is in a job"
        self._releasing.add(lane)

    def end_release(self, lane: LaneId, *, confirmed: bool) -> None:
        self._releasing.remove(lane)
        if confirmed:
            self.sequence[lane] = None
            self.dirty.discard(lane)
        else:
            self.lost.add(lane)

    # ---- jobs -----------------------------------------------------------------------------------

    def submit(self, engine: EngineId, job: Job) -> None:
        """Take a job, having checked every word of it."""
        assert engine in self.busy, f"{engine.name} was lost"
        assert self.busy[engine] is None, f"{engine.name} has a job already"
        assert job.job not in self._engine_of, "job ids are never reused"
        assert job.lanes, "a job has work"
        out = {work.lane for other in self.jobs.values() for work in other.lanes}
        for work in job.lanes:
            assert work.lane not in self.lost, f"lane {work.lane} is unknown: no job may touch it"
            assert work.lane not in self.dirty, "nothing is built on an output that failed"
            assert work.lane not in out, f"lane {work.lane} is in two jobs"
            assert work.lane not in self._releasing, f"lane {work.lane} is being released"
            assert self.sequence[work.lane] == work.sequence, "the lane holds another sequence"
            assert work.position == len(self.content[work.lane]), "a position is the committed length"
            out.add(work.lane)
            if isinstance(job, DecodeJob):
                assert self.pool[work.lane] in (None, job.profile.kv_pool), "its KV lies where this profile cannot read"
                self.pool[work.lane] = job.profile.kv_pool
        _expect_shape(job)
        self.jobs[job.job] = job
        self._engine_of[job.job] = engine
        self.busy[engine] = job.job

    def end(self, job: JobId, *, written: bool = False, dirty: bool = False) -> Job:
        """The job is over; ``written`` says that its tokens are in its lanes, ``dirty`` that nobody may use them."""
        ended = self.jobs.pop(job)
        if self._engine_of[job] in self.busy:
            self.busy[self._engine_of[job]] = None
        for work in ended.lanes:
            if written:
                self.content[work.lane] += work.tokens
                self.singly[work.lane] += [len(work.tokens) == 1] * len(work.tokens)
            if dirty:
                self.dirty.add(work.lane)
        return ended

    def lose_lanes(self, lanes: Collection[LaneId]) -> None:
        """Of these lanes nobody knows what they hold; the device is sure about the others."""
        self.lost.update(lanes)

    def lose(self, job: JobId) -> Job:
        """Nobody knows what the job does: its engine and its lanes are gone."""
        lost = self.jobs.pop(job)
        self.busy.pop(self._engine_of[job], None)
        self.lost.update(work.lane for work in lost.lanes)
        return lost

    def quarantine(self, engine: EngineId) -> None:
        """An engine is given up: for the job that was lost on it, or with the whole device."""
        self.busy.pop(engine, None)

    def abandon(self) -> None:
        """Only a new process may use it."""
        assert not self.busy, "an engine could still be used"
        self.lost.update(self.sequence)

    def reset(self) -> None:
        """It is empty and quiet again."""
        assert self.is_quiet, "nothing may be out when the device is reset"
        self.sequence = dict.fromkeys(self.sequence)
        self.lost.clear()
        self.dirty.clear()
        self.busy = dict.fromkeys(self._engines)

    def work_of(self, request: RequestId) -> LaneWork | None:
        """What a job that is out does for the request."""
        works = [work for job in self.jobs.values() for work in job.lanes if work.request == request]
        assert len(works) <= 1
        return works[0] if works else None

    @property
    def is_quiet(self) -> bool:
        return not self.jobs and not self._releasing


def _expect_shape(job: Job) -> None:
    match job:
        case PrefillJob():
            assert job.phase == "prefill"
            assert job.work.index == 0
            assert len(job.work.tokens) + job.work.position <= job.profile.max_seq
        case DecodeJob():
            assert job.phase == "decode"
            assert len(job.lanes) <= job.profile.compiled_batch
            for work in job.lanes:
                if job.first_lane is not None:
                    assert work.index == work.lane - job.first_lane
                assert 0 <= work.index < job.profile.compiled_batch
                assert len(work.tokens) == 1
                assert work.position < job.profile.max_seq
            assert len({work.index for work in job.lanes}) == len(job.lanes), "a row for each"
