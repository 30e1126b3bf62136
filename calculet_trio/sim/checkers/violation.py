"""Violated: a checker fired."""

from __future__ import annotations


class Violated(AssertionError):
    """Something happened that must never happen; the message says what, with its numbers."""


def require(holds: bool, otherwise: str, *values: object) -> None:
    """Complain unless it holds.

    Args:
        holds: what must.
        otherwise: the objection.
        *values: for its braces, into which they are put only if it is raised: what is asked at every step is cheap.

    Raises:
        Violated: it does not hold.
    """
    if not holds:
        raise Violated(otherwise.format(*values) if values else otherwise)
