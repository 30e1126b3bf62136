"""Giving memory back to the system that a native library has freed, and the C library keeps.

Source: malloc_trim(3).
"""

from __future__ import annotations

import ctypes


def give_back_freed() -> None:
    """Give the system what was freed of a native library's memory; milliseconds, in which others wait to allocate.

    The C library keeps it: what lies above a freed block holds the whole heap, and a model's weights stay resident for
    as long as something small does. Where the C library has no such call, it is not needed or cannot be done.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
