"""Gate: a milestone's verdict, made of criteria, each with what was seen.

Source: SPEC section 13 (S §19).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

import attrs

from calculet_trio.conformance.run_record import EMULATED

SCHEMA = "calculet-gate/v1"


class GateVerdict(Enum):
    """How a criterion, or a whole gate, came out."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    """What was measured spreads too far to say."""


@attrs.frozen
class Criterion:
    """One thing that a milestone asks for.

    Args:
        name: of the criterion.
        verdict: how it came out.
        seen: what was measured, and what is allowed.
    """

    name: str
    verdict: GateVerdict
    seen: str

    @classmethod
    def of(cls, name: str, *, holds: bool, seen: str) -> Criterion:
        """One that is met or not, without a spread."""
        return cls(name, GateVerdict.PASS if holds else GateVerdict.FAIL, seen)


@attrs.frozen(kw_only=True)
class GateReport:
    """A gate that was tried.

    Args:
        milestone: ``m0``, ``m1``, ``m2``.
        asks: what the milestone asks for, in a sentence.
        model: alias or package, for people.
        board_kind: what it was tried on.
        is_short: whether less was tried than the milestone asks for: then a PASS is not the milestone's.
        assumptions: what the verdict rests on and nobody has shown.
        criteria: in the order in which they were tried.
        begun_at: ISO 8601, UTC.
    """

    milestone: str
    asks: str
    model: str
    board_kind: str
    is_short: bool
    assumptions: tuple[str, ...]
    criteria: tuple[Criterion, ...]
    begun_at: str

    @property
    def verdict(self) -> GateVerdict:
        """FAIL if one criterion failed, else INCONCLUSIVE if one is, else PASS."""
        return verdict_of(criterion.verdict for criterion in self.criteria)

    @property
    def line(self) -> str:
        """The verdict, with ``emulated`` and ``short`` beside it where they hold."""
        marks = [mark for mark, holds in (("emulated", self.is_emulated), ("short", self.is_short)) if holds]
        beside = f" ({', '.join(marks)})" if marks else ""
        return f"{self.milestone.upper()} {self.verdict.value}{beside}"

    @property
    def is_emulated(self) -> bool:
        return self.board_kind in EMULATED

    def as_object(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "schema": SCHEMA,
            "milestone": self.milestone,
            "verdict": self.verdict.value,
            "emulated": self.is_emulated,
            "short": self.is_short,
            "asks": self.asks,
            "model": self.model,
            "board_kind": self.board_kind,
            "begun_at": self.begun_at,
            "assumptions": list(self.assumptions),
            "criteria": [
                {"name": each.name, "verdict": each.verdict.value, "seen": each.seen} for each in self.criteria
            ],
        }


def verdict_of(verdicts: Iterable[GateVerdict]) -> GateVerdict:
    """The verdict of all of them together."""
    found = set(verdicts)
    for verdict in (GateVerdict.FAIL, GateVerdict.INCONCLUSIVE):
        if verdict in found:
            return verdict
    return GateVerdict.PASS
