"""``cpu-runtime``: the extra ``host``, without which nothing is computed on the CPU and no package is built."""

from __future__ import annotations

from typing import Final

from calculet_trio.doctor.board.pci import boards_of
from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, failure, ok, warning
from calculet_trio.doctor.installation import PROGRAM
from calculet_trio.doctor.requirements import fits
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.doctor.wording import listing

EXTRA: Final = "host"


def _examine(surroundings: Surroundings) -> Finding:
    found = fits(surroundings.installation, extra=EXTRA)
    wrong = [fit for fit in found if fit.installed is not None and not fit.is_met]
    if wrong:
        return failure(
            listing([fit.described for fit in wrong]),
            todo=f"`python -m pip install {' '.join(fit.wanted for fit in wrong)}`",
        )
    missing = [fit.described for fit in found if fit.installed is None]
    todo = f"`python -m pip install '{PROGRAM}[{EXTRA}]'`"
    if missing and boards_of(surroundings.tree):
        return warning(f"{listing(missing)}; a board is there, so only serving on the CPU is out", todo=todo)
    if missing:
        return failure(f"{listing(missing)}, and there is no board: nothing can compute", todo=todo)
    return ok(listing([f"{fit.requirement.name} {fit.installed}" for fit in found]))


CHECK = Check(
    name="cpu-runtime",
    group=Group.PYTHON,
    why="serving on the CPU and building packages need these libraries; golden tolerances were measured on them",
    examine=_examine,
)
