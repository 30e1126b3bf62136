"""Runs checks side by side, each within a bound, and keeps what they found in the order of the registry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import attrs
import trio

from calculet_trio.doctor.check import Check
from calculet_trio.doctor.finding import Finding, Mark, failure
from calculet_trio.doctor.surroundings import Surroundings

CHECK_S: Final = 1.5
"""What one check may take, unless it says more. All run at once, so the report is there within three seconds of the
command, or a dozen where a library that is loaded to be looked at hangs."""
DEFECT_TODO: Final = "this is a defect of the check, not of what it looks at: report it with this line"


@attrs.frozen
class Result:
    """A check and its finding."""

    check: Check
    finding: Finding


@attrs.frozen
class Report:
    """Every result, in the order of the registry."""

    results: tuple[Result, ...]

    def count(self, mark: Mark) -> int:
        return Counter(result.finding.mark for result in self.results)[mark]

    def passes(self, *, strict: bool) -> bool:
        """No ✗; with ``strict``, no ! either."""
        return not self.count(Mark.FAILURE) and not (strict and self.count(Mark.WARNING))


async def examine(checks: Sequence[Check], surroundings: Surroundings, *, check_s: float = CHECK_S) -> Report:
    """Run ``checks`` at once, each in a thread of its own.

    Args:
        checks: in the order of the report.
        surroundings: what they look at.
        check_s: the bound of each, beside its own `Check.extra_s`; one that takes longer is a ✗ that names it.

    Returns:
        A finding for each check, whatever it does.

    **Cancellation**: atomic; threads that still look at something are left behind, and hold nothing.
    """
    findings: dict[str, Finding] = {}
    limiter = trio.CapacityLimiter(max(1, len(checks)))

    async def run(check: Check) -> None:
        bound_s = check_s + check.extra_s
        findings[check.name] = failure(
            f"the check {check.name!r} did not end within {bound_s:g} s",
            todo=f"see what keeps it: calculet-trio doctor --only {check.name}",
        )
        with trio.move_on_after(bound_s):
            findings[check.name] = await trio.to_thread.run_sync(
                _examine_safely, check, surroundings, abandon_on_cancel=True, limiter=limiter
            )

    async with trio.open_nursery() as nursery:
        for check in checks:
            nursery.start_soon(run, check)
    return Report(tuple(Result(check, findings[check.name]) for check in checks))


def _examine_safely(check: Check, surroundings: Surroundings) -> Finding:
    try:
        return check.examine(surroundings)
    except Exception as error:  # noqa: BLE001 — one broken check must not hide what the others found
        return failure(f"the check {check.name!r} broke: {type(error).__name__}: {error}", todo=DEFECT_TODO)
