"""A tenant's arrivals per second, as a token bucket that needs no clock of its own.

Source: SPEC section 4 (S §5.3).
"""

from __future__ import annotations


class RateLimit:
    """At most ``per_s`` arrivals a second, with a burst of one second's worth (at least one).

    Args:
        per_s: arrivals a second, > 0.
        now: monotonic; the bucket begins full.
    """

    __slots__ = ("_level", "_seen_s", "per_s")

    def __init__(self, per_s: float, now: float) -> None:
        self.per_s = per_s
        self._level = self._burst
        self._seen_s = now

    @property
    def _burst(self) -> float:
        return max(1.0, self.per_s)

    def take(self, now: float) -> float | None:
        """Use up one arrival; None if there was one, else the seconds until there will be."""
        self._level = min(self._burst, self._level + (now - self._seen_s) * self.per_s)
        self._seen_s = now
        if self._level >= 1.0:
            self._level -= 1.0
            return None
        return (1.0 - self._level) / self.per_s

    def is_full(self, now: float) -> bool:
        """Whether nothing of its past matters any more, so that it may be forgotten."""
        return self._level + (now - self._seen_s) * self.per_s >= self._burst
