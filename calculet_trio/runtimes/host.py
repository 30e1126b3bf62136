"""The CPU runtime: real models on the machine's own processors, behind the port of a board.

It keeps a board's manners: whole graphs with fixed lanes, two engines, validation before submission, lanes
that are released with confirmation. ``submit`` only checks and remembers; the graph runs in ``wait``.

Ping and pong have bindings and logits of their own over one session, and take turns at the processors: a run uses all
threads, and two at once would only get in each other's way. So what overlaps is sampling one engine's logits and the
other's run, and they share the same processors: on a machine whose threads all compute, two engines bring little.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any, Final

import attrs

from calculet_trio.core.events import FaultReason
from calculet_trio.core.jobs import EngineId, Job, PrefillJob
from calculet_trio.errors import PackageError, Unavailable
from calculet_trio.freed_memory import give_back_freed
from calculet_trio.ids import GenerationId, LaneId, SequenceId
from calculet_trio.packages.manifest import Manifest
from calculet_trio.runtimes import host_golden
from calculet_trio.runtimes.host_model import HostModel, LaneStep
from calculet_trio.runtimes.lane_ledger import LaneLedger
from calculet_trio.runtimes.port import (
    CANDIDATES,
    Allocated,
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
from calculet_trio.runtimes.run_timer import RunTimer

TARGET: Final = "cpu"
ENGINES: Final = tuple(EngineId)
CAPABILITIES: Final = frozenset({"remove_tail", "incremental_prefill", "co_residency"})
"""What the graphs can do; a claim is not evidence."""


@attrs.define
class _Loaded:
    """A configured generation."""

    model: HostModel
    ledger: LaneLedger
    weights_bytes: int


@attrs.frozen
class _Pending:
    """A submitted job that nobody has waited for yet."""

    ticket: Ticket
    job: Job
    loaded: _Loaded


class HostRuntime:
    """`calculet_trio.runtimes.port.Runtime` on onnxruntime.

    Args:
        threads: threads of a run; None for as many as this process may use.
    """

    def __init__(self, *, threads: int | None = None) -> None:
        self._threads = threads or len(os.sched_getaffinity(0))
        self._lock = threading.Lock()  # the books: models, lanes, the pending jobs
        self._computing = threading.Lock()  # held by the one run
        self._models: dict[GenerationId, _Loaded] = {}
        self._pending: dict[EngineId, _Pending] = {}
        self._tickets = count(1)
        self._timer: RunTimer | None = None
        self._options: Any = None

    # ---- the device -------------------------------------------------------------------------------

    def open(self) -> DeviceInfo:
        """Raises `Unavailable` where onnxruntime is not installed."""
        try:
            import onnxruntime
        except ImportError:
            raise Unavailable(
                "the CPU runtime needs onnxruntime, which is not installed", hint="pip install 'calculet-trio[host]'"
            ) from None
        self._timer = RunTimer()
        self._options = onnxruntime.RunOptions()
        return DeviceInfo(
            kind=TARGET,
            name=f"{platform.machine()} processor, {self._threads} threads",
            engines=ENGINES,
            versions={"onnxruntime": onnxruntime.__version__},
        )

    def memory(self) -> MemoryUse:
        """Weights and KV lanes; lanes never used are counted though the system has not given them yet."""
        with self._lock:
            used_bytes = sum(loaded.weights_bytes + loaded.model.kv_bytes for loaded in self._models.values())
        return MemoryUse(used_bytes, _machine_bytes())

    def status(self) -> DeviceStatus:
        is_open = self._timer is not None
        with self._lock:
            jobs = len(self._pending)
        return DeviceStatus(is_open, "open" if is_open else "closed", jobs=jobs)

    def reset_configuration(self) -> bool:
        """Unload every model; True unless a run is still under way. A job that nobody has waited for never began."""
        with self._lock:
            if self._computing.locked():
                return False
            self._pending.clear()
            self._models.clear()
        give_back_freed()
        return True

    def close(self) -> None:
        with self._lock:
            self._models.clear()
            self._pending.clear()
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.close()

    # ---- models -----------------------------------------------------------------------------------

    def configure(self, generation: GenerationId, package: Path) -> None:
        """Load the package; other generations stay.

        Raises:
            PackageError: not a package for the CPU, damaged, or larger than this machine's memory.
        """
        manifest = Manifest.load(package)
        if manifest.target != TARGET:
            raise PackageError(f"{package} is for {manifest.target!r} devices; this runtime runs {TARGET!r}")
        weights_bytes = sum(record.size_bytes for record in manifest.files.values())
        kv_bytes = manifest.kv.lanes * manifest.kv.max_seq * manifest.kv.bytes_per_token
        if self.memory().used_bytes + weights_bytes + kv_bytes > _machine_bytes():
            raise PackageError(
                f"{package} may need {(weights_bytes + kv_bytes) >> 20} MiB with all its lanes full; "
                f"this machine has {_machine_bytes() >> 20} MiB, {self.memory().used_bytes >> 20} MiB of them promised",
                hint="build it with fewer lanes or a smaller max_seq",
            )
        model = HostModel(package, manifest, threads=self._threads)
        with self._lock:
            assert generation not in self._models, "a generation is configured once"
            self._models[generation] = _Loaded(model, LaneLedger(manifest.shape()), weights_bytes)

    def unload(self, generation: GenerationId) -> bool:
        """Let the model go, and its memory; False while a job of it is submitted."""
        with self._lock:
            loaded = self._models.get(generation)
            if loaded is not None and any(pending.loaded is loaded for pending in self._pending.values()):
                return False
            self._models.pop(generation, None)
        del loaded
        give_back_freed()
        return True

    def inspect(self, generation: GenerationId) -> ModelDescription:
        """The manifest's shape, and tensors as onnxruntime itself reports them."""
        model = self._models[generation].model
        kv = model.manifest.kv
        reported = [*model.session.get_inputs(), *model.session.get_outputs()]
        return ModelDescription(
            shape=model.manifest.shape(),
            kv=KvLayout(kv.kind.value, kv.lanes, kv.max_seq, kv.bytes_per_token),
            tensors=tuple(
                TensorInfo(submodel.name, tensor.name, tensor.type, tuple(tensor.shape))
                for submodel in model.manifest.submodels
                for tensor in reported
            ),
            capabilities=CAPABILITIES | ({CANDIDATES} if model.names_candidates else frozenset()),
        )

    def warm_up(self, generation: GenerationId) -> None:
        """Nothing: weights are packed when the session is made, and a first run takes no longer than the next."""

    def golden(self, generation: GenerationId) -> GoldenResult:
        return host_golden.replay(self._models[generation].model)

    # ---- lanes ------------------------------------------------------------------------------------

    def can_allocate(self, generation: GenerationId, sequences: int) -> bool:
        with self._lock:
            loaded = self._models.get(generation)
            return loaded is not None and sequences <= loaded.ledger.free_lanes

    def allocate(self, generation: GenerationId, lane: LaneId, tokens: int) -> Allocated | NotAllocated:
        with self._lock:
            loaded = self._models.get(generation)
            sequence = None if loaded is None else loaded.ledger.allocate(lane, tokens)
        return NotAllocated(FaultReason.NO_CAPACITY) if sequence is None else Allocated(sequence)

    def release(self, generation: GenerationId, lane: LaneId, sequence: SequenceId) -> bool:
        with self._lock:
            loaded = self._models.get(generation)
            return loaded is not None and loaded.ledger.release(lane, sequence)

    def remove_tail(self, generation: GenerationId, sequence: SequenceId, tokens: int) -> bool:
        with self._lock:
            loaded = self._models.get(generation)
            return loaded is not None and loaded.ledger.remove_tail(sequence, tokens)

    # ---- jobs -------------------------------------------------------------------------------------

    def submit(self, engine: EngineId, job: Job) -> Submitted | NotSubmitted:
        with self._lock:
            if engine in self._pending:
                return NotSubmitted(FaultReason.DEVICE_BUSY)
            loaded = self._models.get(job.generation)
            if loaded is None or engine not in ENGINES or self._timer is None:
                return NotSubmitted(FaultReason.RUNTIME_ERROR)
            reason = loaded.ledger.refuse(job)
            if reason is not None:
                return NotSubmitted(reason)
            loaded.ledger.hold(job)
            ticket = Ticket(next(self._tickets))
            self._pending[engine] = _Pending(ticket, job, loaded)
        return Submitted(ticket)

    def wait(self, engine: EngineId, ticket: Ticket, timeout_s: float) -> Finished | Unknown:
        """Run the job when the other engine's is done. A run over its time is stopped.

        A stopped run's sequences, and those of one whose turn did not come, keep their length: nothing is committed.
        """
        pending, timer = self._pending.get(engine), self._timer
        if pending is None or pending.ticket != ticket or timer is None:
            return Unknown(FaultReason.RUNTIME_ERROR)
        deadline_s = time.perf_counter() + timeout_s
        outcome: Finished | Unknown = Unknown(FaultReason.TIMEOUT)
        if timeout_s > 0 and self._computing.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX)):
            try:
                outcome = self._compute(engine, pending, timer, deadline_s)
            finally:
                self._computing.release()
        with self._lock:
            committed = isinstance(outcome, Finished) and outcome.failed is None
            pending.loaded.ledger.settle(pending.job, committed=committed)
            self._pending.pop(engine, None)
        return outcome

    def _compute(self, engine: EngineId, pending: _Pending, timer: RunTimer, deadline_s: float) -> Finished | Unknown:
        """The one run at this time."""
        began_s = time.perf_counter()
        timer.start(self._options, deadline_s - began_s)
        outcome: Finished | Unknown
        try:
            model = pending.loaded.model
            logits = _run(model, engine, pending.job, self._options)
            device_s, named = time.perf_counter() - began_s, model.candidates(engine)
            outcome = Finished(logits, device_s=device_s, ticket=pending.ticket, candidates=named)
        except Exception:  # noqa: BLE001  onnxruntime's errors have no common base but this
            outcome = Finished(None, failed=FaultReason.OUTPUT_ERROR)
        if timer.finish() and isinstance(outcome, Finished) and outcome.logits is None:
            outcome = Unknown(FaultReason.TIMEOUT)
        return outcome


def _run(model: HostModel, engine: EngineId, job: Job, options: Any) -> Any:
    if isinstance(job, PrefillJob):
        work = job.work
        return model.prefill(work.lane, work.tokens, position=work.position, engine=engine, options=options)
    steps = sorted(
        (LaneStep(work.index, work.tokens[0], work.position) for work in job.lanes), key=lambda step: step.index
    )
    assert job.first_lane is not None, "the ledger took it: it is contiguous"
    return model.decode(job.first_lane, job.profile.compiled_batch, steps, engine=engine, options=options)


def _machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
