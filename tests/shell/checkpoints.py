"""Being cancelled at every checkpoint: what counts scheduling points, strikes at one, and looks for what is left."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
from trio.lowlevel import Task

from tests.shell.house import until

POINTS_MAX = 2000
"""So that a scenario that never comes to its end fails."""


class StrikeAt(trio.abc.Instrument):
    """Calls ``strike`` right after the step number ``point`` of the tasks under ``root``.

    The task has just come to a checkpoint and waits there, so what is cancelled is cancelled in that checkpoint.

    Args:
        point: from 1.
        strike: what to do; must not wait.
        root: it and its descendants are counted; None for every task there is.
    """

    def __init__(self, point: int, strike: Callable[[], object], *, root: Task | None = None) -> None:
        self._left = point
        self._strike = strike
        self._root = root

    @property
    def has_struck(self) -> bool:
        return self._left <= 0

    def after_task_step(self, task: Task) -> None:
        if self.has_struck or not self._is_watched(task):
            return
        self._left -= 1
        if self.has_struck:
            self._strike()

    def _is_watched(self, task: Task | None) -> bool:
        while self._root is not None and task is not self._root:
            if task is None or task.parent_nursery is None:
                return False
            task = task.parent_nursery.parent_task
        return True

    def __enter__(self) -> StrikeAt:
        trio.lowlevel.add_instrument(self)
        return self

    def __exit__(self, *_: object) -> None:
        # trio takes an instrument away that raised, and this line would then raise too.
        trio.lowlevel.remove_instrument(self)


class WatchedRuntime:
    """A runtime that knows which of its calls are under way, and refuses to be closed under one.

    Args:
        runtime: the one that does the work.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self.under_way: Counter[str] = Counter()
        self.called: Counter[str] = Counter()
        self.closed_under: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._runtime, name)
        return self._watched(name, found) if callable(found) else found

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any) -> Any:
            with self._lock:
                if name == "close":
                    self.closed_under += self.under_way.elements()
                self.called[name] += 1
                self.under_way[name] += 1
            try:
                return call(*args)
            finally:
                with self._lock:
                    self.under_way[name] -= 1

        return watched


class Remains:
    """The process's sockets and working threads before something; `are_gone` waits until there are no others."""

    def __init__(self) -> None:
        self._sockets = _sockets()
        self._threads = _working()

    async def are_gone(self) -> None:
        await until(lambda: _working() <= self._threads and _sockets() <= self._sockets, within_s=20.0)


def _sockets() -> set[str]:
    links = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            links.add(os.readlink(descriptor))  # noqa: PTH115 - a descriptor's target is no path
        except FileNotFoundError:  # the listing's own
            continue
    return {link for link in links if link.startswith("socket:")}


def _working() -> set[threading.Thread]:
    """Threads but those that trio keeps for later, which have this name while they have nothing to do."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith("Trio thread ")}
