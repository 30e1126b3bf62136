"""Emulated boards to try the suite on: a good one, and one for everything that a case is to find."""

from __future__ import annotations

from pathlib import Path

import attrs

from calculet_trio.cli.wiring_conformance import EMULATED_FAULTS
from calculet_trio.conformance.agreement import EXACT, Agreement
from calculet_trio.conformance.fault_control import NOTHING, PlannedFaults
from calculet_trio.conformance.rig import Rig
from calculet_trio.core.jobs import EngineId, PrefillJob
from calculet_trio.core.profiles import InactiveLanePolicy
from calculet_trio.ids import GenerationId
from calculet_trio.runtimes.device_model import PrefillCurve, StepCurve, load_device
from calculet_trio.runtimes.emulated import EmulatedRuntime, extend
from calculet_trio.runtimes.faults import FaultyRuntime
from calculet_trio.runtimes.pace import VirtualPace
from calculet_trio.runtimes.port import Allocated, GoldenResult, Submitted, Ticket

GENERATION = GenerationId(1)
CHUNK_TOKENS = 64


def model(**changes):
    """A board's numbers: four lanes, contexts that hold every boundary."""
    return load_device(
        **{
            "lanes": 4,
            "context_tokens": 320,
            "vocab_size": 300,
            "decode": {1: StepCurve(0.010), 2: StepCurve(0.011), 4: StepCurve(0.012)},
            "prefill": PrefillCurve(0.001, 0.002),
            "jitter": 0.0,
            **changes,
        }
    )


def board(kind=EmulatedRuntime, **changes):
    """An opened, configured board on which time leaps."""
    runtime = kind(model(**changes), VirtualPace(lambda: 0.0))
    runtime.open()
    runtime.configure(GENERATION, None)
    return runtime


def rig_of(runtime, *, agreement: Agreement = EXACT, chunk_tokens: int = CHUNK_TOKENS, can_fail: bool = True) -> Rig:
    """A rig of a board; one that can be made to fail has its faults between rig and board."""
    control = PlannedFaults(EMULATED_FAULTS) if can_fail else NOTHING
    return Rig(
        FaultyRuntime(runtime, control, runtime._pace),
        GENERATION,
        package=Path("board"),
        engines=runtime.engines,
        agreement=agreement,
        chunk_tokens=chunk_tokens,
        faults=control,
    )


# ---- boards that are wrong in one thing each ----------------------------------------------------------


class ForgetsOnDecode(EmulatedRuntime):
    """A decode step does not see the sequence's first token."""

    def _run(self, engine, job):
        if not isinstance(job, PrefillJob):
            for work in job.lanes:
                self._histories[work.sequence][-1] ^= 1 << 20
        return super()._run(engine, job)


class TouchesItsNeighbour(EmulatedRuntime):
    """A job of lane 0 writes into the last lane."""

    def _run(self, engine, job):
        last = self._ledger.occupant(self.model.lanes - 1)
        if last is not None and all(work.lane == 0 for work in job.lanes):
            self._histories[last][-1] = extend(self._histories[last][-1], (1,))
        return super()._run(engine, job)


class KeepsWhatWasReleased(EmulatedRuntime):
    """A lane goes on where its last sequence ended."""

    remains = 0

    def allocate(self, generation, lane, tokens):
        answer = super().allocate(generation, lane, tokens)
        if isinstance(answer, Allocated):
            self._histories[answer.sequence][0] = self.remains
        return answer

    def release(self, generation, lane, sequence):
        history = self._histories.get(sequence)
        if history is not None and len(history) == 21:  # only what was prefilled and never decoded
            self.remains = history[-1]
        return super().release(generation, lane, sequence)


class SwapsRows(EmulatedRuntime):
    """Two lanes of a batch get each other's logits."""

    def _run(self, engine, job):
        logits = super()._run(engine, job)
        if len(job.lanes) < 2:
            return logits
        swapped = logits.copy()
        first, second = job.lanes[0].index, job.lanes[1].index
        swapped[[first, second]] = logits[[second, first]]
        return swapped


class WritesIntoIdleLanes(EmulatedRuntime):
    """It claims a mask contract and keeps none."""

    def _disturb_inactive(self, job):
        kept, self.model = self.model, attrs.evolve(self.model, inactive_lane=InactiveLanePolicy.NONE)
        super()._disturb_inactive(job)
        self.model = kept


class ReleasesInTheMiddle(EmulatedRuntime):
    """A lane is given back while its job runs."""

    def release(self, generation, lane, sequence):
        for resident in self._ledger._residents.values():
            resident.in_job = False
        return super().release(generation, lane, sequence)


class RemovesNothing(EmulatedRuntime):
    """The books are shortened, the KV is not."""

    def remove_tail(self, generation, sequence, tokens):
        history = list(self._histories[sequence])
        done = super().remove_tail(generation, sequence, tokens)
        self._histories[sequence][-1] = history[-1]
        return done


class EndsTooLate(EmulatedRuntime):
    """It says that its lanes are shorter than they are."""

    def inspect(self, generation):
        said = super().inspect(generation)
        prefill = attrs.evolve(said.shape.prefill, max_seq=300)
        return attrs.evolve(said, shape=attrs.evolve(said.shape, max_seq=300, prefill=prefill))

    def submit(self, engine, job):
        if isinstance(job, PrefillJob):
            job = attrs.evolve(job, profile=super().inspect(GENERATION).shape.prefill)
        return super().submit(engine, job)

    def allocate(self, generation, lane, tokens):
        return super().allocate(generation, lane, self.model.context_tokens)


class SaysSomethingElse(EmulatedRuntime):
    """Its golden run does not reproduce."""

    def golden(self, generation):
        return GoldenResult(False, "3 clear decisions changed (allowed 0)")


class ForgetsEarlierPieces(EmulatedRuntime):
    """A prefill always begins at an empty lane."""

    def _run(self, engine, job):
        if isinstance(job, PrefillJob) and job.work.position:
            self._histories[job.work.sequence][-1] = 0
        return super()._run(engine, job)


class ForgetsWhatWasDecoded(EmulatedRuntime):
    """A prefill reads what prefills wrote, and not what decode did."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.decoded = set()

    def _run(self, engine, job):
        if not isinstance(job, PrefillJob):
            self.decoded.update(work.sequence for work in job.lanes)
        elif job.work.sequence in self.decoded:
            self._histories[job.work.sequence][-1] = 0
        return super()._run(engine, job)


class TakesAnyPosition(EmulatedRuntime):
    """A piece is appended wherever its position says it is."""

    def submit(self, engine, job):
        if isinstance(job, PrefillJob):
            length = len(self._histories[job.work.sequence]) - 1
            job = attrs.evolve(job, work=attrs.evolve(job.work, position=length))
        return super().submit(engine, job)


class LosesSamplelessPieces(EmulatedRuntime):
    """A piece that samples nothing is not run."""

    def _run(self, engine, job):
        if job.samples:
            return super()._run(engine, job)
        raise RuntimeError("no logits were asked for")


class NeverAnswers(EmulatedRuntime):
    """Every wait ends by its timeout."""

    def submit(self, engine, job):
        taken = super().submit(engine, job)
        if isinstance(taken, Submitted):
            self._running[engine] = (Ticket(taken.ticket), job, float("inf"))
        return taken


class ClaimsNothing(EmulatedRuntime):
    """It can append, and nothing else."""

    def inspect(self, generation):
        return attrs.evolve(super().inspect(generation), capabilities=frozenset())


class SharesOneHistory(EmulatedRuntime):
    """What pong computes goes into the sequence that ping had last."""

    last = None

    def _run(self, engine, job):
        sequence = job.lanes[0].sequence
        if engine is EngineId.PONG and self.last in self._histories and self.last != sequence:
            self._histories[self.last][-1] = extend(self._histories[self.last][-1], (1,))
        self.last = sequence if engine is EngineId.PING else self.last
        return super()._run(engine, job)


class NeverRefuses(EmulatedRuntime):
    """It takes a second job, and forgets the first."""

    def submit(self, engine, job):
        self._running.pop(engine, None)
        return super().submit(engine, job)


class RemembersAcrossResets(EmulatedRuntime):
    """A reset leaves the lanes as they were."""

    resets = 0

    def reset_configuration(self):
        self.resets += 1
        return super().reset_configuration()

    def allocate(self, generation, lane, tokens):
        answer = super().allocate(generation, lane, tokens)
        if isinstance(answer, Allocated):
            self._histories[answer.sequence][0] = self.resets
        return answer


class NeverQuiet(EmulatedRuntime):
    """A reset that says it did not help."""

    def reset_configuration(self):
        super().reset_configuration()
        return False


class AnswersLate(EmulatedRuntime):
    """A wait that knows no timeout."""

    def wait(self, engine, ticket, timeout_s):
        return super().wait(engine, ticket, 1e9)


class KeepsMemory(EmulatedRuntime):
    """Each load takes a little more."""

    loads = 0

    def configure(self, generation, package):
        self.loads += 1
        super().configure(generation, package)

    def memory(self):
        use = super().memory()
        return attrs.evolve(use, used_bytes=use.used_bytes * (100 + self.loads) // 100)


class KeepsTheModel(EmulatedRuntime):
    """Its memory does not become less by an unload."""

    def memory(self):
        return attrs.evolve(super().memory(), used_bytes=10**9)
