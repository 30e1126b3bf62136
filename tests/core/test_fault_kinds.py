"""FaultKind: its codes are labels, and labels do not change their form."""

from __future__ import annotations

import re

from calculet_trio.core.fault_kinds import FaultKind


def test_codes_are_plain_words() -> None:
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", kind.value) and kind.name.lower() == kind.value for kind in FaultKind)
