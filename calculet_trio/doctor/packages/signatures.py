"""``signatures``: whether each package is signed by somebody who is trusted for its kind, and agrees with itself."""

from __future__ import annotations

from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, failure, ok
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.doctor.wording import count, listing
from calculet_trio.errors import ConfigurationRefused, PackageError
from calculet_trio.packages.package_signature import package_signer
from calculet_trio.packages.static_validation import validate
from calculet_trio.packages.store import StoredPackage
from calculet_trio.packages.trust import Trust


def _problem(stored: StoredPackage, trust: Trust) -> str | None:
    """Why it would not be served, and what to do, in one sentence; the check `store` speaks of an unreadable one."""
    if stored.manifest is None:
        return None
    try:
        package_signer(stored.directory, stored.manifest, trust)
        validate(stored.manifest).require()
    except PackageError as error:
        return error.message
    return None


def _examine(surroundings: Surroundings) -> Finding:
    try:
        trust = surroundings.trust()
    except ConfigurationRefused as error:
        return failure(error.message, todo=error.hint or "mend the key, or name another under trusted_keys")
    found = [stored for stored in surroundings.packages() if stored.manifest is not None]
    problems = [problem for stored in found if (problem := _problem(stored, trust)) is not None]
    if problems:
        return failure(
            listing(problems),
            todo="pull or build it again with --force; or, if you trust where it is from, `calculet-trio package sign`",
        )
    return ok(f"{count(len(found), 'package')} signed by somebody trusted" if found else "no package to be signed")


CHECK = Check(
    name="signatures",
    group=Group.PACKAGES,
    why="a package is a program for the device: one that nobody trusted has signed is not served",
    examine=_examine,
)
