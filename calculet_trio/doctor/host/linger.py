"""``linger``: whether the user's services outlive the user's last session.

Source: SPEC section 16 (A §13): rootless Podman's pause process is lost when a short SSH session ends;
loginctl(1) ``enable-linger``.
"""

from __future__ import annotations

from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, ok, warning
from calculet_trio.doctor.surroundings import Surroundings


def _examine(surroundings: Surroundings) -> Finding:
    tree, account = surroundings.tree, surroundings.account
    if not tree.exists("run/systemd/system"):
        return ok("systemd does not run here, so it ends nothing either")
    if tree.exists(f"var/lib/systemd/linger/{account.name}"):
        return ok(f"services of {account.name} go on without a session")
    if account.is_root:
        return ok("root's services belong to the system, not to a session")
    return warning(
        f"services of {account.name} end with the last session: linger is off",
        todo=f"`sudo loginctl enable-linger {account.name}`",
    )


CHECK = Check(
    name="linger",
    group=Group.HOST,
    why="without it a user's service, or a rootless container, dies when an SSH session closes, and no boot starts it",
    examine=_examine,
)
