"""``libraries``: the versions of what the daemon imports, against pyproject.toml's bounds."""

from __future__ import annotations

from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, failure, ok
from calculet_trio.doctor.requirements import fits
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.doctor.wording import listing


def _examine(surroundings: Surroundings) -> Finding:
    found = fits(surroundings.installation)
    wrong = [fit for fit in found if not fit.is_met]
    if wrong:
        return failure(
            listing([fit.described for fit in wrong]),
            todo=f"`python -m pip install {' '.join(fit.wanted for fit in wrong)}`",
        )
    return ok(f"all {len(found)} libraries are within their bounds")


CHECK = Check(
    name="libraries",
    group=Group.PYTHON,
    why="the shell relies on what was measured of these versions: how a web server ends, how a cancellation travels",
    examine=_examine,
)
