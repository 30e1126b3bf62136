"""Recording and replaying golden through the port itself, on any device; what a recording is, `packages.golden` says.

A replay goes through every profile that may be used, several sequences in one batch, so that a lane that reads
another's KV is found before anybody is served. No lane holds a sequence before or after.

Source: SPEC section 8 (S §11 step 9); A §9D.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Final

import attrs

from calculet_trio.core.jobs import DecodeJob, EngineId, Job, LaneWork, PrefillJob
from calculet_trio.core.profiles import BatchProfile, ModelShape
from calculet_trio.errors import PackageError
from calculet_trio.ids import GenerationId, JobId, LaneId, RequestId, SequenceId
from calculet_trio.packages import golden
from calculet_trio.packages.golden import Deviation, GoldenSequence
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.manifest_parts import Golden
from calculet_trio.runtimes.port import Allocated, Finished, GoldenResult, Runtime, Submitted
from calculet_trio.text.ranking import Row
from calculet_trio.text.rows import widened

JOB_S: Final = 600.0
"""A prefill of the longest prompt recorded takes seconds at most; a device that takes longer is stuck."""
NOBODY: Final = RequestId(0)


@attrs.define(eq=False)
class _Seat:
    """A sequence in its lane, and how many tokens it holds."""

    lane: LaneId
    sequence: SequenceId
    length: int = 0


class GoldenRun:
    """One model on one engine, spoken to as a scheduler would.

    Args:
        runtime: with ``generation`` configured; no lane holds a sequence.
        generation: the model.
        shape: its shape.
        engine: where the jobs run.
    """

    def __init__(self, runtime: Runtime, generation: GenerationId, shape: ModelShape, engine: EngineId) -> None:
        self._runtime = runtime
        self._generation = generation
        self._shape = shape
        self._engine = engine
        self._jobs = count(1)

    @property
    def profiles(self) -> tuple[BatchProfile, ...]:
        """Those that may be used."""
        return tuple(profile for profile in self._shape.decode if profile.is_usable)

    @contextmanager
    def seats(self, number: int) -> Iterator[list[_Seat]]:
        """Sequences in the first lanes; released in the end."""
        taken: list[_Seat] = []
        try:
            for lane in map(LaneId, range(number)):
                answer = self._runtime.allocate(self._generation, lane, self._shape.max_seq)
                if not isinstance(answer, Allocated):
                    raise PackageError(f"lane {lane} is free and was not allocated: {answer.reason.value}")
                taken.append(_Seat(lane, answer.sequence))
            yield taken
        finally:
            for seat in taken:
                self._runtime.release(self._generation, seat.lane, seat.sequence)

    def prefill(self, seat: _Seat, tokens: Sequence[int]) -> Row:
        """Append tokens; the row of the last one."""
        work = LaneWork(NOBODY, seat.sequence, seat.lane, 0, tuple(tokens), seat.length)
        rows = self._rows(PrefillJob(JobId(next(self._jobs)), self._generation, self._shape.prefill, work))
        seat.length += len(tokens)
        return rows

    def decode(self, profile: BatchProfile, tokens: Sequence[tuple[_Seat, int]]) -> Row:
        """One batch in the window at lane 0; rows by lane."""
        works = tuple(LaneWork(NOBODY, s.sequence, s.lane, s.lane, (token,), s.length) for s, token in tokens)
        rows = self._rows(DecodeJob(JobId(next(self._jobs)), self._generation, profile, LaneId(0), works))
        for seat, _ in tokens:
            seat.length += 1
        return rows

    def _rows(self, job: Job) -> Row:
        submitted = self._runtime.submit(self._engine, job)
        if not isinstance(submitted, Submitted):
            raise PackageError(f"the device did not take a {job.phase}: {submitted.reason.value}")
        outcome = self._runtime.wait(self._engine, submitted.ticket, JOB_S)
        if not isinstance(outcome, Finished) or outcome.logits is None:
            reason = outcome.failed if isinstance(outcome, Finished) else outcome.reason
            raise PackageError(f"a {job.phase} came to nothing: {reason.value if reason else 'it has no logits'}")
        return widened(outcome.logits)


def warm_up(run: GoldenRun) -> None:
    """Every submodel once.

    Raises:
        PackageError: one of them did not run.
    """
    with run.seats(1) as [seat]:
        run.prefill(seat, (0,))
        for profile in run.profiles:
            run.decode(profile, [(seat, 0)])


def record(run: GoldenRun, manifest: Manifest) -> tuple[GoldenSequence, ...]:
    """What the model says, alone in a lane, after each of `golden.prompts`.

    Raises:
        PackageError: it cannot be run.
    """
    sequences = []
    for prompt in golden.prompts(manifest):
        with run.seats(1) as [seat]:
            steps = [golden.likeliest(run.prefill(seat, prompt)[0])]
            for _ in range(golden.DECODE_STEPS):
                steps.append(golden.likeliest(run.decode(run.profiles[0], [(seat, steps[-1][0].token)])[0]))
        sequences.append(GoldenSequence(prompt, tuple(steps)))
    return tuple(sequences)


def replay(run: GoldenRun, sequences: Sequence[GoldenSequence], recorded: Golden) -> GoldenResult:
    """Run the recording through prefill and every profile, and compare.

    Raises:
        PackageError: it cannot be run.
    """
    worst = 0.0
    changed = 0
    for deviation in _deviations(run, sequences, recorded.decisive_gap):
        changed += deviation.decided_otherwise
        worst = max(worst, deviation.logit)
    detail = (
        f"largest logit difference {worst:.4g} (allowed {recorded.logit_tolerance:g}), "
        f"{changed} clear decisions changed (allowed 0)"
    )
    return GoldenResult(passed=worst <= recorded.logit_tolerance and not changed, detail=detail)


def _deviations(run: GoldenRun, sequences: Sequence[GoldenSequence], gap: float) -> Iterator[Deviation]:
    for profile in run.profiles:
        active = sequences[: profile.compiled_batch]
        with run.seats(len(active)) as seats:
            for seat, sequence in zip(seats, active, strict=True):
                yield golden.deviation(sequence.steps[0], run.prefill(seat, sequence.prompt)[0], decisive_gap=gap)
            for done in range(1, max(len(sequence.steps) for sequence in active)):
                lanes = [lane for lane, sequence in enumerate(active) if done < len(sequence.steps)]
                rows = run.decode(profile, [(seats[lane], active[lane].steps[done - 1][0].token) for lane in lanes])
                for lane in lanes:
                    yield golden.deviation(active[lane].steps[done], rows[lane], decisive_gap=gap)
