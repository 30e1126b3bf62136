"""What the board's runtime says of a calbin, unchecked: the only way to read a real one.

Source: SPEC section 14 (A §4); binding/include/calculet_calrt.h, "calbins".
"""

from __future__ import annotations

import os
from ctypes import byref, c_char_p, c_void_p
from pathlib import Path
from typing import Final

from calculet_trio.errors import PackageError
from calculet_trio.packages.calbin import CHIP_MODES, Calbin, CalbinCsr, CalbinSubmodel, CalbinTensor
from calculet_trio.runtimes import calrt_abi as abi
from calculet_trio.runtimes.calrt_abi import Code
from calculet_trio.runtimes.calrt_library import CalrtLibrary

SOME_CHIP: Final = -1
"""The runtime says how many chips a submodel is for, and not which."""


def open_calbin(library: CalrtLibrary, device: c_void_p, shards: tuple[Path, ...]) -> c_void_p:
    """A calbin's handle.

    Raises:
        PackageError: the runtime does not take it; its words.
    """
    calbin = c_void_p()
    names = (c_char_p * len(shards))(*(os.fsencode(path) for path in shards))
    code = library.calls.calbin_open(device, names, len(shards), byref(calbin))
    if code != Code.OK:
        raise PackageError(f"{shards[0].parent}: the calbin was refused: {library.error(code)}")
    return calbin


def inspect_calbin(library: CalrtLibrary, calbin: c_void_p, shards: tuple[Path, ...]) -> Calbin:
    """Everything that it says; 0 and empty where it does not.

    Raises:
        calculet_trio.runtimes.calrt_library.CalrtError: it could not be asked.
    """
    info = abi.CalbinInfo()
    library.check(library.calls.calbin_inspect(calbin, byref(info)))
    return Calbin(
        version=_text(info.schema_version).removeprefix("v"),
        name="",
        compiler="",
        compiler_version="",
        calcore_rt="",
        chip_mode=CHIP_MODES[info.chips > 1],
        chips=info.chips,
        max_batch_size=info.max_batch_size,
        max_seq_len=info.max_seq_len,
        lanes=info.lanes,
        vocab_size=info.vocab_size,
        kv_bytes_per_token=info.kv_token_bytes,
        submodels=tuple(_submodel(library, calbin, number) for number in range(info.submodels)),
        parameter_bytes=tuple(path.stat().st_size for path in shards),
    )


def _submodel(library: CalrtLibrary, calbin: c_void_p, number: int) -> CalbinSubmodel:
    info = abi.SubmodelInfo()
    library.check(library.calls.submodel_inspect(calbin, number, byref(info)))
    return CalbinSubmodel(
        name=_text(info.name),
        model_type=_text(info.model_type),
        batch=info.batch,
        workload=info.workload,
        target_chips=(SOME_CHIP,) * info.target_chips,
        tensors=tuple(_tensor(library, calbin, number, index) for index in range(info.tensors)),
        csrs=tuple(_csr(library, calbin, number, index) for index in range(info.csrs)),
    )


def _tensor(library: CalrtLibrary, calbin: c_void_p, submodel: int, index: int) -> CalbinTensor:
    info = abi.TensorInfo()
    library.check(library.calls.tensor_inspect(calbin, submodel, index, byref(info)))
    extents = tuple(info.shape[place] for place in range(min(info.rank, abi.RANK_MAX)))
    direction = "output" if info.direction == abi.OUTPUT else "input"
    return CalbinTensor(direction, _text(info.name), _text(info.dtype), extents)


def _csr(library: CalrtLibrary, calbin: c_void_p, submodel: int, index: int) -> CalbinCsr:
    info = abi.CsrInfo()
    library.check(library.calls.csr_inspect(calbin, submodel, index, byref(info)))
    return CalbinCsr(_text(info.name), info.elements)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
