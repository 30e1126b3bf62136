"""Result: how a case came out; what a run leaves behind.

Source: SPEC section 13 (S §18).
"""

from __future__ import annotations

from enum import Enum

import attrs


class Verdict(Enum):
    PASS = "PASS"
    FAIL = "FAIL"
    NOT_APPLICABLE = "NOT APPLICABLE"


@attrs.frozen
class Result:
    """How a case came out.

    Args:
        case: its name.
        verdict: PASS, FAIL or NOT APPLICABLE.
        why: what was seen, what went wrong, or what is missing.
        took_s: of this machine's time.
    """

    case: str
    verdict: Verdict
    why: str
    took_s: float
