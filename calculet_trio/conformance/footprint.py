"""Footprint: what a process and its device hold while nothing is asked of them, and what of it has grown.

Source: S §18 (load and unload: resources return within 2 %), §19.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs
import trio

from calculet_trio.conformance.clean_hours import held_now

GROWTH_AT_MOST: Final = 0.02
"""Of memory (S §18); of what can be counted nothing may be left."""
_LOOK_AGAIN_S: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""For processes, connections and threads that were told to end and are about to."""
_IDLE_WORKER: Final = "Trio thread "
"""The name of a thread that has nothing to do; trio ends it after ten seconds."""


@attrs.frozen(kw_only=True)
class Footprint:
    """What is held at one moment.

    Args:
        tasks: of trio.
        threads: Python's and those of libraries, without trio's idle ones.
        files: open ones; sockets are among them.
        sockets: open ones.
        memory_bytes: resident, of the process.
        device_bytes: of the device's memory.
    """

    tasks: int
    threads: int
    files: int
    sockets: int
    memory_bytes: int
    device_bytes: int

    @classmethod
    def now(cls, device_bytes: int) -> Footprint:
        """Counted after a collection of garbage."""
        held = held_now()
        targets = [_target(path) for path in Path("/proc/self/fd").iterdir()]
        names = [_name(path) for path in Path("/proc/self/task").iterdir()]
        return cls(
            tasks=trio.lowlevel.current_statistics().tasks_living,
            threads=sum(1 for name in names if not name.startswith(_IDLE_WORKER)),
            files=held.files,
            sockets=sum(1 for target in targets if target.startswith("socket:")),
            memory_bytes=held.memory_bytes,
            device_bytes=device_bytes,
        )

    def grown(self, later: Footprint) -> tuple[str, ...]:
        """What ``later`` has more of than it may, for people."""
        return tuple(
            f"{field.name} from {before} to {after}"
            for field in attrs.fields(Footprint)
            for before, after in [(getattr(self, field.name), getattr(later, field.name))]
            if after > before * (1 + (GROWTH_AT_MOST if field.name.endswith("_bytes") else 0.0))
        )


async def settled(early: Footprint, device_bytes: Callable[[], int]) -> Footprint:
    """The footprint of now, or of a little later if only then nothing is left.

    **Cancellation**: at once.
    """
    late = Footprint.now(device_bytes())
    for pause_s in _LOOK_AGAIN_S:
        if not early.grown(late):
            break
        await trio.sleep(pause_s)
        late = Footprint.now(device_bytes())
    return late


def _target(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except OSError:  # the one that this very look has opened
        return ""


def _name(task: Path) -> str:
    try:
        return (task / "comm").read_text("utf-8")
    except OSError:  # it has ended meanwhile
        return _IDLE_WORKER
