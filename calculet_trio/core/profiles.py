"""What a configured model offers the scheduler: its batch profiles and the shape of its KV lanes.

Source: SPEC section 2, 6, 7 (S §2 ``BatchProfile``, §7.3, §8).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import Enum
from itertools import accumulate
from operator import attrgetter
from typing import Final

import attrs

from calculet_trio.ids import LaneId


class InactiveLanePolicy(Enum):
    """How a batch keeps a lane without a sequence from computing or writing anything.

    Lanes are never filled with token 0: a profile of more than one lane whose package declares no mask
    contract (`NONE`) does not become Ready.
    """

    NONE = "none"
    VALID_MASK = "valid_mask"
    """A tensor or CSR of the graph says which lanes count; the others write no KV and return no logits."""


@attrs.frozen
class PrefillProfile:
    """The prefill submodel: one sequence a job (S §6).

    Args:
        submodel: its exact name in the package.
        max_seq: the longest context, in tokens, that a job may reach.
    """

    submodel: str
    max_seq: int


@attrs.frozen
class BatchProfile:
    """One compiled decode graph. ``compiled_batch`` comes from the package, never from configuration.

    Args:
        submodel: its exact name in the package.
        compiled_batch: lanes the graph was compiled for.
        max_seq: the longest context, in tokens, that a lane of this profile holds.
        inactive_lane: how lanes without a sequence are kept out of the batch.
        kv_pool: profiles of one pool read each other's KV; a sequence that one of them has decoded moves only
            among these (S §8).
    """

    submodel: str
    compiled_batch: int
    max_seq: int
    inactive_lane: InactiveLanePolicy
    kv_pool: str = "main"

    @property
    def is_usable(self) -> bool:
        """A batch of several lanes needs a contract for those without a sequence (S §7.3)."""
        return self.compiled_batch == 1 or self.inactive_lane is not InactiveLanePolicy.NONE


class LaneLayout(Enum):
    """Which lanes one batch may address."""

    CONTIGUOUS = "contiguous_lanes"
    """Adjacent ones, by the first."""
    INDIRECT = "indirect"
    """Any, by a table of lane numbers."""


@attrs.frozen
class ModelShape:
    """Everything the scheduler may know of a configured model.

    Args:
        prefill: the prefill submodel.
        decode: the decode profiles, smallest batch first.
        lanes: KV lanes resident on the device; lane ids are ``0 .. lanes - 1``.
        max_seq: the longest context of any lane, in tokens.
        vocab_size: tokens a sampler may return are ``0 .. vocab_size - 1``.
        layout: which lanes one decode batch may address.
        lane_fault_isolation: the package declares that a fault of one lane leaves the others' KV whole.
    """

    prefill: PrefillProfile
    decode: tuple[BatchProfile, ...]
    lanes: int
    max_seq: int
    vocab_size: int
    layout: LaneLayout = LaneLayout.CONTIGUOUS
    lane_fault_isolation: bool = False


@attrs.frozen
class LaneWindow:
    """Contiguous lanes ``first .. first + profile.compiled_batch - 1`` that one decode job addresses."""

    profile: BatchProfile
    first: LaneId

    def covers(self, lane: LaneId) -> bool:
        return self.first <= lane < self.first + self.profile.compiled_batch


_BATCH: Final = attrgetter("compiled_batch")


def choose_window(
    ready: Collection[LaneId],
    *,
    must: LaneId,
    shape: ModelShape,
    profiles: Sequence[BatchProfile] | None = None,
    worth: Callable[[LaneWindow], int] | None = None,
) -> LaneWindow:
    """The cheapest window that holds ``must`` and is worth most.

    Args:
        ready: lanes whose sequence waits for its next token; ``must`` is one of them.
        must: the lane whose turn it is: whatever else is chosen, it decodes now.
        shape: the model; its profiles are contiguous-lane.
        profiles: those to choose from; None for all of the shape's.
        worth: what a window is worth; None for the ready lanes that it covers.

    Returns:
        Of the windows that are worth most the one of the smallest profile, lowest lane first.

    Source: SPEC section 6 (S §8), for packages whose batches address contiguous lanes.
    """
    best: tuple[int, int, int] | None = None
    chosen: BatchProfile | None = None
    ready_below = [0, *accumulate([lane in ready for lane in range(shape.lanes)])]
    for profile in sorted(shape.decode if profiles is None else profiles, key=_BATCH, reverse=True):
        size = profile.compiled_batch
        if worth is None and best is not None and size < -best[0]:
            break  # a smaller window covers fewer lanes than the best does
        last_first = min(must, shape.lanes - size)
        for first in range(max(0, must - size + 1), last_first + 1):
            if worth is None:
                value = ready_below[first + size] - ready_below[first]
            else:
                value = worth(LaneWindow(profile, LaneId(first)))
            rank = (-value, size, first)
            if best is None or rank < best:
                best, chosen = rank, profile
    assert best is not None, "a shape has a profile of one lane, or one that spans them all"
    assert chosen is not None
    return LaneWindow(chosen, LaneId(best[2]))
