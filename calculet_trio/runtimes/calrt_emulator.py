"""The emulator's own controls, which a board's library does not have: faults on demand.

Source: binding/emulator/include/calrt/emulator.h; SPEC section 13 (S §17.3, §18).
"""

from __future__ import annotations

from ctypes import CDLL, c_char_p, c_double, c_int, c_uint64
from typing import Final

from calculet_trio.runtimes.calrt_library import CalrtLibrary

_ANY_ENGINE: Final = -1


class CalrtEmulator:
    """Faults of the device behind a library that carries the emulator's marker.

    Args:
        library: the binding, linked with the emulator.
    """

    def __init__(self, library: CalrtLibrary) -> None:
        assert library.is_emulator, "a board is never made to fail"
        calls = CDLL(str(library.path.absolute()))  # the same library: it is loaded once in a process
        self._plan, self._happened = calls.calrt_emulator_plan, calls.calrt_emulator_happened
        self._plan.argtypes = (c_char_p, c_int, c_uint64, c_uint64, c_double)
        self._happened.argtypes, self._happened.restype = (c_char_p,), c_uint64
        self._clear, self._release = calls.calrt_emulator_clear, calls.calrt_emulator_release
        self._clear.restype = self._release.restype = None

    def plan(self, fault: str, *, nth: int = 1, times: int = 1, seconds: float = 0.0) -> None:
        """The ``nth`` call from now that may have the fault has it, and the ``times`` - 1 after it.

        Args:
            fault: a name of the header's.
            nth: from 1.
            times: at least 1.
            seconds: of ``late``.
        """
        refused = self._plan(fault.encode(), _ANY_ENGINE, nth, times, seconds)
        assert not refused, f"the emulator knows no such plan: {fault}"

    def happened(self, fault: str) -> int:
        """How often the fault has come about in this process."""
        return int(self._happened(fault.encode()))

    def clear(self) -> None:
        """Forget what is planned, and let stuck waits return."""
        self._release()
        self._clear()
