"""VirtualLife: an emulated board, and what runs one daemon on it in virtual time, for clients that others bring.

Source: ARCHITECTURE.md "Time".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio

from calculet_trio.runtimes.device_model import DeviceModel
from calculet_trio.runtimes.emulated import EmulatedRuntime
from calculet_trio.runtimes.pace import VirtualPace
from calculet_trio.sim.determinism import seeded_scheduling
from calculet_trio.sim.virtual_time import LeapClock, VirtualRunner

T = TypeVar("T")


class VirtualLife:
    """One life: a clock ends with what ran on it.

    Args:
        device: the board.
        seed: of its jitter and of the order of tasks.
        kind: the board itself, or one with defects.

    Attributes:
        runtime: the board, not opened yet.
        runner: how blocking calls run.
    """

    def __init__(self, device: DeviceModel, *, seed: int, kind: type[EmulatedRuntime] = EmulatedRuntime) -> None:
        self._clock = LeapClock()
        self._seed = seed
        pace = VirtualPace(self._clock.current_time)
        self.runtime = kind(device, pace, seed=seed)
        self.runner = VirtualRunner(pace, self._clock)

    def run(self, main: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """`trio.run` on this life's clock. ``main`` must hold one deadline at all times."""
        with seeded_scheduling(self._seed):
            return trio.run(main, *arguments, clock=self._clock, restrict_keyboard_interrupt_to_checkpoints=True)
