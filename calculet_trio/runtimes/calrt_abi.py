"""The C ABI of the binding, as ctypes sees it: constants, structs, and every call with its types.

A mirror of ``binding/include/calculet_calrt.h``, and nothing else; ``tests/runtimes/test_calrt_abi.py`` compiles that
header and compares every size, offset and constant. What calls and fields mean stands there and is not said again.

Why ctypes and not cffi: wheels stay pure Python, so cffi could only be used in its ABI mode, whose calls pass through
libffi as ctypes' do; and it would bring a parser for C into every daemon to read a header that we write ourselves.

Calls that can block, or that copy much, release the GIL (`CDLL`); those that only read a few words keep it (`PyDLL`),
since giving it away costs more than they take, and may cost a switch interval to get back.

Source: SPEC section 14; binding/include/calculet_calrt.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
)
from ctypes import c_void_p as handle
from enum import IntEnum
from typing import Any, Final, TypeVar

import attrs

ABI_VERSION: Final = 2
NAME_BYTES: Final = 132
TEXT_BYTES: Final = 256
ENGINES_MAX: Final = 2
RANK_MAX: Final = 8
PREFILL: Final = 1
DECODE: Final = 2
OUTPUT: Final = 1
SIZE_UNKNOWN: Final = 0
WAIT_S_MAX: Final = 86400.0
MARKER: Final = "calrt_emulator_marker"
"""A symbol that the emulator has, and the vendor's library has not."""


class Code(IntEnum):
    """What a call returns."""

    OK = 0
    INVALID = 1
    WRONG_STATE = 2
    LOCKED = 3
    NO_DEVICE = 4
    NO_FILE = 5
    BAD_CALBIN = 6
    NO_CAPACITY = 7
    NO_MEMORY = 8
    DEVICE_BUSY = 9
    TIMEOUT = 10
    ENGINE_LOST = 11
    OUTPUT_ERROR = 12
    CCU_FAULT = 13
    PCIE_ERROR = 14
    UNKNOWN_DMA = 15
    DEVICE_LOST = 16
    UNCONFIRMED = 17
    NOT_QUIET = 18
    UNSUPPORTED = 19
    VENDOR_ERROR = 20


Name = c_char * NAME_BYTES
Words = c_char * TEXT_BYTES


class OpenOptions(Structure):
    """``calculet_open_options``."""

    _fields_ = (("lock_path", c_char_p), ("pci_root", c_char_p), ("declared_memory_bytes", c_uint64))


class DeviceInfo(Structure):
    """``calculet_device_info``."""

    _fields_ = (
        ("kind", Name),
        ("pci_address", Name),
        ("pci_id", Name),
        ("driver", Name),
        ("driver_version", Name),
        ("calrt_version", Name),
        ("calcore_version", Name),
        ("library_path", Words),
        ("is_emulator", c_uint32),
        ("engines", c_uint32),
    )


class Memory(Structure):
    """``calculet_memory``."""

    _fields_ = (
        ("used_mib", c_double),
        ("total_mib", c_double),
        ("used_bytes", c_uint64),
        ("size_bytes", c_uint64),
        ("size_source", c_uint32),
        ("total_is_nonsense", c_uint32),
    )


class EngineInfo(Structure):
    """``calculet_engine_info``."""

    _fields_ = (("state", c_uint32), ("has_returned", c_uint32), ("submitted", c_uint64), ("answered", c_uint64))


class Status(Structure):
    """``calculet_status``."""

    _fields_ = (
        ("ok", c_uint32),
        ("word", c_uint32),
        ("text", Words),
        ("queue_submitted", c_uint64),
        ("queue_completed", c_uint64),
        ("engines", c_uint32),
        ("engine", EngineInfo * ENGINES_MAX),
    )


class CalbinInfo(Structure):
    """``calculet_calbin_info``."""

    _fields_ = (
        ("schema_version", Name),
        ("max_batch_size", c_uint32),
        ("max_seq_len", c_uint32),
        ("lanes", c_uint32),
        ("submodels", c_uint32),
        ("chips", c_uint32),
        ("vocab_size", c_uint32),
        ("kv_token_bytes", c_uint64),
    )


class SubmodelInfo(Structure):
    """``calculet_submodel_info``."""

    _fields_ = (
        ("name", Name),
        ("model_type", Name),
        ("workload", c_uint32),
        ("target_chips", c_uint32),
        ("batch", c_uint32),
        ("max_seq_len", c_uint32),
        ("tensors", c_uint32),
        ("csrs", c_uint32),
    )


class TensorInfo(Structure):
    """``calculet_tensor_info``."""

    _fields_ = (
        ("name", Name),
        ("dtype", c_char * 16),
        ("direction", c_uint32),
        ("rank", c_uint32),
        ("shape", c_int64 * RANK_MAX),
    )


class CsrInfo(Structure):
    """``calculet_csr_info``."""

    _fields_ = (("name", Name), ("elements", c_uint32))


class Role(Structure):
    """``calculet_role``."""

    _fields_ = (
        ("role", c_uint32),
        ("submodel", c_char_p),
        ("tokens", c_char_p),
        ("positions", c_char_p),
        ("logits", c_char_p),
        ("lane_mask", c_char_p),
        ("past_length_csr", c_char_p),
        ("current_length_csr", c_char_p),
    )


class Golden(Structure):
    """``calculet_golden``."""

    _fields_ = (("cases", c_uint32), ("passed", c_uint32), ("largest_difference", c_float), ("text", Words))


class KvInfo(Structure):
    """``calculet_kv_info``."""

    _fields_ = (("lanes", c_uint32), ("sequences", c_uint32))


class LaneWork(Structure):
    """``calculet_lane_work``."""

    _fields_ = (
        ("sequence", c_uint64),
        ("tokens", handle),  # an address: making a pointer object for each lane would cost more than the call
        ("token_count", c_uint32),
        ("position", c_uint32),
        ("row", c_uint32),
    )


class CsrWrite(Structure):
    """``calculet_csr_write``."""

    _fields_ = (("csr", c_uint32), ("element", c_uint32), ("value", c_int64))


class Job(Structure):
    """``calculet_job``."""

    _fields_ = (
        ("lanes", POINTER(LaneWork)),
        ("csrs", POINTER(CsrWrite)),
        ("submodel", c_uint32),
        ("lane_count", c_uint32),
        ("csr_count", c_uint32),
        ("wants_logits", c_uint32),
    )


class Result(Structure):
    """``calculet_result``."""

    _fields_ = (
        ("logits", handle),
        ("row_stride_bytes", c_uint64),
        ("rows", c_uint32),
        ("vocab_size", c_uint32),
        ("is_bfloat16", c_uint32),
        ("vendor_status", c_uint32),
        ("queue_submitted", c_uint64),
        ("queue_completed", c_uint64),
        ("infer_s", c_double),
        ("h2d_s", c_double),
        ("d2h_s", c_double),
        ("total_s", c_double),
    )


STRUCTS: Final[Mapping[str, type[Structure]]] = {
    "calculet_open_options": OpenOptions,
    "calculet_device_info": DeviceInfo,
    "calculet_memory": Memory,
    "calculet_engine_info": EngineInfo,
    "calculet_status": Status,
    "calculet_calbin_info": CalbinInfo,
    "calculet_submodel_info": SubmodelInfo,
    "calculet_tensor_info": TensorInfo,
    "calculet_csr_info": CsrInfo,
    "calculet_role": Role,
    "calculet_golden": Golden,
    "calculet_kv_info": KvInfo,
    "calculet_lane_work": LaneWork,
    "calculet_csr_write": CsrWrite,
    "calculet_job": Job,
    "calculet_result": Result,
}
"""The header's name of each."""


@attrs.frozen
class Call:
    """One function: what it takes; whether it blocks or copies much, so that the GIL is released; what it returns."""

    takes: tuple[Any, ...]
    blocks: bool = True
    returns: Any = c_int32


CALLS: Final[Mapping[str, Call]] = {
    "code_name": Call((c_int32,), blocks=False, returns=c_char_p),
    "error_text": Call((), blocks=False, returns=c_char_p),
    "abi_version": Call((), blocks=False, returns=c_uint32),
    "device_open": Call((POINTER(OpenOptions), POINTER(handle))),
    "device_close": Call((handle,)),
    "device_holder": Call((c_char_p, POINTER(c_int64), c_char_p)),
    "device_inspect": Call((handle, POINTER(DeviceInfo))),
    "device_memory": Call((handle, POINTER(Memory))),
    "device_status": Call((handle, POINTER(Status))),
    "device_reset_configuration": Call((handle,)),
    "calbin_open": Call((handle, POINTER(c_char_p), c_uint32, POINTER(handle))),
    "calbin_close": Call((handle,)),
    "calbin_inspect": Call((handle, POINTER(CalbinInfo))),
    "submodel_inspect": Call((handle, c_uint32, POINTER(SubmodelInfo))),
    "tensor_inspect": Call((handle, c_uint32, c_uint32, POINTER(TensorInfo))),
    "csr_inspect": Call((handle, c_uint32, c_uint32, POINTER(CsrInfo))),
    "model_configure": Call((handle, POINTER(Role), c_uint32, POINTER(handle))),
    "model_unload": Call((handle,)),
    "model_golden": Call((handle, c_double, POINTER(Golden))),
    "kv_can_allocate": Call((handle, c_uint32, POINTER(c_uint32))),
    "kv_allocate": Call((handle, c_uint32, c_uint32, POINTER(c_uint64))),
    "kv_release": Call((handle, c_uint64)),
    "kv_remove_tail": Call((handle, c_uint64, c_uint32)),
    "kv_inspect": Call((handle, POINTER(KvInfo))),
    "job_prepare": Call((handle, c_uint32, POINTER(Job))),
    "job_submit": Call((handle, c_uint32, POINTER(c_uint64))),
    "job_start": Call((handle, c_uint32, POINTER(Job), POINTER(c_uint64))),
    "job_wait": Call((handle, c_uint32, c_uint64, c_double, POINTER(Result))),
    "widen": Call((handle, handle, c_size_t), returns=None),
}
"""Every function of the header, without its ``calculet_``."""


L = TypeVar("L", bound=ctypes.CDLL)


def load(kind: type[L], path: str) -> L:
    """The library, by `ctypes.CDLL` or `ctypes.PyDLL`.

    Raises:
        OSError: it cannot be loaded; the loader's words.
    """
    try:
        return kind(path)
    except UnicodeDecodeError as error:  # the loader quotes the file, or its path, whose bytes need be no text
        raise OSError(error.object.decode("utf-8", "replace")) from None


def symbol(library: ctypes.CDLL, name: str) -> Any:
    """What the library, or one that it is linked with, calls so; raises `AttributeError` if none does."""
    try:
        return getattr(library, name)
    except UnicodeDecodeError as error:
        raise AttributeError(error.object.decode("utf-8", "replace")) from None


def has(library: ctypes.CDLL, name: str) -> bool:
    """Whether `symbol` would find it."""
    try:
        symbol(library, name)
    except AttributeError:
        return False
    return True


def version_of(path: str) -> int:
    """The ABI of a library, which may lack calls of this one; `AttributeError` where it says none.

    Raises:
        OSError: it cannot be loaded.
    """
    return int(symbol(load(ctypes.PyDLL, path), "calculet_abi_version")())


def bind(path: str) -> Any:
    """An object with a function for each of `CALLS`; a library that lacks one raises `AttributeError`.

    Raises:
        OSError: it cannot be loaded.
    """

    class Library:
        pass

    free, held = load(ctypes.CDLL, path), load(ctypes.PyDLL, path)
    library: Any = Library()
    for name, call in CALLS.items():
        function = symbol(free if call.blocks else held, f"calculet_{name}")
        function.argtypes, function.restype = call.takes, call.returns
        setattr(library, name, function)
    library.is_emulator = has(held, MARKER)  # dlsym looks into what the library is linked with, too
    return library
