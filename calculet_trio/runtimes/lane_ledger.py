"""Which sequence lies in which KV lane of a device, how long it is, and whether a job may touch it.

The core keeps its own books; these are the device's, so that a mistake above is refused here and never
overwrites another sequence's KV.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Final

import attrs

from calculet_trio.core.events import FaultReason
from calculet_trio.core.jobs import DecodeJob, Job, LaneWork, PrefillJob
from calculet_trio.core.profiles import LaneLayout, ModelShape
from calculet_trio.ids import LaneId, SequenceId

SEQUENCE_IDS: Final = count(1)
"""One numbering for the process: a sequence id is never used twice, whatever is loaded or unloaded."""


@attrs.define
class Resident:
    """A sequence in a lane: tokens committed, tokens allowed, and whether a job holds it now."""

    sequence: SequenceId
    tokens_max: int
    length: int = 0
    in_job: bool = False


class LaneLedger:
    """The lanes of one model.

    Args:
        shape: the model's.
        ids: numbers for its sequences.
    """

    def __init__(self, shape: ModelShape, ids: Iterator[int] = SEQUENCE_IDS) -> None:
        self._shape = shape
        self._ids = ids
        self._residents: dict[LaneId, Resident] = {}

    @property
    def free_lanes(self) -> int:
        return self._shape.lanes - len(self._residents)

    @property
    def in_job(self) -> bool:
        return any(resident.in_job for resident in self._residents.values())

    def allocate(self, lane: LaneId, tokens: int) -> SequenceId | None:
        """A new, empty sequence in ``lane``; None if the lane is taken, or no lane could hold so much."""
        if lane in self._residents or not 0 <= lane < self._shape.lanes or not 1 <= tokens <= self._shape.max_seq:
            return None
        sequence = SequenceId(next(self._ids))
        self._residents[lane] = Resident(sequence, tokens_max=tokens)
        return sequence

    def occupant(self, lane: LaneId) -> SequenceId | None:
        """The sequence in ``lane``; None for an empty one."""
        resident = self._residents.get(lane)
        return None if resident is None else resident.sequence

    def release(self, lane: LaneId, sequence: SequenceId) -> bool:
        """Empty the lane; False if another sequence is there, none, or a job holds it."""
        if not self.may_release(lane, sequence):
            return False
        del self._residents[lane]
        return True

    def may_release(self, lane: LaneId, sequence: SequenceId) -> bool:
        """Whether `release` would."""
        resident = self._residents.get(lane)
        return resident is not None and resident.sequence == sequence and not resident.in_job

    def remove_tail(self, sequence: SequenceId, tokens: int) -> bool:
        """Shorten a sequence that no job holds; its KV beyond the new length is never read again."""
        resident = self._shortened(sequence, tokens)
        if resident is not None:
            resident.length -= tokens
        return resident is not None

    def may_remove_tail(self, sequence: SequenceId, tokens: int) -> bool:
        """Whether `remove_tail` would."""
        return self._shortened(sequence, tokens) is not None

    def _shortened(self, sequence: SequenceId, tokens: int) -> Resident | None:
        for resident in self._residents.values():
            if resident.sequence == sequence and not resident.in_job and 0 <= tokens <= resident.length:
                return resident
        return None

    # ---- jobs -------------------------------------------------------------------------------------

    def refuse(self, job: Job) -> FaultReason | None:
        """Why the job must not run, or None. Looks at every lane before any is touched."""
        if isinstance(job, PrefillJob):
            fits = job.profile == self._shape.prefill and job.work.index == 0 and len(job.work.tokens) > 0
        else:
            fits = job.profile in self._shape.decode and self._fits_window(job)
        if not fits:
            return FaultReason.RUNTIME_ERROR
        max_seq = min(job.profile.max_seq, self._shape.max_seq)
        for work in job.lanes:
            reason = self._refuse_lane(work, max_seq)
            if reason is not None:
                return reason
        return None

    def hold(self, job: Job) -> None:
        """The job is submitted: nothing else may touch its lanes until `settle`."""
        for work in job.lanes:
            self._residents[work.lane].in_job = True

    def settle(self, job: Job, *, committed: bool) -> None:
        """The job is over; only a committed one lengthens its sequences."""
        for work in job.lanes:
            resident = self._residents[work.lane]
            resident.in_job = False
            if committed:
                resident.length += len(work.tokens)

    def _fits_window(self, job: DecodeJob) -> bool:
        batch, first = job.profile.compiled_batch, job.first_lane
        indices = [work.index for work in job.lanes]
        if not (
            indices
            and len(set(indices)) == len(indices)
            and 0 <= min(indices) <= max(indices) < batch
            and {len(work.tokens) for work in job.lanes} == {1}
        ):
            return False
        if self._shape.layout is LaneLayout.INDIRECT:
            return first is None and len({work.lane for work in job.lanes}) == len(indices)
        return (
            first is not None
            and 0 <= first <= self._shape.lanes - batch
            and {work.lane - work.index for work in job.lanes} == {first}
        )

    def _refuse_lane(self, work: LaneWork, max_seq: int) -> FaultReason | None:
        resident = self._residents.get(work.lane)
        if resident is None or resident.sequence != work.sequence or resident.in_job:
            return FaultReason.RUNTIME_ERROR
        if work.position != resident.length:
            return FaultReason.RUNTIME_ERROR
        if resident.length + len(work.tokens) > min(resident.tokens_max, max_seq):
            return FaultReason.NO_CAPACITY
        if not 0 <= min(work.tokens) <= max(work.tokens) < self._shape.vocab_size:
            return FaultReason.RUNTIME_ERROR
        return None
