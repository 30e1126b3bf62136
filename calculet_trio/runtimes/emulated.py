"""The emulated board: true KV histories, a device model's times, and no weights.

Each next token is a function of its sequence's whole KV history, so that any mix-up of lanes, a lost or a
doubled token changes every token that follows. `continuation` computes the same from a prompt alone: what a
client must have received.

Source: SPEC section 1, 7, 12, 14; S §9, §14.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
import numpy as np

from calculet_trio.core.events import FaultReason
from calculet_trio.core.jobs import DecodeJob, EngineId, Job, LaneWork, PrefillJob
from calculet_trio.core.profiles import InactiveLanePolicy, LaneLayout
from calculet_trio.ids import GenerationId, LaneId, SequenceId
from calculet_trio.runtimes.device_model import DeviceModel
from calculet_trio.runtimes.pace import Pace
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

CHOSEN_LOGIT: Final = 100.0
END_TOKEN: Final = 258
"""Of `calculet_trio.text.byte_tokenizer.ByteTokenizer`: ``<|endoftext|>``."""

_MASK = (1 << 64) - 1
_SEED = 0x9E3779B97F4A7C15
_END_EVERY = 4096  # one token in so many is the end token


def extend(history: int, tokens: Sequence[int]) -> int:
    """The hash of a KV history after ``tokens`` were appended (splitmix64)."""
    for token in tokens:
        history = (history + _SEED + token * 0xD1342543DE82EF95) & _MASK
        history = ((history ^ (history >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        history = ((history ^ (history >> 27)) * 0x94D049BB133111EB) & _MASK
        history ^= history >> 31
    return history


def next_token(history: int) -> int:
    """What the emulated model says after such a history: a letter, a space, or seldom its end token."""
    if (history >> 40) % _END_EVERY == 0:
        return END_TOKEN
    letter = history % 32
    return 97 + letter if letter < 26 else 32


def continuation(prompt: Sequence[int], tokens: int) -> list[int]:
    """The reply to a prompt: up to ``tokens`` tokens, the end token included if it comes."""
    history = extend(0, prompt)
    reply: list[int] = []
    while len(reply) < tokens and (not reply or reply[-1] != END_TOKEN):
        reply.append(next_token(history))
        history = extend(history, reply[-1:])
    return reply


@attrs.define
class _Sequence:
    """A resident sequence: its history as a hash after each token, so that a tail can be removed."""

    lane: LaneId
    hashes: list[int] = attrs.field(factory=lambda: [0])

    @property
    def length(self) -> int:
        return len(self.hashes) - 1

    def append(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.hashes.append(extend(self.hashes[-1], (token,)))


class EmulatedRuntime:
    """See `calculet_trio.runtimes.port.Runtime` for every method.

    Args:
        model: the device's numbers.
        pace: how time passes.
        seed: of the jitter.
    """

    is_emulator: Final = True
    """The marker that keeps its evidence from counting for hardware."""

    def __init__(self, model: DeviceModel, pace: Pace, *, seed: int = 0) -> None:
        self.model = model
        self._pace = pace
        self._rng = np.random.default_rng(seed)
        self._lock = threading.Lock()
        self._generation: GenerationId | None = None
        self._sequences: dict[SequenceId, _Sequence] = {}
        self._by_lane: dict[LaneId, _Sequence] = {}
        self._tickets: dict[Ticket, tuple[Job, float]] = {}
        self._compute_free_s = 0.0
        self._number = 0
        rows = max(model.decode)
        self._logits = {engine: np.zeros((rows, model.vocab_size), np.float32) for engine in self.engines}
        self._hot: dict[EngineId, list[int]] = {engine: [0] * rows for engine in self.engines}

    @property
    def engines(self) -> tuple[EngineId, ...]:
        return tuple(EngineId)[: self.model.engines]

    # ---- life -----------------------------------------------------------------------------------

    def open(self) -> DeviceInfo:
        return DeviceInfo("emulated", self.model.name, self.engines, dict(self.model.versions))

    def configure(self, generation: GenerationId, package: Path) -> None:
        self._generation = generation

    def inspect(self, generation: GenerationId) -> ModelDescription:
        model = self.model
        tensors = tuple(
            tensor
            for name, batch in (("prefill", 1), *((f"decode_b{batch}", batch) for batch in sorted(model.decode)))
            for tensor in (
                TensorInfo(name, "tokens", "int32", (batch, "tokens" if name == "prefill" else 1)),
                TensorInfo(name, "logits", "bfloat16", (batch, model.vocab_size)),
            )
        )
        layout = KvLayout(model.layout.value, model.lanes, model.context_tokens, model.kv_token_bytes)
        return ModelDescription(model.shape(), layout, tensors, frozenset({"remove_tail", "incremental_prefill"}))

    def warm_up(self, generation: GenerationId) -> None:
        pass

    def golden(self, generation: GenerationId) -> GoldenResult:
        first = next_token(extend(0, (1, 2, 3)))
        return GoldenResult(first == continuation((1, 2, 3), 1)[0], f"says {first} after 1, 2, 3")

    def reset_configuration(self) -> bool:
        with self._lock:
            self._sequences.clear()
            self._by_lane.clear()
            self._generation = None
        return True

    def close(self) -> None:
        self.reset_configuration()

    # ---- KV -------------------------------------------------------------------------------------

    def can_allocate(self, generation: GenerationId, sequences: int) -> bool:
        return len(self._sequences) + sequences <= self.model.lanes

    def allocate(self, generation: GenerationId, lane: LaneId, tokens: int) -> Allocated | NotAllocated:
        with self._lock:
            if lane in self._by_lane or not 0 <= lane < self.model.lanes or tokens > self.model.context_tokens:
                return NotAllocated(FaultReason.NO_CAPACITY)
            sequence = SequenceId(self._next_number())
            self._sequences[sequence] = self._by_lane[lane] = _Sequence(lane)
        return Allocated(sequence)

    def release(self, generation: GenerationId, lane: LaneId, sequence: SequenceId) -> bool:
        with self._lock:
            held = self._sequences.get(sequence)
            if held is None or held.lane != lane:
                return False
            del self._sequences[sequence]
            del self._by_lane[lane]
        return True

    def remove_tail(self, generation: GenerationId, sequence: SequenceId, tokens: int) -> bool:
        with self._lock:
            held = self._sequences.get(sequence)
            if held is None or not 0 <= tokens <= held.length:
                return False
            del held.hashes[len(held.hashes) - tokens :]
        return True

    # ---- jobs -----------------------------------------------------------------------------------

    def submit(self, engine: EngineId, job: Job) -> Submitted | NotSubmitted:
        with self._lock:
            if not all(self._is_valid(work) for work in job.lanes):
                return NotSubmitted(FaultReason.RUNTIME_ERROR)
            ticket = Ticket(self._next_number())
            self._tickets[ticket] = (job, self._ends_s(job))
        return Submitted(ticket)

    def wait(self, engine: EngineId, ticket: Ticket, timeout_s: float) -> Finished | Unknown:
        job, end_s = self._tickets.pop(ticket)
        begin_s = self._pace.now()
        if end_s > begin_s + timeout_s:
            self._pace.pass_until(begin_s + timeout_s)
            return Unknown(FaultReason.TIMEOUT)
        self._pace.pass_until(end_s)
        with self._lock:
            return Finished(self._run(engine, job), device_s=end_s - begin_s)

    def memory(self) -> MemoryUse:
        model = self.model
        used = model.parameter_bytes + model.lanes * model.context_tokens * model.kv_token_bytes
        return MemoryUse(used, 32 if model.memory_total_bug else model.memory_bytes)

    def status(self) -> DeviceStatus:
        return DeviceStatus(True, "emulated")

    # ---- inside ---------------------------------------------------------------------------------

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _is_valid(self, work: LaneWork) -> bool:
        held = self._sequences.get(work.sequence)
        return (
            held is not None
            and held.lane == work.lane
            and work.position == held.length
            and work.position + len(work.tokens) <= self.model.context_tokens
        )

    def _ends_s(self, job: Job) -> float:
        """When the job will be done: copied in, computed in its turn, copied back."""
        model = self.model
        if isinstance(job, PrefillJob):
            compute_s = model.prefill.seconds(tokens=len(job.work.tokens), position=job.work.position)
        else:
            context = sum(work.position for work in job.lanes)
            curve = model.decode[job.profile.compiled_batch]
            compute_s = curve.seconds(active=len(job.lanes), context_tokens=context)
        compute_s *= 1.0 + model.jitter * (2.0 * self._rng.random() - 1.0)
        begin_s = self._pace.now() + model.h2d_s
        if not model.compute_overlaps:
            begin_s = max(begin_s, self._compute_free_s)
        self._compute_free_s = begin_s + compute_s
        return self._compute_free_s + model.d2h_row_s * (len(job.lanes) if job.samples else 0)

    def _run(self, engine: EngineId, job: Job) -> Logits:
        if isinstance(job, DecodeJob):
            self._disturb_inactive(job)
        logits, hot = self._logits[engine], self._hot[engine]
        for work in job.lanes:
            held = self._sequences.get(work.sequence)
            if held is None:  # released in the middle of its job: nothing is left to compute from
                continue
            held.append(work.tokens)
            row = work.index
            logits[row, hot[row]] = 0.0
            hot[row] = next_token(held.hashes[-1])
            logits[row, hot[row]] = CHOSEN_LOGIT
        return logits

    def _disturb_inactive(self, job: DecodeJob) -> None:
        """Without a mask contract a batch writes one row of KV into every lane that it addresses."""
        if self.model.inactive_lane is not InactiveLanePolicy.NONE or self.model.layout is LaneLayout.INDIRECT:
            return
        assert job.first_lane is not None
        active = {work.lane for work in job.lanes}
        for lane in range(job.first_lane, job.first_lane + job.profile.compiled_batch):
            idle = self._by_lane.get(LaneId(lane))
            if idle is not None and lane not in active:
                idle.append((0,))
