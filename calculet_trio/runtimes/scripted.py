"""The scripted runtime: says what a file says, token by token, with gates, delays and faults.

It keeps sequences, lanes and lengths as a device would, so that the daemon around it is exercised in full.

Source: SPEC section 7, 9 (S §9); ``runtimes/SCRIPTS.md``.
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import attrs
import numpy as np

from calculet_trio.core.events import FaultReason
from calculet_trio.core.jobs import EngineId, Job, LaneWork
from calculet_trio.ids import GenerationId, LaneId, SequenceId
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
    Ticket,
    Unknown,
)
from calculet_trio.runtimes.script import Script, ScriptedFault, ScriptedReply, ScriptedToken
from calculet_trio.runtimes.script_control import ControlServer, Gates

_CHOSEN = 100.0
"""The logit of the scripted token; all others have 0, so that every way of sampling finds it."""


@attrs.define
class _Sequence:
    """What the device holds of one sequence: its whole history, and how far its reply has come."""

    lane: LaneId
    tokens: list[int] = attrs.field(factory=list)
    reply: ScriptedReply | None = None
    said: int = 0


class ScriptedRuntime:
    """See `calculet_trio.runtimes.port.Runtime` for every method.

    Args:
        script: what it says.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.gates = Gates()
        self._control: ControlServer | None = None
        self._lock = threading.Lock()
        self._sequences: dict[SequenceId, _Sequence] = {}
        self._jobs: dict[Ticket, Job] = {}
        self._faults: Counter[int] = Counter()
        self._next = 1
        self._logits = {
            engine: np.zeros((max(p.compiled_batch for p in script.shape.decode), script.shape.vocab_size), np.float32)
            for engine in EngineId
        }

    def open(self) -> DeviceInfo:
        if self.script.control is not None:
            self._control = ControlServer(self.gates, self.script.control)
        return DeviceInfo("scripted", "scripted runtime", tuple(EngineId), {"script": "calculet-script/v1"})

    def configure(self, generation: GenerationId, package: Path) -> None:
        self.gates.sleep(self.script.load_s, self.script.load_s)

    def inspect(self, generation: GenerationId) -> ModelDescription:
        shape = self.script.shape
        layout = KvLayout("contiguous_lanes", shape.lanes, shape.max_seq, bytes_per_token=8)
        return ModelDescription(shape, layout, (), frozenset({"remove_tail", "incremental_prefill"}))

    def warm_up(self, generation: GenerationId) -> None:
        pass

    def golden(self, generation: GenerationId) -> GoldenResult:
        return GoldenResult(True, "a script is its own golden")

    def can_allocate(self, generation: GenerationId, sequences: int) -> bool:
        return len(self._sequences) + sequences <= self.script.shape.lanes

    def allocate(self, generation: GenerationId, lane: LaneId, tokens: int) -> Allocated | NotAllocated:
        with self._lock:
            if tokens > self.script.shape.max_seq or any(s.lane == lane for s in self._sequences.values()):
                return NotAllocated(FaultReason.NO_CAPACITY)
            sequence = SequenceId(self._number())
            self._sequences[sequence] = _Sequence(lane)
        self.gates.count(allocated=1, resident=1)
        return Allocated(sequence)

    def release(self, generation: GenerationId, lane: LaneId, sequence: SequenceId) -> bool:
        with self._lock:
            held = self._sequences.get(sequence)
            if held is None or held.lane != lane:
                return False
            del self._sequences[sequence]
        self.gates.count(released=1, resident=-1)
        return True

    def remove_tail(self, generation: GenerationId, sequence: SequenceId, tokens: int) -> bool:
        with self._lock:
            held = self._sequences.get(sequence)
            if held is None or not 0 <= tokens <= len(held.tokens):
                return False
            del held.tokens[len(held.tokens) - tokens :]
        return True

    def submit(self, engine: EngineId, job: Job) -> Submitted | NotSubmitted:
        with self._lock:
            if not all(self._is_valid(work) for work in job.lanes):
                return NotSubmitted(FaultReason.RUNTIME_ERROR)
            if self._fault_of(job, {ScriptedFault.BUSY}) is not None:
                return NotSubmitted(FaultReason.DEVICE_BUSY)
            ticket = Ticket(self._number())
            self._jobs[ticket] = job
        self.gates.count(submitted=1)
        return Submitted(ticket)

    def wait(self, engine: EngineId, ticket: Ticket, timeout_s: float) -> Finished | Unknown:
        job = self._jobs.pop(ticket)
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
        tokens = [self._next_token(work) for work in job.lanes]
        delay_s = max(self.script.step_s, *(token.delay_s for token in tokens))
        if delay_s and not self.gates.sleep(delay_s, timeout_s):
            return Unknown(FaultReason.TIMEOUT)
        for token in tokens:
            if token.gate is not None and not self.gates.pass_through(token.gate, timeout_s):
                return Unknown(FaultReason.TIMEOUT)
        logits = self._speak(engine, job, tokens)
        self.gates.count(finished=1)
        return Finished(logits, device_s=delay_s)

    def memory(self) -> MemoryUse:
        used = sum(len(sequence.tokens) for sequence in list(self._sequences.values())) * 8
        return MemoryUse(used, self.script.shape.lanes * self.script.shape.max_seq * 8)

    def status(self) -> DeviceStatus:
        return DeviceStatus(True, "scripted")

    def reset_configuration(self) -> bool:
        with self._lock:
            self.gates.count(resident=-len(self._sequences))
            self._sequences.clear()
        return True

    def close(self) -> None:
        self.gates.open_all()
        if self._control is not None:
            self._control.close()
            self._control = None

    # ---- inside ---------------------------------------------------------------------------------

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _is_valid(self, work: LaneWork) -> bool:
        held = self._sequences.get(work.sequence)
        vocab_size, max_seq = self.script.shape.vocab_size, self.script.shape.max_seq
        return (
            held is not None
            and held.lane == work.lane
            and work.position == len(held.tokens)
            and work.position + len(work.tokens) <= max_seq
            and all(0 <= token < vocab_size for token in work.tokens)
        )

    def _reply_of(self, work: LaneWork) -> ScriptedReply:
        """The sequence's reply; a new sequence chooses it by its prompt."""
        held = self._sequences[work.sequence]
        if held.reply is None:
            held.reply = self.script.reply_to(self.script.tokenizer.decode([*held.tokens, *work.tokens]))
        return held.reply

    def _next_token(self, work: LaneWork) -> ScriptedToken:
        reply = self._reply_of(work)
        return reply.token_at(self._sequences[work.sequence].said, self.script.eos)

    def _fault_of(self, job: Job, kinds: set[ScriptedFault]) -> ScriptedFault | None:
        """The first fault of these kinds that is due in the job; it counts as having happened."""
        for work in job.lanes:
            token = self._next_token(work)
            if token.fault in kinds and self._faults[id(token)] < token.fault_times:
                self._faults[id(token)] += 1
                return token.fault
        return None

    def _speak(self, engine: EngineId, job: Job, tokens: list[ScriptedToken]) -> Logits:
        """Write the job's tokens to their sequences' histories and the replies' next ones to the logits."""
        logits = self._logits[engine]
        for work, token in zip(job.lanes, tokens, strict=True):
            held = self._sequences[work.sequence]
            held.tokens.extend(work.tokens)
            held.said += 1
            row = logits[work.index]
            if token.logits is None:
                row[:] = 0.0
                row[token.token] = _CHOSEN
            else:
                row[:] = -np.inf
                row[: len(token.logits)] = token.logits
        return logits
