"""The contract of `calculet_trio.runtimes.port.Runtime`: one suite that every runtime passes.

Subclass `RuntimeContract` in a test module and give it a ``subject`` fixture: an opened runtime with one
configured generation, no lane of which holds a sequence. The model must have at least four lanes, contexts
of at least sixteen tokens, and a decode profile of one lane.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import count

import attrs
import numpy as np
import pytest

from calculet_trio.core.events import FaultReason
from calculet_trio.core.jobs import DecodeJob, EngineId, Job, LaneWork, PrefillJob
from calculet_trio.core.profiles import BatchProfile, ModelShape
from calculet_trio.ids import GenerationId, JobId, LaneId, RequestId, SequenceId
from calculet_trio.runtimes.port import (
    Allocated,
    Finished,
    NotAllocated,
    NotSubmitted,
    Runtime,
    Submitted,
    Unknown,
)
from calculet_trio.text.ranking import Row
from calculet_trio.text.rows import widened

WAIT_S = 60.0
PROMPT = (5, 7, 11, 13, 17)
OTHER_GENERATION = GenerationId(999)
JOB_IDS = count(1)


@attrs.define
class Subject:
    """A runtime under test with its configured generation, and the steps a scheduler would take."""

    runtime: Runtime
    generation: GenerationId
    engine: EngineId = EngineId.PING

    @property
    def shape(self) -> ModelShape:
        return self.runtime.inspect(self.generation).shape

    @property
    def single(self) -> BatchProfile:
        return next(profile for profile in self.shape.decode if profile.compiled_batch == 1)

    def allocate(self, lane: int, tokens: int | None = None) -> SequenceId:
        answer = self.runtime.allocate(self.generation, LaneId(lane), tokens or self.shape.max_seq)
        assert isinstance(answer, Allocated), answer
        return answer.sequence

    def release(self, lane: int, sequence: SequenceId) -> bool:
        return self.runtime.release(self.generation, LaneId(lane), sequence)

    def prefill_job(self, lane: int, sequence: SequenceId, tokens: Sequence[int] = PROMPT, position: int = 0) -> Job:
        work = LaneWork(RequestId(1), sequence, LaneId(lane), 0, tuple(tokens), position)
        return PrefillJob(JobId(next(JOB_IDS)), self.generation, self.shape.prefill, work)

    def decode_job(self, profile: BatchProfile, first: int, works: Sequence[LaneWork]) -> Job:
        return DecodeJob(JobId(next(JOB_IDS)), self.generation, profile, LaneId(first), tuple(works))

    def one_token(self, lane: int, sequence: SequenceId, token: int, position: int) -> Job:
        return self.decode_job(self.single, lane, [work(lane, sequence, 0, token, position)])

    def submit(self, job: Job) -> Submitted | NotSubmitted:
        return self.runtime.submit(self.engine, job)

    def wait(self, submitted: Submitted) -> Finished | Unknown:
        return self.runtime.wait(self.engine, submitted.ticket, WAIT_S)

    def run(self, job: Job) -> Row:
        """The logits of a job that must succeed, copied, as float32."""
        submitted = self.submit(job)
        assert isinstance(submitted, Submitted), submitted
        outcome = self.wait(submitted)
        assert isinstance(outcome, Finished)
        assert outcome.failed is None
        assert outcome.logits is not None
        return np.array(widened(outcome.logits))

    def must_refuse(self, job: Job) -> FaultReason:
        answer = self.submit(job)
        assert isinstance(answer, NotSubmitted), answer
        return answer.reason


def work(lane: int, sequence: SequenceId, index: int, token: int, position: int) -> LaneWork:
    return LaneWork(RequestId(1), sequence, LaneId(lane), index, (token,), position)


class RuntimeContract:
    """The suite; see the module."""

    @pytest.fixture
    def subject(self) -> Subject:
        raise NotImplementedError("a runtime's own test module gives its subject")

    # ---- what was configured ------------------------------------------------------------------------

    def test_the_device_is_well_when_opened(self, subject: Subject) -> None:
        assert subject.runtime.status().ok

    def test_the_description_agrees_with_itself(self, subject: Subject) -> None:
        description = subject.runtime.inspect(subject.generation)
        shape = description.shape
        assert (description.kv.lanes, description.kv.max_seq) == (shape.lanes, shape.max_seq)
        batches = [profile.compiled_batch for profile in shape.decode]
        assert batches == sorted(set(batches))
        assert batches[0] >= 1
        assert batches[-1] <= shape.lanes
        assert all(1 <= profile.max_seq <= shape.max_seq for profile in (*shape.decode, shape.prefill))

    def test_memory_is_known_at_any_time(self, subject: Subject) -> None:
        memory = subject.runtime.memory()
        assert memory.used_bytes >= 0
        assert memory.total_bytes is None or memory.total_bytes >= memory.used_bytes

    def test_warm_up_and_golden_leave_every_lane_free(self, subject: Subject) -> None:
        subject.runtime.warm_up(subject.generation)
        golden = subject.runtime.golden(subject.generation)
        assert golden.passed, golden.detail
        assert subject.runtime.can_allocate(subject.generation, subject.shape.lanes)
        for lane in range(subject.shape.lanes):
            subject.allocate(lane)

    # ---- lanes --------------------------------------------------------------------------------------

    def test_every_lane_holds_one_sequence_of_its_own(self, subject: Subject) -> None:
        lanes = range(subject.shape.lanes)
        assert len({subject.allocate(lane) for lane in lanes}) == len(lanes)
        assert not subject.runtime.can_allocate(subject.generation, 1)
        for lane in lanes:
            assert isinstance(subject.runtime.allocate(subject.generation, LaneId(lane), 1), NotAllocated)

    @pytest.mark.parametrize("lane", [-1, 10_000])
    def test_a_lane_that_is_not_there_holds_nothing(self, subject: Subject, lane: int) -> None:
        assert isinstance(subject.runtime.allocate(subject.generation, LaneId(lane), 1), NotAllocated)

    def test_a_sequence_longer_than_a_lane_is_not_allocated(self, subject: Subject) -> None:
        too_long = subject.shape.max_seq + 1
        assert isinstance(subject.runtime.allocate(subject.generation, LaneId(0), too_long), NotAllocated)

    def test_a_release_is_confirmed_once_and_for_its_own_sequence_only(self, subject: Subject) -> None:
        sequence, neighbour = subject.allocate(0), subject.allocate(1)
        assert not subject.release(0, neighbour)
        assert not subject.release(1, sequence)
        assert subject.release(0, sequence)
        assert not subject.release(0, sequence)
        following = subject.allocate(0)
        assert following not in (sequence, neighbour)
        assert not subject.release(0, sequence)

    def test_a_released_lane_begins_empty(self, subject: Subject) -> None:
        sequence = subject.allocate(0)
        subject.run(subject.prefill_job(0, sequence))
        assert subject.release(0, sequence)
        following = subject.allocate(0)
        subject.must_refuse(subject.one_token(0, following, 3, len(PROMPT)))
        subject.run(subject.prefill_job(0, following, PROMPT[:2]))

    def test_remove_tail_shortens_a_sequence_where_it_is_claimed(self, subject: Subject) -> None:
        if "remove_tail" not in subject.runtime.inspect(subject.generation).capabilities:
            pytest.skip("this runtime does not claim remove_tail")
        sequence = subject.allocate(0)
        subject.run(subject.prefill_job(0, sequence))
        assert not subject.runtime.remove_tail(subject.generation, sequence, len(PROMPT) + 1)
        assert subject.runtime.remove_tail(subject.generation, sequence, 2)
        subject.must_refuse(subject.one_token(0, sequence, 3, len(PROMPT)))
        subject.run(subject.one_token(0, sequence, 3, len(PROMPT) - 2))

    # ---- jobs ---------------------------------------------------------------------------------------

    def test_prefill_returns_one_row_of_the_vocabulary(self, subject: Subject) -> None:
        sequence = subject.allocate(2)
        logits = subject.run(subject.prefill_job(2, sequence))
        assert logits.dtype == np.float32
        assert logits.shape == (1, subject.shape.vocab_size)

    def test_every_profile_decodes_in_every_window(self, subject: Subject) -> None:
        shape = subject.shape
        sequences = [subject.allocate(lane) for lane in range(shape.lanes)]
        lengths = [len(PROMPT) - lane % 3 for lane in range(shape.lanes)]
        for lane, sequence in enumerate(sequences):
            subject.run(subject.prefill_job(lane, sequence, PROMPT[: lengths[lane]]))
        for profile in shape.decode:
            batch = profile.compiled_batch
            for first in {0, (shape.lanes - batch) // 2, shape.lanes - batch}:
                lanes = [lane for lane in range(first, first + batch) if lengths[lane] < shape.max_seq][::2]
                works = [work(lane, sequences[lane], lane - first, 3, lengths[lane]) for lane in lanes]
                logits = subject.run(subject.decode_job(profile, first, works))
                assert logits.shape == (batch, shape.vocab_size)
                for lane in lanes:
                    lengths[lane] += 1

    def test_a_sequence_grows_by_what_was_committed(self, subject: Subject) -> None:
        sequence = subject.allocate(1)
        subject.run(subject.prefill_job(1, sequence))
        for position in range(len(PROMPT), len(PROMPT) + 3):
            for wrong in (position - 1, position + 1):
                subject.must_refuse(subject.one_token(1, sequence, 3, wrong))
            subject.run(subject.one_token(1, sequence, 3, position))

    def test_a_lane_is_full_at_its_length(self, subject: Subject) -> None:
        sequence = subject.allocate(0, tokens=len(PROMPT) + 1)
        subject.run(subject.prefill_job(0, sequence))
        subject.run(subject.one_token(0, sequence, 3, len(PROMPT)))
        subject.must_refuse(subject.one_token(0, sequence, 3, len(PROMPT) + 1))
        other = subject.allocate(1, tokens=len(PROMPT))
        subject.must_refuse(subject.prefill_job(1, other, (*PROMPT, 3)))

    @pytest.mark.parametrize("token", [-1, 2**31])
    def test_a_token_outside_the_vocabulary_is_refused(self, subject: Subject, token: int) -> None:
        sequence = subject.allocate(0)
        subject.must_refuse(subject.prefill_job(0, sequence, (3, token)))
        subject.run(subject.prefill_job(0, sequence))
        for bad in (token, subject.shape.vocab_size):
            subject.must_refuse(subject.one_token(0, sequence, bad, len(PROMPT)))
        subject.run(subject.one_token(0, sequence, subject.shape.vocab_size - 1, len(PROMPT)))

    def test_a_bad_lane_refuses_the_whole_job(self, subject: Subject) -> None:
        profile = subject.shape.decode[-1]
        if profile.compiled_batch < 2:
            pytest.skip("no profile of several lanes")
        first, second = subject.allocate(0), subject.allocate(1)
        subject.run(subject.prefill_job(0, first))
        subject.run(subject.prefill_job(1, second))
        end = len(PROMPT)
        good = work(0, first, 0, 3, end)
        stranger = SequenceId(second + 1_000_000)
        for bad in (
            work(1, second, 1, 3, end + 1),  # not its length
            work(1, stranger, 1, 3, end),  # nobody's sequence
            work(1, first, 1, 3, end),  # the neighbour's sequence
            work(1, second, 2, 3, end),  # not its place in the window
            work(1, second, -1, 3, end),
            work(0, first, 0, 3, end),  # twice the same lane
            work(2, second, 2, 3, 0),  # an empty lane
            attrs.evolve(work(1, second, 1, 3, end), tokens=(3, 4)),  # two tokens
            attrs.evolve(work(1, second, 1, 3, end), tokens=()),
        ):
            subject.must_refuse(subject.decode_job(profile, 0, [good, bad]))
        subject.run(subject.decode_job(profile, 0, [good, work(1, second, 1, 3, end)]))

    def test_jobs_that_fit_no_submodel_are_refused(self, subject: Subject) -> None:
        sequence = subject.allocate(0)
        subject.must_refuse(subject.prefill_job(0, sequence, ()))
        subject.must_refuse(attrs.evolve(subject.prefill_job(0, sequence), generation=OTHER_GENERATION))
        subject.run(subject.prefill_job(0, sequence))
        job = subject.one_token(0, sequence, 3, len(PROMPT))
        assert isinstance(job, DecodeJob)
        unheard_of = attrs.evolve(job.profile, submodel="decode_b3", compiled_batch=3)
        for bad in (
            attrs.evolve(job, lanes=()),
            attrs.evolve(job, profile=unheard_of),
            attrs.evolve(job, first_lane=LaneId(-1)),
            attrs.evolve(job, first_lane=LaneId(subject.shape.lanes)),
        ):
            subject.must_refuse(bad)
        subject.run(job)

    def test_an_engine_takes_one_job_at_a_time(self, subject: Subject) -> None:
        first, second = subject.allocate(0), subject.allocate(1)
        submitted = subject.submit(subject.prefill_job(0, first))
        assert isinstance(submitted, Submitted)
        assert subject.must_refuse(subject.prefill_job(1, second)) is FaultReason.DEVICE_BUSY
        assert isinstance(subject.wait(submitted), Finished)
        subject.run(subject.prefill_job(1, second))

    def test_a_lane_in_a_job_is_neither_released_nor_shortened(self, subject: Subject) -> None:
        sequence = subject.allocate(0)
        subject.run(subject.prefill_job(0, sequence))
        submitted = subject.submit(subject.one_token(0, sequence, 3, len(PROMPT)))
        assert isinstance(submitted, Submitted)
        assert not subject.release(0, sequence)
        assert not subject.runtime.remove_tail(subject.generation, sequence, 1)
        assert isinstance(subject.wait(submitted), Finished)
        assert subject.release(0, sequence)

    def test_lanes_are_managed_from_another_thread_while_a_job_runs(self, subject: Subject) -> None:
        sequence = subject.allocate(0)
        submitted = subject.submit(subject.prefill_job(0, sequence))
        assert isinstance(submitted, Submitted)
        released = []
        neighbour = threading.Thread(target=lambda: released.append(subject.release(1, subject.allocate(1))))
        neighbour.start()
        assert isinstance(subject.wait(submitted), Finished)
        neighbour.join(WAIT_S)
        assert released == [True]

    # ---- the end ------------------------------------------------------------------------------------

    def test_a_reset_forgets_every_model(self, subject: Subject) -> None:
        sequence = subject.allocate(0)
        job = subject.prefill_job(0, sequence)
        assert subject.runtime.reset_configuration()
        assert isinstance(subject.submit(job), NotSubmitted)
        assert not subject.release(0, sequence)
        assert not subject.runtime.can_allocate(subject.generation, 1)

    def test_close_may_come_twice(self, subject: Subject) -> None:
        subject.runtime.close()
        subject.runtime.close()
        assert not subject.runtime.status().ok
