"""A row of logits in the forms in which a device gives it, and the head of it that a choice may need.

A whole row is float32, or bfloat16 as its bits. Positive bfloat16 numbers are in the order of their bits, and all
others are below them as signed integers; so the likeliest tokens are found without making floats of the whole row.
A device may also name the largest logits itself, its candidates.

Source: SPEC section 6 (S §7.4), 9; the measured alternatives are in ``tools/bench_overhead``.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from calculet_trio.text.ranking import Ids, Row, at_least

BFloat16Row = npt.NDArray[np.uint16]
"""``u16[vocab]``: the bits of bfloat16 logits."""

_INFINITY_BITS: Final = 0x7F80
"""Of bfloat16; as signed integers, infinity and positive NaNs alone are not below it."""


@attrs.frozen(eq=False)
class Head:
    """The likeliest tokens, largest logit first; of equals the lower id first.

    Args:
        ids: theirs.
        values: f32, their logits.
    """

    ids: Ids
    values: Row


@attrs.frozen(eq=False)
class CandidateRow:
    """The largest logits of a row by the device's own word, in any order; nothing beside them is larger than one.

    Args:
        ids: i32[k].
        values: f32[k].
    """

    ids: npt.NDArray[np.int32]
    values: Row


def widened(row: Row | BFloat16Row) -> Row:
    """The row, or rows, as float32; a copy only where they are not."""
    if row.dtype == np.uint16:
        return np.left_shift(row, 16, dtype=np.uint32).view(np.float32)
    return row  # type: ignore[return-value]  # the other of the two


def head_of_bfloat16(row: BFloat16Row, count: int) -> Head | None:
    """The ``count`` likeliest, or None where their bits do not tell: one is not above 0, or one not below infinity."""
    keys = row.view(np.int16)
    if count == 1:
        token = int(keys.argmax())
        tells = 0 < keys[token] < _INFINITY_BITS
        return Head(np.array([token]), widened(row[token : token + 1])) if tells else None
    ids, floor = at_least(keys, count)
    found = keys[ids]
    if floor <= 0 or found.max() >= _INFINITY_BITS:
        return None
    order = np.argsort(-found, kind="stable")[:count]
    return Head(ids[order], widened(row[ids[order]]))


def head_of_candidates(row: CandidateRow, count: int, *, vocab_size: int) -> Head | None:
    """The ``count`` likeliest, or None where the candidates do not tell.

    Those equal to the least candidate may have equals that the device left out, so all must be above it.

    Args:
        row: what the device named.
        count: how many are wanted.
        vocab_size: ids from here on are padding, and no tokens.
    """
    is_token = (row.ids >= 0) & (row.ids < vocab_size) & (row.values > row.values.min())  # a NaN: none of them
    ids, values = row.ids[is_token], row.values[is_token]
    if ids.size < count or values.max() == np.inf:
        return None
    order = np.lexsort((ids, -values))[:count]
    return Head(ids[order].astype(np.intp), values[order])
