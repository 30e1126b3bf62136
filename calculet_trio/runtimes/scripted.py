"""The scripted runtime: says what a file says, token by token, with gates, delays and faults.

It keeps sequences, lanes and lengths as a device would, so that the daemon around it is exercised in full.

Source: SPEC section 7, 9 (S §9); ``runtimes/SCRIPTS.md``.
"""

from __future__ import annotations

import threading
from collections import Counter
from itertools import count
from pathlib import Path

import attrs
import numpy as np

from calculet_trio.core.events import FaultReason
from calculet_trio.core.jobs import EngineId, Job, LaneWork, PrefillJob
from calculet_trio.ids import GenerationId, LaneId, SequenceId
from calculet_trio.runtimes.lane_ledger import LaneLedger
from calculet_trio.runtimes.port import (
    Allocated,
    DeviceInfo,
    DeviceStatus,
    Finished,
    GoldenResult,
    KvLayout,
    Logits,
    MemoryUse,
    ModelDescription,
    NotAllocated,
    NotSubmitted,
    Submitted,
    TensorInfo,
    Ticket,
    Unknown,
)
from calculet_trio.runtimes.script import Script, ScriptedFault, ScriptedReply, ScriptedToken
from calculet_trio.runtimes.script_control import ControlServer, Gates

LEFT_OVER = "left_over"
"""The gate through which the jobs of a process before are let go, one by one."""
_CHOSEN = 100.0
"""The logit of the scripted token; all others have 0, so that every way of sampling finds it."""


@attrs.define
class _Speech:
    """What the device holds of one sequence: its whole history, and how far its reply has come."""

    tokens: list[int] = attrs.field(factory=list)
    reply: ScriptedReply | None = None
    said: int = 0


class ScriptedRuntime:
    """See `calculet_trio.runtimes.port.Runtime` for every method. Generations lie beside each other.

    Args:
        script: what it says.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.gates = Gates()
        self._control: ControlServer | None = None
        self._is_open = False
        self._lock = threading.Lock()
        self._ledgers: dict[GenerationId, LaneLedger] = {}
        self._speeches: dict[SequenceId, _Speech] = {}
        self._jobs: dict[EngineId, tuple[Ticket, Job]] = {}
        self._faults: Counter[int] = Counter()
        self._tickets = count(1)
        self._logits = {
            engine: np.zeros((max(p.compiled_batch for p in script.shape.decode), script.shape.vocab_size), np.float32)
            for engine in EngineId
        }

    @property
    def resident(self) -> int:
        """Sequences held now."""
        return len(self._speeches)

    def open(self) -> DeviceInfo:
        self._is_open = True
        if self.script.control is not None:
            self._control = ControlServer(self.gates, self.script.control)
        return DeviceInfo("scripted", "scripted runtime", tuple(EngineId), {"script": "calculet-script/v1"})

    def configure(self, generation: GenerationId, package: Path) -> None:
        self.gates.count(configuring=1)
        self.gates.sleep(self.script.load_s, self.script.load_s)
        self._ledgers[generation] = LaneLedger(self.script.shape)

    def inspect(self, generation: GenerationId) -> ModelDescription:
        shape = self.script.shape
        layout = KvLayout("contiguous_lanes", shape.lanes, shape.max_seq, bytes_per_token=8)
        tensors = tuple(
            TensorInfo(profile.submodel, "logits", "float32", (profile.compiled_batch, shape.vocab_size))
            for profile in shape.decode
        )
        return ModelDescription(shape, layout, tensors, frozenset({"remove_tail", "incremental_prefill"}))

    def warm_up(self, generation: GenerationId) -> None:
        pass

    def golden(self, generation: GenerationId) -> GoldenResult:
        return GoldenResult(True, "a script is its own golden")

    def can_allocate(self, generation: GenerationId, sequences: int) -> bool:
        ledger = self._ledgers.get(generation)
        return ledger is not None and sequences <= ledger.free_lanes

    def allocate(self, generation: GenerationId, lane: LaneId, tokens: int) -> Allocated | NotAllocated:
        with self._lock:
            ledger = self._ledgers.get(generation)
            sequence = None if ledger is None else ledger.allocate(lane, tokens)
            if sequence is None:
                return NotAllocated(FaultReason.NO_CAPACITY)
            self._speeches[sequence] = _Speech()
        self.gates.count(allocated=1, resident=1)
        return Allocated(sequence)

    def release(self, generation: GenerationId, lane: LaneId, sequence: SequenceId) -> bool:
        with self._lock:
            ledger = self._ledgers.get(generation)
            if ledger is None or not ledger.release(lane, sequence):
                return False
            del self._speeches[sequence]
        self.gates.count(released=1, resident=-1)
        return True

    def remove_tail(self, generation: GenerationId, sequence: SequenceId, tokens: int) -> bool:
        with self._lock:
            ledger = self._ledgers.get(generation)
            if ledger is None or not ledger.remove_tail(sequence, tokens):
                return False
            history = self._speeches[sequence].tokens
            del history[len(history) - tokens :]
        return True

    def submit(self, engine: EngineId, job: Job) -> Submitted | NotSubmitted:
        with self._lock:
            if engine in self._jobs:
                return NotSubmitted(FaultReason.DEVICE_BUSY)
            ledger = self._ledgers.get(job.generation)
            if ledger is None:
                return NotSubmitted(FaultReason.RUNTIME_ERROR)
            reason = ledger.refuse(job)
            if reason is None and self._fault_of(job, {ScriptedFault.BUSY}) is not None:
                reason = FaultReason.DEVICE_BUSY
            if reason is not None:
                return NotSubmitted(reason)
            ledger.hold(job)
            ticket = Ticket(next(self._tickets))
            self._jobs[engine] = (ticket, job)
        self.gates.count(submitted=1)
        return Submitted(ticket)

    def wait(self, engine: EngineId, ticket: Ticket, timeout_s: float) -> Finished | Unknown:
        held, job = self._jobs[engine]
        assert held == ticket, "one job an engine"
        outcome: Finished | Unknown | None = None
        try:
            outcome = self._outcome(engine, job, timeout_s)
        finally:
            committed = isinstance(outcome, Finished) and outcome.failed is None
            with self._lock:
                self._ledgers[job.generation].settle(job, committed=committed)
                del self._jobs[engine]
        self.gates.count(finished=1)
        return outcome

    def _outcome(self, engine: EngineId, job: Job, timeout_s: float) -> Finished | Unknown:
        match self._fault_of(job, set(ScriptedFault) - {ScriptedFault.BUSY}):
            case ScriptedFault.RAISE:
                raise RuntimeError("the script wants the runtime to break here")
            case ScriptedFault.LOST:
                return Unknown(FaultReason.DEVICE_LOST)
            case ScriptedFault.HANG:
                self.gates.sleep(timeout_s, timeout_s)
                return Unknown(FaultReason.TIMEOUT)
            case ScriptedFault.STUCK:
                self.gates.wait_for_opening()
                return Unknown(FaultReason.TIMEOUT)
            case ScriptedFault.OUTPUT:
                return Finished(None, failed=FaultReason.OUTPUT_ERROR)
        tokens = self._next_tokens(job)
        delay_s = max((token.delay_s for token in tokens), default=0.0)
        delay_s = max(self.script.step_s, delay_s)
        if delay_s and not self.gates.sleep(delay_s, timeout_s):
            return Unknown(FaultReason.TIMEOUT)
        for token in tokens:
            if token.gate is not None and not self.gates.pass_through(token.gate, timeout_s):
                return Unknown(FaultReason.TIMEOUT)
        return Finished(self._speak(engine, job, tokens), device_s=delay_s)

    def memory(self) -> MemoryUse:
        with self._lock:
            used = sum(len(speech.tokens) for speech in self._speeches.values()) * 8
        return MemoryUse(used, self.script.shape.lanes * self.script.shape.max_seq * 8)

    def status(self) -> DeviceStatus:
        with self._lock:
            jobs = len(self._jobs) + max(0, self.script.left_over - self.gates.permits(LEFT_OVER))
        return DeviceStatus(self._is_open, "scripted" if self._is_open else "closed", jobs=jobs)

    def unload(self, generation: GenerationId) -> bool:
        with self._lock:
            self._ledgers.pop(generation, None)
        return True

    def reset_configuration(self) -> bool:
        with self._lock:
            self.gates.count(resident=-len(self._speeches))
            self._speeches.clear()
            self._ledgers.clear()
        return True

    def close(self) -> None:
        self._is_open = False
        self.gates.open_all()
        if self._control is not None:
            self._control.close()
            self._control = None

    # ---- inside ---------------------------------------------------------------------------------

    def _next_tokens(self, job: Job) -> list[ScriptedToken]:
        """What each lane's reply says next; a part of a prompt makes nobody say anything, nor does what is known."""
        return [self._next_token(job, work) for work in job.lanes if work.samples]

    def _next_token(self, job: Job, work: LaneWork) -> ScriptedToken:
        speech = self._speeches[work.sequence]
        self._choose_reply(speech, job, work)
        assert speech.reply is not None
        return speech.reply.token_at(speech.said, self.script.eos)

    def _choose_reply(self, speech: _Speech, job: Job, work: LaneWork) -> None:
        """The whole prompt chooses it: with the prefill that ends it, or, of a reply that is written again, before."""
        if speech.reply is not None:
            return
        is_prefill = isinstance(job, PrefillJob)
        prompt = [*speech.tokens, *(work.tokens if is_prefill else ())]
        speech.reply = self.script.reply_to(self.script.tokenizer.decode(prompt))
        speech.said = 0 if is_prefill else 1

    def _fault_of(self, job: Job, kinds: set[ScriptedFault]) -> ScriptedFault | None:
        """The first fault of these kinds that is due in the job; it counts as having happened."""
        for token in self._next_tokens(job):
            if token.fault in kinds and self._faults[id(token)] < token.fault_times:
                self._faults[id(token)] += 1
                return token.fault
        return None

    def _speak(self, engine: EngineId, job: Job, tokens: list[ScriptedToken]) -> Logits:
        """Write the job's tokens to their sequences' histories and the replies' next ones to the logits."""
        logits = self._logits[engine]
        for work in job.lanes:
            speech = self._speeches[work.sequence]
            if not isinstance(job, PrefillJob):
                self._choose_reply(speech, job, work)
            speech.tokens.extend(work.tokens)
            speech.said += work.samples or not isinstance(job, PrefillJob)
        for work, token in zip((work for work in job.lanes if work.samples), tokens, strict=True):
            row = logits[work.index]
            if token.logits is None:
                row[:] = 0.0
                row[token.token] = _CHOSEN
            else:
                row[:] = -np.inf
                row[: len(token.logits)] = token.logits
        return logits[:1] if isinstance(job, PrefillJob) else logits[: job.profile.compiled_batch]
