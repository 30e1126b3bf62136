"""Determinism: one seed, one run. The only file that touches trio's private switches.

Trio runs ready tasks in an order drawn from a random generator of its own, so that nobody relies on one. A
simulation wants that too, but the same again for the same seed.

Source: CONVENTIONS.md trap 8; trio ``_core/_run.py`` (``_r``, ``_ALLOW_DETERMINISTIC_SCHEDULING``).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

from trio._core import _run


@contextmanager
def seeded_scheduling(seed: int) -> Iterator[None]:
    """Within this block, tasks that are ready together run in an order that only ``seed`` decides."""
    allowed, generator = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r
    _run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    _run._r = random.Random(seed)
    try:
        yield
    finally:
        _run._ALLOW_DETERMINISTIC_SCHEDULING = allowed  # type: ignore[misc]
        _run._r = generator


class Trace:
    """A running hash of everything that happened, in order: equal for equal runs and for no others."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.length = 0

    def note(self, moment_s: float, what: str) -> None:
        """Add one line."""
        self._hash.update(f"{moment_s!r} {what}\n".encode())
        self.length += 1

    def digest(self) -> str:
        return self._hash.hexdigest()
