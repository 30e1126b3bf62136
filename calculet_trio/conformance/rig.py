"""Rig: a runtime with one configured generation, and the steps that a scheduler would take on it.

Cases are written against this. It keeps what it has allocated, so that a case may end anywhere, and turns
what must not happen into `CaseFailed`.

Source: SPEC section 13; `calculet_trio.runtimes.port`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Final

import attrs
import numpy as np

from calculet_trio.conformance.agreement import EXACT, Agreement, Row, difference
from calculet_trio.conformance.fault_control import NOTHING, FaultControl
from calculet_trio.core.fault_kinds import FaultKind
from calculet_trio.core.jobs import DecodeJob, EngineId, Job, LaneWork, PrefillJob
from calculet_trio.core.profiles import BatchProfile, LaneLayout, choose_window
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.ids import GenerationId, JobId, LaneId, RequestId, SequenceId
from calculet_trio.runtimes.port import Allocated, Finished, NotSubmitted, Runtime, Submitted, Unknown
from calculet_trio.text.rows import widened

CONTEXT_TOKENS_MIN: Final = 48
"""The shortest context that the cases can be tried in."""
_BASE_S: Final = 60.0
_PER_TOKEN_S: Final = 0.05
_WAITING: Final = RequestId(0)
"""The rig has no requests; every lane's work is asked for by nobody in particular."""


class CaseFailed(Exception):
    """The runtime did what it must not, or did not what it must; the sentence says what."""


class NotApplicable(Exception):
    """The package or runtime does not offer what the case is about; the sentence says what is missing."""


class DeviceStopped(CaseFailed):
    """A job's fate is unknown: no further case can be tried on this configuration."""


@attrs.define(eq=False)
class Seat:
    """A sequence in its lane, and how many tokens were committed to it."""

    lane: LaneId
    sequence: SequenceId
    length: int = 0


@attrs.frozen
class Ran:
    """A job that succeeded: its logits, copied, and its seconds on the device."""

    logits: Row | None
    device_s: float


class Rig:
    """See the module.

    Args:
        runtime: opened, with ``generation`` configured; no lane holds a sequence.
        generation: the model under test.
        package: what to configure again after a reset.
        engines: where jobs run; the first, unless a case says otherwise.
        faults: what the runtime declares may be made to go wrong.
        agreement: what may differ where two ways to one context use different kernels.
        chunk_tokens: the piece that a scheduler would cut prompts into.
    """

    def __init__(
        self,
        runtime: Runtime,
        generation: GenerationId,
        *,
        package: Path,
        engines: tuple[EngineId, ...],
        agreement: Agreement,
        chunk_tokens: int,
        faults: FaultControl = NOTHING,
    ) -> None:
        description = runtime.inspect(generation)
        self.runtime = runtime
        self.generation = generation
        self.agreement = agreement
        self.chunk_tokens = chunk_tokens
        self.capabilities = description.capabilities
        usable = tuple(profile for profile in description.shape.decode if profile.is_usable)
        self.shape = attrs.evolve(description.shape, decode=usable)
        self.engines = engines
        self.faults = faults
        self._package = package
        self._jobs = count(1)
        self._seats: list[Seat] = []
        if not usable or self.max_seq < CONTEXT_TOKENS_MIN:
            raise ConfigurationRefused(
                f"the package has a context of {self.shape.max_seq} tokens and {len(usable)} usable decode profiles; "
                f"conformance needs {CONTEXT_TOKENS_MIN} and one"
            )

    @property
    def engine(self) -> EngineId:
        """Where jobs run."""
        return self.engines[0]

    @property
    def max_seq(self) -> int:
        """The longest context that one lane can be prefilled and decoded to, by the smallest profile."""
        return min(self.shape.max_seq, self.shape.prefill.max_seq, *(p.max_seq for p in self.shape.decode[:1]))

    @property
    def batches(self) -> tuple[BatchProfile, ...]:
        """The usable profiles of several lanes.

        Raises:
            NotApplicable: there is none.
        """
        found = tuple(profile for profile in self.shape.decode if profile.compiled_batch > 1)
        if not found:
            raise NotApplicable("the package has no usable profile of several lanes")
        return found

    def tokens(self, seed: int, number: int) -> tuple[int, ...]:
        """So many tokens of no meaning; another seed, other tokens."""
        drawn = np.random.default_rng(seed).integers(0, self.shape.vocab_size, number)
        return tuple(int(token) for token in drawn)

    def may_provoke(self, kind: FaultKind) -> None:
        """Whether a case may make this go wrong.

        Raises:
            NotApplicable: the runtime does not declare that it can be undone.
        """
        if kind not in self.faults.kinds:
            raise NotApplicable(
                f"the runtime does not declare that {kind.value} can be provoked and undone: a board may be shared, "
                "and a fault that stays would be everybody's"
            )

    # ---- the model ------------------------------------------------------------------------------

    def reload(self) -> None:
        """Reset the device and configure the model again; whatever was held is gone."""
        self.unload()
        self.load()

    def unload(self) -> None:
        """Reset the device, which must be quiet afterwards."""
        self._seats.clear()
        if not self.runtime.reset_configuration():
            raise DeviceStopped("after a reset the device is not known to be quiet")

    def load(self) -> None:
        """Configure the model, which must say what its package recorded."""
        self.runtime.configure(self.generation, self._package)
        self.runtime.warm_up(self.generation)
        outcome = self.runtime.golden(self.generation)
        if not outcome.passed:
            raise CaseFailed(f"after a reset: {outcome.detail}")

    # ---- lanes ----------------------------------------------------------------------------------

    def take(self, lane: int) -> Seat:
        """An empty sequence in ``lane``."""
        answer = self.runtime.allocate(self.generation, LaneId(lane), self.shape.max_seq)
        if not isinstance(answer, Allocated):
            raise CaseFailed(f"lane {lane} is free and was not allocated: {answer.reason.value}")
        seat = Seat(LaneId(lane), answer.sequence)
        self._seats.append(seat)
        return seat

    def give_back(self, seat: Seat) -> None:
        """Release the sequence, which must be confirmed."""
        if not self.is_released(seat):
            raise CaseFailed(f"the release of lane {seat.lane} was not confirmed")

    def is_released(self, seat: Seat) -> bool:
        """Try to release the sequence."""
        released = self.runtime.release(self.generation, seat.lane, seat.sequence)
        if released:
            self._seats.remove(seat)
        return released

    def clear(self) -> None:
        """Release everything that a case has left.

        Raises:
            DeviceStopped: not all of it could be.
        """
        left = [seat.lane for seat in tuple(self._seats) if not self.is_released(seat)]
        if left:
            raise DeviceStopped(f"the lanes {left} could not be released")

    # ---- jobs -----------------------------------------------------------------------------------

    def prefill(self, seat: Seat, tokens: Sequence[int], *, samples: bool = True) -> Row:
        """Append tokens to the sequence; the row of the last one (of a piece that samples nothing: zeros)."""
        ran = self.run(self.prefill_job(seat, tokens, samples=samples))
        seat.length += len(tokens)
        if not samples:
            return np.zeros(self.shape.vocab_size, np.float32)
        row: Row = _rows(ran)[0]
        return row

    def decode(self, profile: BatchProfile, tokens: Mapping[Seat, int], *, first: int = 0) -> dict[Seat, Row]:
        """One batch: a token for each seat of the window at ``first``; each one's row."""
        job = self.decode_job(profile, tokens, first=first)
        rows = _rows(self.run(job))
        for seat in tokens:
            seat.length += 1
        return {seat: rows[work.index] for seat, work in zip(tokens, job.lanes, strict=True)}

    def step(self, seat: Seat, token: int) -> Row:
        """One token for one seat, by the smallest profile that reaches it."""
        job = self.step_job(seat, token)
        row = self.row_of(job, self.run(job))
        seat.length += 1
        return row

    def step_job(self, seat: Seat, token: int) -> DecodeJob:
        """The job of `step`."""
        window = choose_window([seat.lane], must=seat.lane, shape=self.shape)
        return self.decode_job(window.profile, {seat: token}, first=window.first)

    def row_of(self, job: Job, ran: Ran, *, work: int = 0) -> Row:
        """The row of one of the job's lanes, in the order in which they were asked for."""
        row: Row = _rows(ran)[job.lanes[work].index]
        return row

    def say(self, seat: Seat, prompt: Sequence[int], following: Sequence[int]) -> list[Row]:
        """The row after the prompt, and after each token that follows."""
        return [self.prefill(seat, prompt), *(self.step(seat, token) for token in following)]

    def alone(self, prompt: Sequence[int], following: Sequence[int] = (), *, lane: int = 0) -> list[Row]:
        """What `say` gives in a lane of its own while no other holds anything that matters."""
        seat = self.take(lane)
        rows = self.say(seat, prompt, following)
        self.give_back(seat)
        return rows

    def prefill_job(
        self, seat: Seat, tokens: Sequence[int], *, position: int | None = None, samples: bool = True
    ) -> Job:
        begin = seat.length if position is None else position
        work = LaneWork(_WAITING, seat.sequence, seat.lane, 0, tuple(tokens), begin, samples=samples)
        return PrefillJob(JobId(next(self._jobs)), self.generation, self.shape.prefill, work)

    def decode_job(self, profile: BatchProfile, tokens: Mapping[Seat, int], *, first: int = 0) -> DecodeJob:
        is_indirect = self.shape.layout is LaneLayout.INDIRECT
        works = tuple(
            LaneWork(
                _WAITING, seat.sequence, seat.lane, row if is_indirect else seat.lane - first, (token,), seat.length
            )
            for row, (seat, token) in enumerate(tokens.items())
        )
        window = None if is_indirect else LaneId(first)
        return DecodeJob(JobId(next(self._jobs)), self.generation, profile, window, works)

    def run(self, job: Job) -> Ran:
        """A job that must succeed."""
        return self.finish(job, self.submit(job))

    def submit(self, job: Job, *, engine: EngineId | None = None) -> Submitted:
        answer = self.runtime.submit(engine or self.engine, job)
        if not isinstance(answer, Submitted):
            raise CaseFailed(f"a {job.phase} job that fits was not taken: {answer.reason.value}")
        return answer

    def finish(self, job: Job, submitted: Submitted, *, engine: EngineId | None = None) -> Ran:
        """Wait for a submitted job, which must succeed."""
        timeout_s = _BASE_S + _PER_TOKEN_S * sum(len(work.tokens) for work in job.lanes)
        began_s = perf_counter()
        outcome = self.runtime.wait(engine or self.engine, submitted.ticket, timeout_s)
        if isinstance(outcome, Unknown):
            raise DeviceStopped(f"the fate of a {job.phase} job is unknown: {outcome.reason.value}")
        if outcome.failed is not None or outcome.lost_lanes:
            raise CaseFailed(
                f"a {job.phase} job failed: {outcome.failed.value if outcome.failed else 'a lane is lost'}"
            )
        taken_s = perf_counter() - began_s if outcome.device_s is None else outcome.device_s
        return Ran(_copied(outcome), taken_s)

    def must_refuse(self, job: Job, why: str) -> None:
        """The job must not be taken, because of ``why``."""
        answer = self.runtime.submit(self.engine, job)
        if not isinstance(answer, NotSubmitted):
            self.finish(job, answer)
            raise CaseFailed(f"a {job.phase} job was taken: {why}")

    # ---- judgement ------------------------------------------------------------------------------

    def same(self, expected: Sequence[Row], got: Sequence[Row], what: str) -> None:
        """The same jobs again: bit for bit the same rows."""
        _compare(EXACT, expected, got, what)

    def agree(self, expected: Sequence[Row], got: Sequence[Row], what: str) -> float:
        """Other jobs to the same contexts: rows within the agreement. Returns the largest difference."""
        return _compare(self.agreement, expected, got, what)

    def tell_apart(self, one: Sequence[Row], other: Sequence[Row], what: str) -> None:
        """Rows of other contexts must not all agree: or a mix-up could not be seen in this case."""
        if all(self.agreement.objection(*pair) is None for pair in zip(one, other, strict=False)):
            raise CaseFailed(f"{what} cannot be told apart within the tolerance, so that a mix-up would not be seen")


def _compare(agreement: Agreement, expected: Sequence[Row], got: Sequence[Row], what: str) -> float:
    worst = 0.0
    for place, pair in enumerate(zip(expected, got, strict=True)):
        objection = agreement.objection(*pair)
        if objection is not None:
            raise CaseFailed(f"{what}: row {place}: {objection}")
        worst = max(worst, difference(*pair))
    return worst


def _rows(ran: Ran) -> Row:
    if ran.logits is None:
        raise CaseFailed("a job whose logits were wanted returned none")
    return ran.logits


def _copied(outcome: Finished) -> Row | None:
    return None if outcome.logits is None else np.array(widened(outcome.logits))
