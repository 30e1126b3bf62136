"""Time spans as a unit file has them, and as ``systemctl show`` prints them.

Source: systemd.time(7).
"""

from __future__ import annotations

import re
from typing import Final

_UNITS_S: Final = {
    **dict.fromkeys(("us", "usec", "µs"), 1e-6),
    **dict.fromkeys(("ms", "msec"), 1e-3),
    **dict.fromkeys(("s", "sec", "second", "seconds", ""), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
    **dict.fromkeys(("w", "week", "weeks"), 604_800.0),
}
_PART: Final = r"(\d+(?:\.\d+)?)\s*([a-zµ]*)"
_TEXT_CHARACTERS_MAX: Final = 64


def span_s(text: str) -> float | None:
    """Seconds of a span such as ``2min 30s``, ``150`` or ``infinity``; None if it is none."""
    text = text.strip()
    if text == "infinity":
        return float("inf")
    if len(text) > _TEXT_CHARACTERS_MAX or not re.fullmatch(rf"(?:{_PART}\s*)+", text):
        return None
    parts = re.findall(_PART, text)
    if any(unit not in _UNITS_S for _, unit in parts):
        return None
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts)
