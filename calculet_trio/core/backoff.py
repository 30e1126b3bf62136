"""Exponential back-off as a value: when something that was refused may be tried again.

It replaces the endless ``while (!Apply())`` of the present server (A §5, §6).
"""

from __future__ import annotations


class Backoff:
    """Doubling pauses between ``first_s`` and ``longest_s``.

    Attributes:
        failures: refusals in a row.
        until_s: monotonic moment before which nothing is to be tried; None if nothing was refused lately.
    """

    def __init__(self, *, first_s: float = 0.005, longest_s: float = 1.0) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self.failures = 0
        self.until_s: float | None = None

    def refused(self, now: float) -> None:
        pause_s = min(self._longest_s, self._first_s * 2.0 ** min(self.failures, 32))
        self.failures += 1
        self.until_s = now + pause_s

    def accepted(self) -> None:
        self.failures = 0
        self.until_s = None

    def allows(self, now: float) -> bool:
        """Whether it may be tried now; a pause that is over is forgotten, the count of refusals is not."""
        if self.until_s is not None and now >= self.until_s:
            self.until_s = None
        return self.until_s is None
