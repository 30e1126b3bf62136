"""The emulated board: true KV histories, a device model's times, and no weights.

Each next token is a function of its sequence's whole KV history, so that any mix-up of lanes, a lost or a
doubled token changes every token that follows. `continuation` computes the same from a prompt alone: what a
client must have received. `OTHER_MODEL` has the same numbers and says other words.

Source: SPEC section 1, 7, 12, 14; S §9, §14.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from calculet_trio.core.events import FaultReason
from calculet_trio.core.jobs import DecodeJob, EngineId, Job, PrefillJob
from calculet_trio.core.profiles import InactiveLanePolicy, LaneLayout
from calculet_trio.ids import GenerationId, LaneId, SequenceId
from calculet_trio.runtimes.device_model import DeviceModel
from calculet_trio.runtimes.lane_ledger import LaneLedger
from calculet_trio.runtimes.pace import Pace
from calculet_trio.runtimes.pages import zeros_on_pages
from calculet_trio.runtimes.port import (
    CANDIDATES,
    Allocated,
    Candidates,
    DeviceInfo,
    DeviceStatus,
    Finished,
    GoldenResult,
    KvLayout,
    MemoryUse,
    ModelDescription,
    NotAllocated,
    NotSubmitted,
    Submitted,
    TensorInfo,
    Ticket,
    Unknown,
)
from calculet_trio.text.ranking import likeliest

Rows = npt.NDArray[np.float32]

CHOSEN_LOGIT: Final = 100.0
END_TOKEN: Final = 258
"""Of `calculet_trio.text.byte_tokenizer.ByteTokenizer`: ``<|endoftext|>``."""

OTHER_MODEL: Final = Path("another emulated model")
"""What `EmulatedRuntime.configure` takes for it; every other path is the model itself."""

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


def continuation(prompt: Sequence[int], tokens: int, *, voice: int = 0) -> list[int]:
    """The reply to a prompt: up to ``tokens`` tokens, the end token included if it comes."""
    history = extend(voice, prompt)
    reply: list[int] = []
    while len(reply) < tokens and (not reply or reply[-1] != END_TOKEN):
        reply.append(next_token(history))
        history = extend(history, reply[-1:])
    return reply


class EmulatedRuntime:
    """See `calculet_trio.runtimes.port.Runtime` for every method.

    Args:
        model: the numbers of the device, and of every model whose package is not among ``models``.
        pace: how time passes.
        seed: of the jitter.
        models: packages whose models have numbers of their own; of those, engines and memory are the device's.

    Attributes:
        model: the numbers of the model that is configured now, or was last.
    """

    is_emulator: Final = True
    """The marker that keeps its evidence from counting for hardware."""

    def __init__(
        self,
        model: DeviceModel,
        pace: Pace,
        *,
        seed: int = 0,
        models: Mapping[Path, DeviceModel] = MappingProxyType({}),
    ) -> None:
        self.model = self._board = model
        self._models = {OTHER_MODEL: attrs.evolve(model, voice=model.voice + 1), **models}
        self._pace = pace
        self._rng = np.random.default_rng(seed)
        self._lock = threading.Lock()  # the books: lanes, histories, jobs
        self._is_closed = False
        self._generation: GenerationId | None = None
        self._ledger = LaneLedger(model.shape())
        self._histories: dict[SequenceId, list[int]] = {}  # a hash after each token, so that a tail can be removed
        self._running: dict[EngineId, tuple[Ticket, Job, float]] = {}
        self._tickets = count(1)
        self._compute_free_s = 0.0
        every = (model, *models.values())
        rows, columns = max(max(one.decode) for one in every), max(one.vocab_size for one in every)
        self._logits = {engine: zeros_on_pages((rows, columns)) for engine in self.engines}
        self._hot: dict[EngineId, list[int]] = {engine: [0] * rows for engine in self.engines}

    @property
    def engines(self) -> tuple[EngineId, ...]:
        return tuple(EngineId)[: self._board.engines]

    @property
    def resident(self) -> int:
        """Sequences held now."""
        return len(self._histories)

    @property
    def outstanding(self) -> int:
        """Jobs that were submitted and not waited for to their end."""
        return len(self._running)

    # ---- life -----------------------------------------------------------------------------------

    def open(self) -> DeviceInfo:
        self._is_closed = False
        return DeviceInfo("emulated", self._board.name, self.engines, dict(self._board.versions))

    def configure(self, generation: GenerationId, package: Path) -> None:
        assert self._generation is None, "this board holds one model"
        with self._lock:
            self._generation = generation
            self.model = self._models.get(package, self._board)
            # Its own numbering, so that one seed is one run.
            self._ledger = LaneLedger(self.model.shape(), count(1))
        if self.model.configure_s:
            self._pace.pass_until(self._pace.now() + self.model.configure_s)

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
        capabilities = {"remove_tail", "incremental_prefill", *([CANDIDATES] if model.candidates else [])}
        return ModelDescription(model.shape(), layout, tensors, frozenset(capabilities))

    def warm_up(self, generation: GenerationId) -> None:
        pass

    def golden(self, generation: GenerationId) -> GoldenResult:
        voice = self.model.voice
        first = next_token(extend(voice, (1, 2, 3)))
        return GoldenResult(first == continuation((1, 2, 3), 1, voice=voice)[0], f"says {first} after 1, 2, 3")

    def unload(self, generation: GenerationId) -> bool:
        """This board is cleared as a whole: it holds one model."""
        return generation != self._generation or self.reset_configuration()

    def reset_configuration(self) -> bool:
        with self._lock:
            self._generation = None
            self._histories.clear()
            self._running.clear()
        return True

    def close(self) -> None:
        self.reset_configuration()
        self._is_closed = True

    # ---- KV -------------------------------------------------------------------------------------

    def can_allocate(self, generation: GenerationId, sequences: int) -> bool:
        with self._lock:
            return generation == self._generation and sequences <= self._ledger.free_lanes

    def allocate(self, generation: GenerationId, lane: LaneId, tokens: int) -> Allocated | NotAllocated:
        with self._lock:
            sequence = self._ledger.allocate(lane, tokens) if generation == self._generation else None
            if sequence is None:
                return NotAllocated(FaultReason.NO_CAPACITY)
            self._histories[sequence] = [self.model.voice]
        return Allocated(sequence)

    def release(self, generation: GenerationId, lane: LaneId, sequence: SequenceId) -> bool:
        with self._lock:
            if generation != self._generation or not self._ledger.release(lane, sequence):
                return False
            del self._histories[sequence]
        return True

    def remove_tail(self, generation: GenerationId, sequence: SequenceId, tokens: int) -> bool:
        with self._lock:
            if generation != self._generation or not self._ledger.remove_tail(sequence, tokens):
                return False
            history = self._histories[sequence]
            del history[len(history) - tokens :]
        return True

    # ---- jobs -----------------------------------------------------------------------------------

    def submit(self, engine: EngineId, job: Job) -> Submitted | NotSubmitted:
        with self._lock:
            if engine in self._running:
                return NotSubmitted(FaultReason.DEVICE_BUSY)
            if job.generation != self._generation or engine not in self._logits:
                return NotSubmitted(FaultReason.RUNTIME_ERROR)
            reason = self._ledger.refuse(job)
            if reason is not None:
                return NotSubmitted(reason)
            self._ledger.hold(job)
            ticket = Ticket(next(self._tickets))
            self._running[engine] = (ticket, job, self._ends_s(job))
        return Submitted(ticket)

    def wait(self, engine: EngineId, ticket: Ticket, timeout_s: float) -> Finished | Unknown:
        running = self._running.get(engine)
        if running is None or running[0] != ticket:
            return Unknown(FaultReason.RUNTIME_ERROR)
        _, job, end_s = running
        begin_s = self._pace.now()
        if end_s > begin_s + timeout_s:  # the engine keeps its job, and the job its lanes: nobody knows how they are
            self._pace.pass_until(begin_s + timeout_s)
            return Unknown(FaultReason.TIMEOUT)
        with self._lock:  # computed before the time for it passes: what this costs is no part of the answer's way
            if self._running.get(engine) != running:
                return Unknown(FaultReason.RUNTIME_ERROR)
            logits = self._run(engine, job)
            named = self._name_candidates(logits, job) if self.model.candidates else None
        self._pace.pass_until(end_s)
        with self._lock:
            if self._running.pop(engine, None) != running:  # the configuration was reset in the middle
                return Unknown(FaultReason.RUNTIME_ERROR)
            self._ledger.settle(job, committed=True)
        return Finished(logits, device_s=end_s - begin_s, ticket=ticket, candidates=named)

    def memory(self) -> MemoryUse:
        model, board = self.model, self._board
        used = model.parameter_bytes + model.lanes * model.context_tokens * model.kv_token_bytes
        return MemoryUse(0 if self._generation is None else used, 32 if board.memory_total_bug else board.memory_bytes)

    def status(self) -> DeviceStatus:
        with self._lock:
            jobs = len(self._running)
        return DeviceStatus(not self._is_closed, "closed" if self._is_closed else "emulated", jobs=jobs)

    # ---- inside ---------------------------------------------------------------------------------

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

    def _run(self, engine: EngineId, job: Job) -> Rows:
        if isinstance(job, DecodeJob):
            self._disturb_inactive(job)
        logits, hot = self._logits[engine], self._hot[engine]
        for work in job.lanes:
            history = self._histories[work.sequence]
            for token in work.tokens:
                history.append(extend(history[-1], (token,)))
            row = work.index
            logits[row, hot[row]] = 0.0
            hot[row] = next_token(history[-1])
            logits[row, hot[row]] = CHOSEN_LOGIT
        rows = job.profile.compiled_batch if isinstance(job, DecodeJob) else 1
        return logits[:rows, : self.model.vocab_size]

    def _name_candidates(self, logits: Rows, job: Job) -> Candidates:
        ids = np.zeros((len(logits), min(self.model.candidates, self.model.vocab_size)), np.int32)
        for work in job.lanes:
            ids[work.index] = likeliest(logits[work.index], ids.shape[1])
        return Candidates(ids, np.take_along_axis(logits, ids, axis=1))

    def _disturb_inactive(self, job: DecodeJob) -> None:
        """Without a mask contract a batch writes a row of KV into every lane that it addresses."""
        if self.model.inactive_lane is not InactiveLanePolicy.NONE or self.model.layout is LaneLayout.INDIRECT:
            return
        assert job.first_lane is not None, "the ledger took it: it is contiguous"
        active = {work.lane for work in job.lanes}
        for lane in range(job.first_lane, job.first_lane + job.profile.compiled_batch):
            idle = self._ledger.occupant(LaneId(lane))
            if idle is not None and lane not in active:
                self._histories[idle][-1] = extend(self._histories[idle][-1], (0,))
