"""Nothing is left of a daemon that has ended: no stream, no text side, no sequence or job on the device.

Source: SPEC section 3 (S §17.3).
"""

from __future__ import annotations

from calculet_trio.runtimes.emulated import EmulatedRuntime
from calculet_trio.shell.front_desk import FrontDesk
from calculet_trio.sim.checkers.violation import require


def check_desk(desk: FrontDesk) -> None:
    """The service side.

    Raises:
        Violated: a stream or a text side is held for a request that has ended.
    """
    require(desk.open_streams == 0, f"{desk.open_streams} streams are left of a daemon that has ended")
    require(desk.text_sides == 0, f"{desk.text_sides} text sides are left of a daemon that has ended")


def check_device(device: EmulatedRuntime, *, unknown_lanes: int) -> None:
    """The device, of a daemon that has not lost it.

    Raises:
        Violated: it holds what no Unknown lane accounts for.
    """
    require(device.outstanding == 0, f"{device.outstanding} jobs were submitted and never waited for")
    require(
        device.resident <= unknown_lanes,
        f"the device holds {device.resident} sequences, and {unknown_lanes} lanes are Unknown",
    )
