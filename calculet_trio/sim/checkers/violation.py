"""Violated: a checker fired."""

from __future__ import annotations


class Violated(AssertionError):
    """Something happened that must never happen; the message says what, with its numbers."""


def require(holds: bool, otherwise: str) -> None:
    """Raises:
    Violated: it does not hold.
    """
    if not holds:
        raise Violated(otherwise)
