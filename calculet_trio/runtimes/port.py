"""The port: the one blocking interface between the shell and anything that runs a model.

An implementation is driven from worker threads. It knows no scheduler, no trio and no HTTP. Outcomes of
work are values; an exception from a runtime is a defect of that runtime, and the shell turns it into
``Unknown(RUNTIME_ERROR)``.

Threads: ``submit`` and ``wait`` of one engine come from one thread at a time, different engines from
different threads. ``allocate``, ``release``, ``remove_tail``, ``can_allocate``, ``memory`` and ``status``
come from another thread while jobs run, the last two also while a model is put on the device. ``open``,
``reset_configuration`` and ``close`` come while no job runs; so do ``configure``, ``warm_up``, ``golden``
and ``unload``, but where the device holds several models: there they come while jobs and KV calls of other
generations run.

Source: SPEC section 1, 7, 9, 14 (S §2, §9, §14; A §5).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NewType, Protocol

import attrs
import numpy as np
import numpy.typing as npt

from calculet_trio.core.events import FaultReason
from calculet_trio.core.jobs import EngineId, Job
from calculet_trio.core.profiles import ModelShape
from calculet_trio.ids import GenerationId, LaneId, SequenceId
from calculet_trio.text.rows import CandidateRow

Ticket = NewType("Ticket", int)
"""A submitted job, as the runtime calls it."""

Logits = npt.NDArray[np.float32] | npt.NDArray[np.uint16]
"""``[batch, vocab]``, rows by batch index: float32, or the bits of bfloat16; a view into a buffer the runtime owns and
will reuse. `calculet_trio.text.rows.widened` makes float32 of either."""

CANDIDATES: Final = "candidates"
"""The capability of naming each row's largest logits."""


# ---- what a runtime is ------------------------------------------------------------------------


@attrs.frozen
class DeviceInfo:
    """What was opened.

    Args:
        kind: what it really is: ``cpu``, ``emulated``, ``scripted``, ``calculet``. Read from the
            hardware, never from a library's name.
        name: for people.
        engines: the job engines it has.
        versions: component → version, as reported by the components.
    """

    kind: str
    name: str
    engines: tuple[EngineId, ...]
    versions: dict[str, str]


@attrs.frozen
class TensorInfo:
    """One input or output of a submodel, as the runtime itself reports it."""

    submodel: str
    name: str
    dtype: str
    shape: tuple[int | str, ...]


@attrs.frozen
class KvLayout:
    """Where KV lies: ``contiguous_lanes`` (a batch addresses adjacent lanes) or ``indirect``."""

    kind: str
    lanes: int
    max_seq: int
    bytes_per_token: int


@attrs.frozen
class ModelDescription:
    """What a configured model turned out to be, inspected and not assumed.

    Args:
        capabilities: names of what the runtime claims it can do (``remove_tail`` ...); a claim is not
            evidence (SPEC section 12).
        warnings: what everybody who uses the model should know of it, a sentence each.
    """

    shape: ModelShape
    kv: KvLayout
    tensors: tuple[TensorInfo, ...]
    capabilities: frozenset[str]
    warnings: tuple[str, ...] = ()


@attrs.frozen
class MemoryUse:
    """Device memory in bytes; ``total_bytes`` is None where the device's own figure cannot be trusted.

    Args:
        declared_bytes: the device's size by its PCI id or by what an operator says: nobody measured it.
    """

    used_bytes: int
    total_bytes: int | None
    declared_bytes: int | None = None


@attrs.frozen
class DeviceStatus:
    """Alive or not, and what the device says of itself.

    Args:
        ok: whether it can be used.
        word: its own word for that.
        jobs: those that it still has, by its own count and whoever gave them; None where it cannot tell.
        counters: of its queues, by name; those of a device that does nothing stand still.
    """

    ok: bool
    word: str
    jobs: int | None = None
    counters: Mapping[str, int] = attrs.field(factory=dict)


# ---- outcomes -----------------------------------------------------------------------------------


@attrs.frozen
class Allocated:
    sequence: SequenceId


@attrs.frozen
class NotAllocated:
    """The device cannot hold another sequence now."""

    reason: FaultReason


@attrs.frozen
class Submitted:
    ticket: Ticket


@attrs.frozen
class NotSubmitted:
    """The device did not take the job. Nothing was written anywhere."""

    reason: FaultReason


@attrs.frozen(eq=False)
class Candidates:
    """The k largest logits of each row, rows by batch index, in any order within a row.

    Args:
        ids: i32[batch, k].
        values: f32[batch, k].
    """

    ids: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]

    def row(self, index: int) -> CandidateRow:
        """Those of one row."""
        return CandidateRow(self.ids[index], self.values[index])


@attrs.frozen
class Finished:
    """The device answered.

    Args:
        logits: rows by batch index (prefill: one row; None is fine for a job that does not sample). Rows of
            inactive lanes are unspecified.
            Valid until the same engine's next ``submit``. None if the output failed.
        failed: why the output must not be used, or None. With it, nothing may be committed.
        device_s: time the device itself spent computing; None where the runtime cannot tell.
        h2d_s, d2h_s: copying inputs to the device and outputs back, beside it; None where that is not told apart.
        lost_lanes: lanes whose KV is unknown while the others' is whole; only where the package declares
            ``lane_fault_isolation`` does that help the others.
        ticket: the job that this answers; None where the runtime cannot tell. Another's makes the job's fate unknown.
        candidates: the same rows' largest logits, of a runtime with the capability `CANDIDATES`; the rows themselves
            are then read only where these do not tell. As long valid.
        anomaly: what about the engine did not agree with a whole output (its status word, its counters), or None.
    """

    logits: Logits | None
    failed: FaultReason | None = None
    device_s: float | None = None
    h2d_s: float | None = None
    d2h_s: float | None = None
    lost_lanes: frozenset[LaneId] = frozenset()
    ticket: Ticket | None = None
    anomaly: FaultReason | None = None
    candidates: Candidates | None = None


@attrs.frozen
class Unknown:
    """The wait ended without an answer: timeout, fault, loss. Buffers and lanes are to be quarantined."""

    reason: FaultReason


@attrs.frozen
class GoldenResult:
    """Whether the model still says what its package recorded, and by how much it differs."""

    passed: bool
    detail: str


# ---- the port -----------------------------------------------------------------------------------


class Runtime(Protocol):
    """Everything the shell may ask of a device. All calls block; see the module for threads."""

    def open(self) -> DeviceInfo:
        """Take the device. Raises `calculet_trio.errors.Unavailable` if it cannot be had."""

    def configure(self, generation: GenerationId, package: Path) -> None:
        """Put the package's model on the device under ``generation``.

        Raises `calculet_trio.errors.PackageError` where the package does not fit the device; what was
        begun is undone.
        """

    def inspect(self, generation: GenerationId) -> ModelDescription:
        """Profiles, KV layout and tensors of a configured model."""

    def warm_up(self, generation: GenerationId) -> None:
        """Whatever must have run before, so that the first request pays for nothing. No lane is touched.

        The golden run, which goes through every submodel, comes next.
        """

    def golden(self, generation: GenerationId) -> GoldenResult:
        """Replay the package's recorded inputs and compare. No lane holds a sequence meanwhile."""

    def can_allocate(self, generation: GenerationId, sequences: int) -> bool:
        """The runtime's hint that so many more sequences would fit; accounting is the core's."""

    def allocate(self, generation: GenerationId, lane: LaneId, tokens: int) -> Allocated | NotAllocated:
        """An empty KV sequence of up to ``tokens`` in ``lane``. Returns at once; never waits for room.

        Its id is no other's in this generation, now or later.
        """

    def release(self, generation: GenerationId, lane: LaneId, sequence: SequenceId) -> bool:
        """Forget the sequence and its KV. True only if the runtime is certain that the lane is empty."""

    def remove_tail(self, generation: GenerationId, sequence: SequenceId, tokens: int) -> bool:
        """Drop the last ``tokens`` of a sequence that no job holds. True if done."""

    def submit(self, engine: EngineId, job: Job) -> Submitted | NotSubmitted:
        """Hand a job over; returns as soon as the device has it.

        Validates every lane first: a bad one is ``NotSubmitted`` for the whole job.
        """

    def wait(self, engine: EngineId, ticket: Ticket, timeout_s: float) -> Finished | Unknown:
        """Block until the job is done or ``timeout_s`` have passed. Called once per ticket."""

    def memory(self) -> MemoryUse:
        """Device memory; callable at any time."""

    def status(self) -> DeviceStatus:
        """The device's health word; callable at any time."""

    def unload(self, generation: GenerationId) -> bool:
        """Take the generation's model off the device; others stay. No job of it runs, no lane of it holds a sequence.

        True if the device is known to hold nothing of it any more; a generation that is not there is no error.
        """

    def reset_configuration(self) -> bool:
        """Unload every model. True if the device is known to be quiet afterwards."""

    def close(self) -> None:
        """Give the device back. Never raises."""
