"""The largest of many logits, without sorting them all."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.float32]
"""``f32[vocab]``: one lane's logits."""

Ids = npt.NDArray[np.intp]

_GROUP: Final = 128
"""Logits to a group: at a vocabulary of 151,936 the group maxima are cheap to take and cheap to partition."""


def without_nan(row: Row) -> Row:
    """``row`` with NaN as -inf: such a token is never chosen. Copies only if there is any."""
    return np.where(np.isnan(row), np.float32(-np.inf), row) if np.isnan(row.max()) else row


def likeliest(row: Row, count: int) -> Ids:
    """The ids of the ``count`` largest logits, largest first; of equals the lower id first.

    Args:
        row: f32[vocab], free of NaN; not modified.
        count: at least 1; more than the vocabulary means all of it.
    """
    candidates = np.flatnonzero(row >= _floor(row, count))
    order = np.argsort(-row[candidates], kind="stable")
    return candidates[order[:count]]


def reaching(row: Row, edge: np.float32, count: int) -> Ids:
    """The ids of the ``count`` largest logits in order of id, where the smallest of them is known to be ``edge``.

    Of those equal to ``edge`` the higher ids go, so that the set is that of `likeliest`.
    """
    ids = np.flatnonzero(row >= edge)
    surplus = ids.size - count
    if surplus:
        places = np.flatnonzero(row[ids] == edge)[-surplus:]
        ids = np.delete(ids, places)
    return ids


def _floor(row: Row, count: int) -> np.float32:
    """A value that at least ``count`` logits reach, and not many more.

    The count-th largest of the group maxima is one: ``count`` groups have a member that reaches it.
    """
    if count >= row.size:
        return np.float32(-np.inf)
    groups = row.size // _GROUP
    few = count * 4 <= groups
    ranked = row[: groups * _GROUP].reshape(_GROUP, groups).max(axis=0) if few else row
    floor: np.float32 = np.partition(ranked, ranked.size - count)[ranked.size - count]
    return floor
