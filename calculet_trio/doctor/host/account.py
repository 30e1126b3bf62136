"""``account``: the service's account should be able to do nothing but serve.

Source: SPEC section 16 (A §13): today's service user is in the sudo group.
"""

from __future__ import annotations

from typing import Final

from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, ok, warning
from calculet_trio.doctor.surroundings import Surroundings

POWERFUL_GROUPS: Final = ("sudo", "wheel", "admin", "root", "docker", "lxd", "disk")
"""Groups whose members can make themselves root: by rule, or by what the group's daemon or device lets them do."""


def _examine(surroundings: Surroundings) -> Finding:
    account = surroundings.account
    if account.is_root:
        return warning(
            f"the service's account is {account.name}, which may do everything",
            todo="serve as an account of its own: `sudo useradd --create-home calculet`",
        )
    powerful = [group for group in POWERFUL_GROUPS if group in account.groups]
    if powerful:
        return warning(
            f"the account {account.name} is in {', '.join(powerful)}, whose members can become root",
            todo=f"`sudo gpasswd --delete {account.name} {powerful[0]}`, or serve as an account of its own",
        )
    return ok(f"the account {account.name} has no way to root through its groups")


CHECK = Check(
    name="account",
    group=Group.HOST,
    why="the service reads what strangers send; whoever finds a hole in it gets what its account may do",
    examine=_examine,
)
