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
    return ranked(row, count)[0]


def ranked(row: Row, count: int) -> tuple[Ids, Row]:
    """The ids of `likeliest`, and their logits, without a NaN."""
    if count == 1:
        largest = row.argmax()  # the first NaN, if there is any
        if isnan(row[largest]):
            row = without_nan(row)
            largest = row.argmax()
        return np.array([largest]), row[largest : largest + 1]
    ids, floor = at_least(row, count)
    if isnan(floor):
        return ranked(without_nan(row), count)
    values = row[ids]
    order = (-values).argsort(kind="stable")[:count]
    return ids[order], values[order]


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
    maxima = grid.max(axis=0)
    largest = np.partition(maxima, groups - count)[groups - count :]
    if (peak := largest.max()) != peak:  # a NaN, which counts as the largest of all
        return np.arange(0), peak
    floor = largest[0]
    columns = (maxima >= floor).nonzero()[0]
    among = grid.take(columns, axis=1).ravel() >= floor
    members, within = np.divmod(among.nonzero()[0], columns.size)  # ten times as fast as nonzero of two dimensions
    ids = members * groups + columns[within]
    if (rest := row[groups * _GROUP :]).size:
        if (peak := rest.max()) != peak:
            return np.arange(0), peak
        ids = np.concatenate((ids, (rest >= floor).nonzero()[0] + groups * _GROUP))
    return ids, floor
