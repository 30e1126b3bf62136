"""A package's model on the board: its calbin opened and configured, its lanes, its engines.

What the calbin says must be what the manifest says: submodels by exact name, their batches, tensors and registers.

Source: SPEC section 7, 8, 14 (S §9, §11; A §4, §5).
"""

from __future__ import annotations

import os
from ctypes import byref, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Final

from calculet_trio.core.jobs import EngineId, Job, PrefillJob
from calculet_trio.errors import PackageError
from calculet_trio.ids import LaneId, SequenceId
from calculet_trio.packages.calbin_agreement import require_agreement
from calculet_trio.packages.calbin_roles import role_names
from calculet_trio.packages.manifest import Manifest
from calculet_trio.runtimes import calrt_abi as abi
from calculet_trio.runtimes.calrt_abi import Code
from calculet_trio.runtimes.calrt_engine import CalrtEngine
from calculet_trio.runtimes.calrt_inspection import inspect_calbin, open_calbin
from calculet_trio.runtimes.calrt_library import CalrtLibrary
from calculet_trio.runtimes.lane_ledger import LaneLedger

ENGINE_NUMBERS: Final = {engine: number for number, engine in enumerate(EngineId)}


class CalrtModel:
    """A configured generation.

    Args:
        library: the binding.
        device: its open device.
        package: the package's directory.
        manifest: its manifest, whose target is this device, and which has a binary.
        engines: those that the device has.

    Raises:
        PackageError: the calbin is refused, or is not what the manifest says; what was begun is undone.
    """

    def __init__(
        self,
        library: CalrtLibrary,
        device: c_void_p,
        package: Path,
        manifest: Manifest,
        engines: tuple[EngineId, ...],
    ) -> None:
        assert manifest.binary is not None, "the runtime has looked"
        self.package = package
        self.manifest = manifest
        self.ledger = LaneLedger(manifest.shape())
        self.sequences: dict[SequenceId, int] = {}
        self._library = library
        self._names = (manifest.roles.prefill, *(profile.submodel for profile in manifest.profiles))
        self._indices = {name: index for index, name in enumerate(self._names)}
        shards = tuple(package / shard for shard in manifest.binary.shards)
        self._calbin = open_calbin(library, device, shards)
        try:
            self.inspected = inspect_calbin(library, self._calbin, shards)
            require_agreement(manifest, self.inspected, package)
            self._model = self._configured()
        except BaseException:
            library.calls.calbin_close(self._calbin)
            raise
        self.engines = {
            engine: CalrtEngine(
                library.calls,
                self._model,
                ENGINE_NUMBERS[engine],
                rows=max(profile.compiled_batch for profile in manifest.profiles),
                tokens=manifest.kv.max_seq,
            )
            for engine in engines
        }

    def _configured(self) -> c_void_p:
        roles = (abi.Role * len(self._names))(*(_role(self.manifest, name) for name in self._names))
        model = c_void_p()
        code = self._library.calls.model_configure(self._calbin, roles, len(self._names), byref(model))
        if code != Code.OK:
            raise PackageError(f"{self.manifest.name}: the board refused it: {self._library.error(code)}")
        return model

    def submodel_of(self, job: Job) -> int:
        """The job's submodel, as its index among the roles; the ledger knows that it has one."""
        return self._indices[self.manifest.roles.prefill if isinstance(job, PrefillJob) else job.profile.submodel]

    def golden(self, timeout_s: float) -> abi.Golden:
        """Replay what the calbin itself has recorded.

        Raises:
            calculet_trio.runtimes.calrt_library.CalrtError: it could not be.
        """
        golden = abi.Golden()
        self._library.check(self._library.calls.model_golden(self._model, timeout_s, byref(golden)))
        return golden

    # ---- lanes: one thread at a time ----------------------------------------------------------------

    def can_allocate(self, sequences: int) -> bool:
        fits = c_uint32()
        code = self._library.calls.kv_can_allocate(self._model, max(sequences, 0), byref(fits))
        return code == Code.OK and bool(fits.value)

    def allocate(self, lane: LaneId, tokens: int) -> tuple[int, int]:
        """The code, and the binding's number of the new sequence."""
        sequence = c_uint64()
        return self._library.calls.kv_allocate(self._model, lane, tokens, byref(sequence)), sequence.value

    def release(self, sequence: SequenceId) -> int:
        """The code; OK: the lane is empty."""
        return int(self._library.calls.kv_release(self._model, self.sequences[sequence]))

    def remove_tail(self, sequence: SequenceId, tokens: int) -> int:
        """The code."""
        return int(self._library.calls.kv_remove_tail(self._model, self.sequences[sequence], tokens))

    def unload(self) -> bool:
        """Give it all back; False where something of it may still be in use by the board, and is kept."""
        quiet = self._library.calls.model_unload(self._model) == Code.OK
        return bool(self._library.calls.calbin_close(self._calbin) == Code.OK and quiet)


def _role(manifest: Manifest, name: str) -> abi.Role:
    names = role_names(manifest.submodel(name))
    mask = next((profile.mask for profile in manifest.profiles if profile.submodel == name), None)
    return abi.Role(
        role=abi.PREFILL if name == manifest.roles.prefill else abi.DECODE,
        submodel=os.fsencode(name),
        tokens=names.tokens.encode(),
        positions=names.positions.encode(),
        logits=names.logits.encode(),
        lane_mask=None if mask is None else mask.encode(),
        past_length_csr=names.past_length.encode(),
        current_length_csr=names.length.encode(),
    )
