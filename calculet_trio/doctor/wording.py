"""How findings say amounts and lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

NAMES_SHOWN_MAX: Final = 6


def amount(size_bytes: float) -> str:
    """Bytes for people, in the units that disks are sold in: ``1.9 GB``."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            return (
                f"{size_bytes / scale:.3g} {unit}" if size_bytes < 1000 * scale else f"{size_bytes / scale:,.0f} {unit}"
            )
    return f"{size_bytes:.0f} bytes"


def listing(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return f"{', '.join(names[:NAMES_SHOWN_MAX])}{more}"


def count(number: int, noun: str) -> str:
    """``1 board``, ``2 boards``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
