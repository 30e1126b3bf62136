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
    groups = row.size // _GROUP
    if count * 4 <= groups:
        candidates = _reaching_groups(row, count, groups)
    elif count < row.size:
        candidates = np.flatnonzero(row >= np.partition(row, row.size - count)[row.size - count])
    else:
        candidates = np.arange(row.size)
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


def _reaching_groups(row: Row, count: int, groups: int) -> Ids:
    """At least ``count`` ids, in their order, among them those of the ``count`` largest logits.

    The count-th largest of the groups' maxima is a floor that ``count`` logits reach, and not many more; only groups
    whose maximum reaches it are looked at again.
    """
    grid = row[: groups * _GROUP].reshape(_GROUP, groups)  # columns are groups
    maxima = grid.max(axis=0)
    floor = np.partition(maxima, groups - count)[groups - count]
    columns = np.flatnonzero(maxima >= floor)
    members, within = np.nonzero(grid.take(columns, axis=1) >= floor)
    rest = np.flatnonzero(row[groups * _GROUP :] >= floor) + groups * _GROUP
    return np.concatenate((members * groups + columns[within], rest))
