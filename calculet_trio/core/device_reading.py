"""What the device said of itself when it was last asked: for gauges and for who may look, without asking it again.

Source: SPEC section 11, 15 (A §6).
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen(kw_only=True)
class DeviceReading:
    """One reading.

    Args:
        read_s: when, monotonic.
        is_ok, word: whether it can be used, and its own word for that.
        jobs: those that it has, by its own count; None where it cannot tell.
        counters: of its queues, by name.
        used_bytes, total_bytes: its memory; None for a total that cannot be trusted.
    """

    read_s: float
    is_ok: bool
    word: str
    jobs: int | None
    counters: Mapping[str, int]
    used_bytes: int
    total_bytes: int | None
