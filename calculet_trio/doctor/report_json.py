"""A report for programs: ``calculet-doctor/v1``."""

from __future__ import annotations

from typing import Any, Final

from calculet_trio.doctor.examination import Report, Result
from calculet_trio.doctor.finding import Mark

SCHEMA: Final = "calculet-doctor/v1"


def as_object(report: Report, *, strict: bool) -> dict[str, Any]:
    """The report as JSON values; ``checks`` has one object per check, all with the same keys."""
    return {
        "schema": SCHEMA,
        "verdict": "PASS" if report.passes(strict=strict) else "FAIL",
        "strict": strict,
        "counts": {mark.value: report.count(mark) for mark in Mark},
        "checks": [_check(result) for result in report.results],
    }


def _check(result: Result) -> dict[str, Any]:
    return {
        "name": result.check.name,
        "group": result.check.group.value,
        "status": result.finding.mark.value,
        "seen": result.finding.seen,
        "why": result.check.why,
        "todo": result.finding.todo,
    }
