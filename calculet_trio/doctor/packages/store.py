"""``store``: which packages there are, and whether each could be served."""

from __future__ import annotations

from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, failure, ok, warning
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.doctor.wording import count, listing
from calculet_trio.errors import PackageError
from calculet_trio.packages.store import PULL_HINT, StoredPackage


def _problem(stored: StoredPackage) -> str | None:
    if stored.manifest is None:
        return stored.problem
    if stored.manifest.golden is None:
        return f"{stored.name} has no golden output, so it will not be served"
    return None


def _examine(surroundings: Surroundings) -> Finding:
    store = surroundings.store
    try:
        found = store.packages()
    except PackageError as error:
        return failure(error.message, todo="make it readable for the account that serves")
    problems = [problem for stored in found if (problem := _problem(stored)) is not None]
    if problems:
        return failure(
            listing(problems), todo="pull or build it again with --force, or remove its directory from the store"
        )
    if not found:
        return warning(f"the store {store.root} is empty", todo=PULL_HINT)
    return ok(f"{count(len(found), 'package')}: {listing([stored.name for stored in found])}")


CHECK = Check(
    name="store",
    group=Group.PACKAGES,
    why="nothing is served without a package that can be read and has a golden output to be compared with",
    examine=_examine,
)
