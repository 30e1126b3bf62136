"""``dma-timeout``: the driver must give a transfer up before the service gives its job up.

Source: SPEC section 9: ``dma_timeout_ms`` < job timeout; A §2, the driver's parameters.
"""

from __future__ import annotations

from typing import Final

from calculet_trio.doctor.board.pci import DRIVER_MODULE, boards_of
from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, ok, warning
from calculet_trio.doctor.host_tree import HostTree
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.settings.timeout_order import NEVER_S

PARAMETER: Final = f"{DRIVER_MODULE}/parameters/dma_timeout_ms"


def dma_timeout_s(tree: HostTree) -> float | None:
    """When the driver gives a transfer up; `NEVER_S` for 0, which is how drivers say never; None if it does not say."""
    text = tree.text(PARAMETER) or ""
    if not text.isdecimal():
        return None
    return int(text) / 1000 if int(text) else NEVER_S


def _examine(surroundings: Surroundings) -> Finding:
    tree = surroundings.tree
    if not boards_of(tree) or not tree.exists(DRIVER_MODULE):
        return ok("no board with a loaded driver, so there is nothing to compare")
    job_s = surroundings.timeouts.settings.job_s
    dma_s = dma_timeout_s(tree)
    todo = (
        f"`echo 'options calculet_pci dma_timeout_ms={round(job_s * 500)}' | sudo tee /etc/modprobe.d/calculet.conf`, "
        "then load the driver again; or raise timeouts.job_s"
    )
    if dma_s is None:
        return warning("the driver does not say its dma_timeout_ms", todo=todo)
    given_up = "never gives up" if dma_s == NEVER_S else f"gives up after {dma_s * 1000:,.0f} ms"
    seen = f"the driver {given_up}, a job after {job_s * 1000:,.0f} ms or more (timeouts.job_s)"
    return ok(seen) if dma_s < job_s else warning(seen, todo=todo)


CHECK = Check(
    name="dma-timeout",
    group=Group.BOARD,
    why="a job that is given up while a transfer still runs leaves memory that nobody may touch, so the process ends",
    examine=_examine,
)
