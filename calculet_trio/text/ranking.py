"""The largest of many logits, without sorting them all."""

from __future__ import annotations

from math import isnan
from typing import Any, Final

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
        row: f32[vocab]; NaN counts as -inf; not modified.
        count: at least 1; more than the vocabulary means all of it.
    """
    if count == 1:
        largest = row.argmax()  # the first NaN, if there is any
        return np.array([largest if not isnan(row[largest]) else without_nan(row).argmax()])
    ids, floor = at_least(row, count)
    if np.isnan(floor):
        return likeliest(without_nan(row), count)
    order = np.argsort(-row[ids], kind="stable")
    return ids[order[:count]]


def at_least(row: npt.NDArray[Any], count: int) -> tuple[Ids, Any]:
    """At least ``count`` ids, in their order, among them those of the ``count`` largest, and a floor of all of them.

    Args:
        row: numbers of any kind; a NaN among floats is told by a NaN as the floor.
        count: at least 1; more than there are means all of them.
    """
    groups = row.size // _GROUP
    if count * 4 <= groups:
        return _reaching_groups(row, count, groups)
    peak = row.max()
    if peak != peak:  # a NaN
        return np.arange(0), peak
    floor = np.partition(row, row.size - count)[row.size - count] if count < row.size else row.min()
    return np.flatnonzero(row >= floor), floor


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


def _reaching_groups(row: npt.NDArray[Any], count: int, groups: int) -> tuple[Ids, Any]:
    """The count-th largest of the groups' maxima is a floor that ``count`` logits reach, and not many more.

    Only groups whose maximum reaches it are looked at again.
    """
    grid = row[: groups * _GROUP].reshape(_GROUP, groups)  # columns are groups
    rest = row[groups * _GROUP :]
    maxima = grid.max(axis=0)
    peak = np.maximum(maxima.max(), rest.max(initial=maxima[0]))
    if peak != peak:  # a NaN
        return np.arange(0), peak
    floor = np.partition(maxima, groups - count)[groups - count]
    columns = (maxima >= floor).nonzero()[0]
    among = grid.take(columns, axis=1).ravel() >= floor
    members, within = np.divmod(among.nonzero()[0], columns.size)  # ten times as fast as nonzero of two dimensions
    beyond = (rest >= floor).nonzero()[0] + groups * _GROUP
    return np.concatenate((members * groups + columns[within], beyond)), floor
