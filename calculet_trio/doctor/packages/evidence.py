"""``evidence``: what has been shown on this machine: each capability that somebody earned, with its level."""

from __future__ import annotations

from calculet_trio.core.evidence import BATCH_CONDITIONS, CAPABILITIES, Capability, Evidence, Level
from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, failure, ok, warning
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.doctor.wording import listing
from calculet_trio.errors import ConfigurationRefused

_EARNABLE = (
    *(capability for capability in CAPABILITIES.values() if capability.conditions),
    Capability("batches", Level.C3, BATCH_CONDITIONS, ""),
)


def _examine(surroundings: Surroundings) -> Finding:
    try:
        shown = surroundings.shown()
    except ConfigurationRefused as error:
        return failure(error.message, todo=error.hint or "mend the key, or name another under trusted_keys")
    if shown.not_believed:
        return warning(
            listing(shown.not_believed),
            todo="`calculet-trio conformance run` makes a record anew; or name its key under trusted_keys",
        )
    if not shown.by_combination:
        return ok("nothing has been shown here yet; `calculet-trio conformance run` does")
    return ok("; ".join(map(_said, shown.by_combination)))


def _said(evidence: Evidence) -> str:
    """The capabilities of one package, runtime and board that are C0 by evidence; all others are not used."""
    earned = [capability.name for capability in _EARNABLE if evidence.standing(capability).earned]
    combination = evidence.combination
    what = f"{combination.board_kind}, package {combination.package_sha256[:12]}"
    return f"{what}: {Level.C0.value} {listing(earned)}" if earned else f"{what}: nothing beyond the baseline"


CHECK = Check(
    name="evidence",
    group=Group.PACKAGES,
    why="what was not shown here, with this package on this runtime and board, is not used, whatever a header says",
    examine=_examine,
)
