"""The board: CalRT behind its binding, and behind the port.

Which library it is, `calrt_library` finds; what its calls are, `calrt_abi` says (and why ctypes); what a configured
model is, `calrt_model`; an engine with its pooled buffers, `calrt_engine`. Here they become the port. On the
emulator's library everything says ``calrt-emulator``, and counts for no board.

Source: SPEC section 1, 7–9, 14 (S §3, §9, §14; A §4, §5).
"""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path
from typing import Final

import attrs

from calculet_trio import __version__
from calculet_trio.core.events import FaultReason
from calculet_trio.core.jobs import EngineId, Job
from calculet_trio.errors import PackageError
from calculet_trio.ids import GenerationId, LaneId, SequenceId
from calculet_trio.packages import golden as recordings
from calculet_trio.packages.calbin import Calbin
from calculet_trio.packages.compatibility import untried
from calculet_trio.packages.manifest import Manifest
from calculet_trio.runtimes import port_golden
from calculet_trio.runtimes.calrt_abi import Code
from calculet_trio.runtimes.calrt_device import CalrtDevice
from calculet_trio.runtimes.calrt_emulator import CalrtEmulator
from calculet_trio.runtimes.calrt_inspection import inspect_calbin, open_calbin
from calculet_trio.runtimes.calrt_library import CalrtError, CalrtLibrary
from calculet_trio.runtimes.calrt_model import CalrtModel
from calculet_trio.runtimes.port import (
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

CAPABILITIES: Final = frozenset({"remove_tail"})
"""What the vendor's API has a call for; a claim is not evidence."""

_REFUSALS: Final = {
    Code.DEVICE_BUSY: FaultReason.DEVICE_BUSY,
    Code.NO_CAPACITY: FaultReason.NO_CAPACITY,
    Code.ENGINE_LOST: FaultReason.DEVICE_LOST,
    Code.DEVICE_LOST: FaultReason.DEVICE_LOST,
    Code.PCIE_ERROR: FaultReason.PCIE_ERROR,
}
"""Why a job or a sequence was not taken; any other code is ``RUNTIME_ERROR``."""
_LOSSES: Final = {
    Code.TIMEOUT: FaultReason.TIMEOUT,
    Code.CCU_FAULT: FaultReason.CCU_FAULT,
    Code.PCIE_ERROR: FaultReason.PCIE_ERROR,
    Code.UNKNOWN_DMA: FaultReason.UNKNOWN_DMA,
    Code.DEVICE_LOST: FaultReason.DEVICE_LOST,
}
"""What became of a job that was submitted; any other code is ``RUNTIME_ERROR``."""


@attrs.frozen
class _Running:
    """A submitted job that nobody has waited for to its end."""

    ticket: Ticket
    job: Job
    model: CalrtModel


@attrs.frozen(kw_only=True)
class BoardOptions:
    """How the board is opened.

    Args:
        lock: the file that keeps other processes off it; None for the binding's own.
        accept_untried: configure packages although no row of the compatibility matrix names the versions.
    """

    lock: Path | None = None
    accept_untried: bool = False


class CalrtRuntime:
    """See `calculet_trio.runtimes.port.Runtime` for every method.

    Args:
        library: the binding.
        options: how the board is opened.
    """

    def __init__(self, library: CalrtLibrary, options: BoardOptions | None = None) -> None:
        self._library = library
        self._options = options or BoardOptions()
        self._lock = threading.Lock()  # the books: model, lanes, jobs
        self._kv = threading.Lock()  # the binding's KV calls come one at a time
        self._device: CalrtDevice | None = None
        self._generation: GenerationId | None = None
        self._model: CalrtModel | None = None
        self._warnings: tuple[str, ...] = ()
        self._running: dict[EngineId, _Running] = {}
        self._tickets = count(1)

    @property
    def emulator(self) -> CalrtEmulator | None:
        """The emulator's controls; None of the vendor's library, whatever it is called."""
        return CalrtEmulator(self._library) if self._library.is_emulator else None

    # ---- the device -------------------------------------------------------------------------------

    def open(self) -> DeviceInfo:
        """Raises `Unavailable` where there is no board, or another process has it; the message says which."""
        self._device = CalrtDevice(self._library, self._options.lock)
        return self._device.info

    def memory(self) -> MemoryUse:
        return MemoryUse(0, None) if self._device is None else self._device.memory()

    def status(self) -> DeviceStatus:
        return DeviceStatus(False, "closed") if self._device is None else self._device.status()

    def unload(self, generation: GenerationId) -> bool:
        """This board holds one model; its configuration is cleared with it, or it would take no other."""
        return generation != self._generation or self.reset_configuration()

    def reset_configuration(self) -> bool:
        """Unload the model, and clear the board; True only if nothing of a lost job may still go on."""
        return self._device is not None and self._unload() and self._device.reset_configuration()

    def close(self) -> None:
        if self._device is not None:
            self._unload()
            self._device.close()
            self._device = None

    def _unload(self) -> bool:
        with self._lock:
            model, self._model, self._generation = self._model, None, None
            self._running.clear()
        return model is None or model.unload()

    # ---- the model --------------------------------------------------------------------------------

    def configure(self, generation: GenerationId, package: Path) -> None:
        """Put the package on the board, which holds one.

        Raises:
            PackageError: it is for another kind of device, was never tried with these versions, does not fit, or its
                calbin is not what its manifest says.
        """
        assert self._device is not None, "open comes first"
        assert self._model is None, "this board holds one model"
        manifest = Manifest.load(package)
        info = self._device.info
        if manifest.target != info.kind:
            raise PackageError(f"{package} is for {manifest.target!r} devices; this one is {info.kind!r}")
        warnings = self._require_tried(manifest, info)
        model = CalrtModel(self._library, self._device.handle, package, manifest, info.engines)
        with self._lock:
            self._generation, self._model, self._warnings = generation, model, warnings

    def _require_tried(self, manifest: Manifest, info: DeviceInfo) -> tuple[str, ...]:
        if manifest.binary is None:
            raise PackageError(f"{manifest.name}: binary is null; a package of {manifest.target!r} has a calbin")
        versions = {**info.versions, "server": __version__}
        versions |= {"compiler": manifest.binary.compiler, "calbin_schema": manifest.binary.version}
        problem = untried(info.kind, versions)
        if problem is None:
            return ()
        if not self._options.accept_untried:
            raise PackageError(
                f"{manifest.name}: {problem}",
                hint="install versions that were tried, or set device.accept_untried (--accept-untried) and run "
                "`calculet-trio conformance run --runtime calrt` first",
            )
        return (f"forced: {problem}",)

    def read_calbin(self, shards: tuple[Path, ...]) -> Calbin:
        """What the shards of one calbin say of themselves, as the board's runtime reads them.

        Raises:
            PackageError: the runtime does not take them.
        """
        assert self._device is not None, "open comes first"
        calbin = open_calbin(self._library, self._device.handle, shards)
        try:
            return inspect_calbin(self._library, calbin, shards)
        finally:
            self._library.calls.calbin_close(calbin)

    def inspect(self, generation: GenerationId) -> ModelDescription:
        """The manifest's shape, and tensors as the board's runtime reports them."""
        model = self._configured(generation)
        kv = model.manifest.kv
        return ModelDescription(
            shape=model.manifest.shape(),
            kv=KvLayout(kv.kind.value, kv.lanes, kv.max_seq, kv.bytes_per_token),
            tensors=tuple(
                TensorInfo(submodel.name, tensor.name, tensor.dtype, tensor.extents)
                for submodel in model.inspected.submodels
                for tensor in submodel.tensors
            ),
            capabilities=CAPABILITIES,
            warnings=self._warnings,
        )

    def warm_up(self, generation: GenerationId) -> None:
        """On every engine: each has buffers of its own."""
        model = self._configured(generation)
        for engine in model.engines:
            port_golden.warm_up(self._golden_run(generation, model, engine))

    def golden(self, generation: GenerationId) -> GoldenResult:
        """The package's recording on every engine, and the calbin's own where it has one."""
        model = self._configured(generation)
        recorded = model.manifest.golden
        try:
            own = model.golden(port_golden.JOB_S)
            if own.passed < own.cases:
                return GoldenResult(
                    False, f"{own.cases - own.passed} of the calbin's {own.cases} cases: {_text(own.text)}"
                )
            if recorded is None:
                return GoldenResult(False, "the package has no golden recording")
        except CalrtError as error:
            return GoldenResult(False, str(error))
        sequences = recordings.load(model.package, model.manifest)[: model.manifest.kv.lanes]
        details = []
        for engine in model.engines:
            result = port_golden.replay(self._golden_run(generation, model, engine), sequences, recorded)
            if not result.passed:
                return attrs.evolve(result, detail=f"engine {engine.value}: {result.detail}")
            details.append(f"engine {engine.value}: {result.detail}")
        return GoldenResult(True, "; ".join((*details, f"{own.cases} cases of the calbin's own passed")))

    def record_golden(self, generation: GenerationId) -> tuple[recordings.GoldenSequence, ...]:
        """What the model says now, for a package that is being made.

        Raises:
            PackageError: it cannot be run.
        """
        model = self._configured(generation)
        return port_golden.record(self._golden_run(generation, model, EngineId.PING), model.manifest)

    def _golden_run(self, generation: GenerationId, model: CalrtModel, engine: EngineId) -> port_golden.GoldenRun:
        return port_golden.GoldenRun(self, generation, model.manifest.shape(), engine)

    def _configured(self, generation: GenerationId) -> CalrtModel:
        model = self._model_of(generation)
        assert model is not None, "configure comes first"
        return model

    def _model_of(self, generation: GenerationId) -> CalrtModel | None:
        return self._model if generation == self._generation else None

    # ---- lanes ------------------------------------------------------------------------------------

    def can_allocate(self, generation: GenerationId, sequences: int) -> bool:
        with self._kv:
            model = self._model_of(generation)
            return model is not None and sequences <= model.ledger.free_lanes and model.can_allocate(sequences)

    def allocate(self, generation: GenerationId, lane: LaneId, tokens: int) -> Allocated | NotAllocated:
        with self._kv:
            with self._lock:
                model = self._model_of(generation)
                sequence = None if model is None else model.ledger.allocate(lane, tokens)
            if model is None or sequence is None:
                return NotAllocated(FaultReason.NO_CAPACITY)
            code, number = model.allocate(lane, tokens)
            with self._lock:
                if code == Code.OK:
                    model.sequences[sequence] = number
                    return Allocated(sequence)
                model.ledger.release(lane, sequence)
            return NotAllocated(_reason(_REFUSALS, code))

    def release(self, generation: GenerationId, lane: LaneId, sequence: SequenceId) -> bool:
        """True only where ledger and board agree; what the board does not confirm stays taken."""
        with self._kv:
            model = self._model_of(generation)
            with self._lock:
                if model is None or not model.ledger.may_release(lane, sequence):
                    return False
            if model.release(sequence) != Code.OK:
                return False
            with self._lock:
                del model.sequences[sequence]
                return model.ledger.release(lane, sequence)

    def remove_tail(self, generation: GenerationId, sequence: SequenceId, tokens: int) -> bool:
        with self._kv:
            model = self._model_of(generation)
            with self._lock:  # held over the board's call: no job may take the sequence in between
                if model is None or not model.ledger.may_remove_tail(sequence, tokens):
                    return False
                return model.remove_tail(sequence, tokens) == Code.OK and model.ledger.remove_tail(sequence, tokens)

    # ---- jobs -------------------------------------------------------------------------------------

    def submit(self, engine: EngineId, job: Job) -> Submitted | NotSubmitted:
        with self._lock:
            model = self._model_of(job.generation)
            if engine in self._running:
                return NotSubmitted(FaultReason.DEVICE_BUSY)
            if model is None or engine not in model.engines:
                return NotSubmitted(FaultReason.RUNTIME_ERROR)
            reason = model.ledger.refuse(job)
            if reason is not None:
                return NotSubmitted(reason)
            model.ledger.hold(job)
            submodel = model.submodel_of(job)
            running = _Running(Ticket(next(self._tickets)), job, model)
            self._running[engine] = running
        code = model.engines[engine].start(job, submodel, model.sequences)
        if code == Code.OK:
            return Submitted(running.ticket)
        with self._lock:
            self._running.pop(engine, None)
            model.ledger.settle(job, committed=False)
        return NotSubmitted(_reason(_REFUSALS, code))

    def wait(self, engine: EngineId, ticket: Ticket, timeout_s: float) -> Finished | Unknown:
        """A job whose fate is unknown keeps its lanes; after a timeout its engine, too."""
        running = self._running.get(engine)
        if running is None or running.ticket != ticket:
            return Unknown(FaultReason.RUNTIME_ERROR)
        board = running.model.engines[engine]
        code = board.wait(timeout_s)
        if code == Code.TIMEOUT:
            return Unknown(FaultReason.TIMEOUT)
        with self._lock:
            if self._running.pop(engine, None) is not running:  # the configuration was reset in the middle
                return Unknown(FaultReason.RUNTIME_ERROR)
            if code not in (Code.OK, Code.OUTPUT_ERROR):
                return Unknown(_reason(_LOSSES, code))
            running.model.ledger.settle(running.job, committed=code == Code.OK)
        device_s, h2d_s, d2h_s = board.times_s
        if code == Code.OUTPUT_ERROR:
            return Finished(None, failed=FaultReason.OUTPUT_ERROR, device_s=device_s, ticket=ticket)
        logits, anomaly = board.logits(), board.anomaly()
        return Finished(logits, device_s=device_s, h2d_s=h2d_s, d2h_s=d2h_s, ticket=ticket, anomaly=anomaly)


def _reason(reasons: dict[Code, FaultReason], code: int) -> FaultReason:
    return next((reason for known, reason in reasons.items() if known == code), FaultReason.RUNTIME_ERROR)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
