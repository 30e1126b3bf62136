"""``digests``: whether the packages' files are those that their manifests name.

The store remembers what was hashed (`calculet_trio.packages.verification.Seal`), so that an 18 GB package
costs a glance. What changed since is hashed here as long as that takes no time to speak of; for more there is
``package verify``, which shows its progress and is remembered as well.
"""

from __future__ import annotations

import time
from typing import Final

from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, failure, ok, warning
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.doctor.wording import count, listing
from calculet_trio.errors import PackageError

HASHING_S: Final = 0.7
"""All packages together; half of what a check may take (`calculet_trio.doctor.examination.CHECK_S`)."""


class _TooLong(Exception):
    """Ends a hashing that has used up its time."""


def _examine(surroundings: Surroundings) -> Finding:
    store = surroundings.store
    ends_at = time.monotonic() + HASHING_S
    damaged: list[str] = []
    unproven: list[str] = []
    whole: list[str] = []

    def go_on(_bytes: int) -> None:
        if time.monotonic() > ends_at:
            raise _TooLong

    for stored in surroundings.packages():
        if stored.manifest is None:
            continue  # the check `store` says so
        try:
            store.check(stored.directory, thorough=False, on_bytes=go_on)
        except PackageError as error:
            damaged.append(error.message)
        except _TooLong:
            unproven.append(stored.name)
        else:
            whole.append(stored.name)
    if damaged:
        return failure(listing(damaged), todo="pull or build the package again with --force")
    if unproven:
        return warning(
            f"{listing(unproven)}: too much has changed to be hashed now",
            todo=f"`calculet-trio package verify {' '.join(unproven)}` hashes it once, and is remembered",
        )
    return ok(f"{count(len(whole), 'package')} as the manifests say" if whole else "no package to verify")


CHECK = Check(
    name="digests",
    group=Group.PACKAGES,
    why="weights with a flipped bit do not crash: they answer wrongly",
    examine=_examine,
)
