"""Device jobs: what is handed to an engine, and the table of what is in flight.

A job is either not submitted or drained; there is no third way. Each job ends in this table exactly once,
whatever became of the requests in it.

Source: SPEC section 2, 3, 9 (S §2 ``DecodeBatch``, §4, §14).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import attrs

from calculet_trio.core.profiles import BatchProfile, PrefillProfile
from calculet_trio.core.request import Request
from calculet_trio.core.transition import Machine, Symbol, Table
from calculet_trio.ids import GenerationId, JobId, LaneId, RequestId, SequenceId


class EngineId(Symbol):
    """The device's job engines."""

    PING = "ping"
    PONG = "pong"


@attrs.define  # one a lane and step: `Final` guards it, since attrs' frozen kind takes three times as long to make
class LaneWork:
    """What one lane does in one job.

    Args:
        request: whose lane it is.
        sequence: the KV sequence resident in it.
        lane: where that sequence's KV lies.
        index: the lane's row in this batch, and in the logits that come back.
        tokens: token ids to append, in order; one for decode.
        position: the position of the first of them: the lane's committed length.
        samples: whether a token is to be chosen after the last of them; what is known already is only written.
    """

    request: Final[RequestId]
    sequence: Final[SequenceId]
    lane: Final[LaneId]
    index: Final[int]
    tokens: Final[Sequence[int]]
    position: Final[int]
    samples: Final[bool] = True


@attrs.frozen
class PrefillJob:
    """One sequence's prompt, or a chunk of it, as one job."""

    job: JobId
    generation: GenerationId
    profile: PrefillProfile
    work: LaneWork

    phase: ClassVar[str] = "prefill"

    @property
    def lanes(self) -> tuple[LaneWork, ...]:
        return (self.work,)

    @property
    def samples(self) -> bool:
        """Whether logits of its last token are wanted."""
        return self.work.samples


@attrs.frozen
class DecodeJob:
    """One token for each of up to ``profile.compiled_batch`` lanes.

    Lanes ``first_lane .. first_lane + compiled_batch - 1`` are addressed; those without an entry in
    ``lanes`` are inactive and must neither compute attention nor write KV. Where the layout is indirect,
    ``first_lane`` is None: each entry names its lane and its row.
    """

    job: JobId
    generation: GenerationId
    profile: BatchProfile
    first_lane: LaneId | None
    lanes: tuple[LaneWork, ...]

    phase: ClassVar[str] = "decode"

    @property
    def samples(self) -> bool:
        """Whether logits of any lane are wanted."""
        return any(work.samples for work in self.lanes)


Job = PrefillJob | DecodeJob

PIECE_TOKENS_MIN: Final = 2
"""Of a prompt that is not prefilled whole: a token alone may be computed as decode does, and not as in its prompt."""


class JobState(Symbol):
    IN_FLIGHT = "in_flight"
    SETTLED = "settled"
    WITHDRAWN = "withdrawn"
    UNKNOWN = "unknown"


class JobEvent(Symbol):
    SETTLE = "settle"
    WITHDRAW = "withdraw"
    LOSE = "lose"


JOB_TABLE: Final = Table[JobState, JobEvent](
    "job",
    JobState,
    {
        JobState.IN_FLIGHT: {
            JobEvent.SETTLE: JobState.SETTLED,  # the device answered; each lane has its own outcome
            JobEvent.WITHDRAW: JobState.WITHDRAWN,  # the device never took it
            JobEvent.LOSE: JobState.UNKNOWN,  # nobody knows what it did, or still does
        },
        JobState.SETTLED: {},
        JobState.WITHDRAWN: {},
        JobState.UNKNOWN: {},
    },
)


class JobRecord(Machine[JobState, JobEvent]):
    """A job from its plan to its one ending.

    Attributes:
        requests: whose lanes are in it, in the order of ``job.lanes``; they stay registered while it is out.
        company: phases of the jobs that were in flight at some time while it was.
    """

    __slots__ = ("company", "engine", "job", "requests", "submitted_s")

    table = JOB_TABLE

    def __init__(self, job: Job, requests: Sequence[Request], engine: EngineId, *, submitted_s: float) -> None:
        super().__init__(JobState.IN_FLIGHT)
        self.job = job
        self.requests = requests
        self.engine = engine
        self.submitted_s = submitted_s
        self.company: set[str] = set()

    @property
    def beside(self) -> bool | None:
        """Whether decode steps went on beside it; None if a prefill did, whose length says nothing of the pair."""
        return None if "prefill" in self.company else bool(self.company)


class JobTable:
    """The jobs in flight, at most one per engine, and those whose fate is unknown.

    Settled and withdrawn jobs leave the table; an Unknown one stays in it until the device has been reset. Its
    buffers belong to the process for good: they stay counted.

    Attributes:
        unknown_ever: jobs that ever became Unknown, each with a set of buffers that nobody may use again.
    """

    def __init__(self) -> None:
        self.unknown_ever = 0
        self._in_flight: dict[JobId, JobRecord] = {}
        self._unknown: list[JobRecord] = []
        self._next = 1

    def new_id(self) -> JobId:
        job = JobId(self._next)
        self._next += 1
        return job

    def open(self, job: Job, requests: Sequence[Request], engine: EngineId, now: float) -> JobRecord:
        record = JobRecord(job, requests, engine, submitted_s=now)
        for other in self._in_flight.values():
            other.company.add(job.phase)
            record.company.add(other.job.phase)
        self._in_flight[job.job] = record
        return record

    def in_flight_of(self, generation: GenerationId) -> bool:
        """Whether a job of that generation is out."""
        return any(record.job.generation == generation for record in self._in_flight.values())

    def in_flight(self, job: JobId) -> JobRecord | None:
        """The record of a job that has not ended yet; None for a stale or unheard-of id."""
        return self._in_flight.get(job)

    def end(self, record: JobRecord, event: JobEvent) -> None:
        del self._in_flight[record.job.job]
        if record.advance(event) is JobState.UNKNOWN:
            self.unknown_ever += 1
            self._unknown.append(record)

    def forget_unknown(self) -> None:
        """The device was reset and is quiet: none of them is still at work."""
        self._unknown.clear()

    def decoding(self, generation: GenerationId) -> list[Request]:
        """Whose next token is being worked on, in this generation."""
        return [
            request
            for record in self._in_flight.values()
            if isinstance(record.job, DecodeJob) and record.job.generation == generation
            for request in record.requests
        ]

    @property
    def in_flight_count(self) -> int:
        return len(self._in_flight)

    @property
    def unknown_count(self) -> int:
        return len(self._unknown)

    def idle_engine(self, engines: Sequence[EngineId]) -> EngineId | None:
        """The first of ``engines`` that has no job, in flight or unknown."""
        busy = [record.engine for record in (*self._in_flight.values(), *self._unknown)]
        for engine in engines:
            if engine not in busy:
                return engine
        return None
