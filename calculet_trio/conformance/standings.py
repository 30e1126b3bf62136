"""Standings: every capability for one package, runtime and board, for people and for machines.

Source: SPEC section 12 (S §20).
"""

from __future__ import annotations

from typing import Final

import attrs

from calculet_trio.conformance.evidence_store import Found
from calculet_trio.conformance.vendor_list import owed_for
from calculet_trio.core.evidence import BATCH_CONDITIONS, CAPABILITIES, Capability, Combination, Level
from calculet_trio.packages.trust import LOCAL_KINDS

BATCHES: Final = Capability("batch:B", Level.C3, BATCH_CONDITIONS, "a package of several lanes and milestone M3")
"""The cases try every batch of a package; which those are, its manifest says."""


@attrs.frozen(kw_only=True)
class StandingRow:
    """How a capability stands.

    Args:
        capability: its name.
        level: C0 once earned.
        earned_by: the record, or None.
        earned_at: ISO 8601, or None.
        missing: what is needed; empty once earned.
        vendor: what the board's maker still has to deliver; empty once earned, and where no board is needed.
    """

    capability: str
    level: str
    earned_by: str | None
    earned_at: str | None
    missing: str
    vendor: tuple[str, ...]


def rows_of(found: Found, combination: Combination) -> tuple[StandingRow, ...]:
    """Every capability, as it stands for the combination."""
    evidence = found.evidence(combination)
    begun_at = {record.record_id: record.begun_at for record in found.records}
    needs_board = combination.board_kind not in LOCAL_KINDS
    rows = []
    for capability in (*CAPABILITIES.values(), BATCHES):
        standing = evidence.standing(capability)
        rows.append(
            StandingRow(
                capability=standing.capability,
                level=standing.level.value,
                earned_by=standing.record,
                earned_at=None if standing.record is None else begun_at[standing.record],
                missing=standing.missing,
                vendor=owed_for(capability.name) if needs_board and not standing.earned else (),
            )
        )
    return tuple(rows)
