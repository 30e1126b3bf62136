"""``dma-timeout``: the driver must give a transfer up before the service gives its job up.

Source: SPEC section 9: ``dma_timeout_ms`` < job timeout; A §2, the driver's parameters.
"""

from __future__ import annotations

from typing import Final

from calculet_trio.doctor.board.pci import DRIVER_MODULE, boards_of
from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, ok, warning
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.shell.executor import JobTimeout

PARAMETER: Final = f"{DRIVER_MODULE}/parameters/dma_timeout_ms"


def _examine(surroundings: Surroundings) -> Finding:
    tree = surroundings.tree
    if not boards_of(tree) or not tree.exists(DRIVER_MODULE):
        return ok("no board with a loaded driver, so there is nothing to compare")
    job_ms = round(JobTimeout().base_s * 1000)
    text = tree.text(PARAMETER) or ""
    todo = (
        f"`echo 'options calculet_pci dma_timeout_ms={job_ms // 2}' | sudo tee /etc/modprobe.d/calculet.conf`, "
        "then load the driver again"
    )
    if not text.isdecimal():
        return warning("the driver does not say its dma_timeout_ms", todo=todo)
    seen = f"the driver gives up after {int(text):,} ms, a job after {job_ms:,} ms or more"
    if int(text) == 0 or int(text) >= job_ms:  # 0 is how drivers say: never
        return warning(seen, todo=todo)
    return ok(seen)


CHECK = Check(
    name="dma-timeout",
    group=Group.BOARD,
    why="a job that is given up while a transfer still runs leaves memory that nobody may touch, so the process ends",
    examine=_examine,
)
