"""The board itself, beside whatever is configured on it: opened, asked how it is, cleared, given back.

Source: SPEC section 1, 9, 14 (A §2, §13); S §3 (one process, one device).
"""

from __future__ import annotations

import os
from ctypes import byref, c_void_p
from pathlib import Path

from calculet_trio.core.jobs import EngineId
from calculet_trio.errors import Unavailable
from calculet_trio.packages.compatibility import BOARD, EMULATOR
from calculet_trio.runtimes import calrt_abi as abi
from calculet_trio.runtimes.calrt_abi import Code
from calculet_trio.runtimes.calrt_library import CalrtLibrary
from calculet_trio.runtimes.port import DeviceInfo, DeviceStatus, MemoryUse


class CalrtDevice:
    """An open device.

    Args:
        library: the binding.
        lock: the file that keeps other processes off it; None for the binding's own.

    Attributes:
        handle: the binding's.
        info: what was opened.

    Raises:
        Unavailable: there is no board, or another process has it; the message says which.
    """

    def __init__(self, library: CalrtLibrary, lock: Path | None) -> None:
        self._library = library
        self.handle = c_void_p()
        options = abi.OpenOptions(lock_path=None if lock is None else os.fsencode(lock))
        code = library.calls.device_open(byref(options), byref(self.handle))
        if code != Code.OK:
            raise Unavailable(f"the board cannot be opened: {library.error(code).text}", hint=_hint_of(code))
        told = abi.DeviceInfo()
        library.check(library.calls.device_inspect(self.handle, byref(told)))
        self.info = _device_info(told)
        if self.info.kind not in (BOARD, EMULATOR):
            self.close()
            raise Unavailable(
                f"{_text(told.library_path)} opened a device, but the PCI bus has no board that its driver drives",
                hint="`calculet-trio doctor` says what is missing",
            )

    def memory(self) -> MemoryUse:
        """Its memory; the total that 0.7.6 reports is known nonsense, and then not passed on."""
        told = abi.Memory()
        if self._library.calls.device_memory(self.handle, byref(told)) != Code.OK:
            return MemoryUse(0, None)
        total_bytes = None if told.total_is_nonsense else round(told.total_mib * (1 << 20))
        declared_bytes = told.size_bytes if told.size_source != abi.SIZE_UNKNOWN else None
        return MemoryUse(told.used_bytes, total_bytes, declared_bytes=declared_bytes)

    def status(self) -> DeviceStatus:
        """Its own word."""
        told = abi.Status()
        code = self._library.calls.device_status(self.handle, byref(told))
        if code != Code.OK:
            return DeviceStatus(False, str(self._library.error(code)))
        return DeviceStatus(bool(told.ok), _text(told.text) or f"word {told.word}")

    def reset_configuration(self) -> bool:
        """Clear it, once every model is unloaded; True only if nothing of a lost job may still go on."""
        return bool(self._library.calls.device_reset_configuration(self.handle) == Code.OK)

    def close(self) -> None:
        """Give it back; what a stuck waiter may still touch is kept for the life of the process."""
        self._library.calls.device_close(self.handle)


def _hint_of(code: int) -> str:
    if code == Code.LOCKED:
        return "end that process first: one process opens the board"
    return "`calculet-trio doctor` looks at board, driver and device file"


def _device_info(told: abi.DeviceInfo) -> DeviceInfo:
    versions = {
        "calrt": _text(told.calrt_version),
        "driver": _text(told.driver_version),
        "calcore_rt": _text(told.calcore_version),
    }
    kind, address = _text(told.kind), _text(told.pci_address)
    return DeviceInfo(
        kind=kind,
        name="emulator of the board's runtime" if kind == EMULATOR else f"board at {address or 'an unknown address'}",
        engines=tuple(EngineId)[: told.engines],
        versions={component: version for component, version in versions.items() if version},
    )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
