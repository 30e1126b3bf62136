"""Cases of context operations: what may be done to a sequence beside appending to it.

Source: SPEC section 7; S §9.3.
"""

from __future__ import annotations

from typing import Final

from calculet_trio.conformance.rig import CaseFailed, NotApplicable, Rig, Seat

KEPT_TOKENS: Final = (15, 16, 17, 127, 128, 129)
"""On both sides of the blocks that kernels and DMA like."""
REMOVED_TOKENS: Final = (1, 2, 16)


def remove_tail_boundaries(rig: Rig) -> str:
    """A sequence whose tail was removed is the shorter sequence, on both sides of every boundary."""
    if "remove_tail" not in rig.capabilities:
        raise NotApplicable("the runtime does not claim remove_tail")
    following = rig.tokens(15, 3)
    kept_sizes = [kept for kept in KEPT_TOKENS if kept + max(REMOVED_TOKENS) + len(following) <= rig.max_seq]
    worst = 0.0
    for kept in kept_sizes:
        prompt = rig.tokens(400 + kept, kept + max(REMOVED_TOKENS))
        alone = rig.alone(prompt[:kept], following)
        for removed in REMOVED_TOKENS:
            seat = rig.take(0)
            rig.prefill(seat, prompt[: kept + removed])
            remove(rig, seat, removed)
            rows = [rig.step(seat, token) for token in following]
            worst = max(worst, rig.agree(alone[1:], rows, f"{removed} tokens removed, {kept} kept"))
            rig.give_back(seat)
    _remove_all_and_too_many(rig)
    return f"{', '.join(map(str, kept_sizes))} tokens kept; rows differ by at most {worst:.4g}"


def remove(rig: Rig, seat: Seat, tokens: int) -> None:
    """Drop the last tokens of the sequence, which must be done."""
    if not rig.runtime.remove_tail(rig.generation, seat.sequence, tokens):
        raise CaseFailed(f"{tokens} of {seat.length} tokens were not removed")
    seat.length -= tokens


def _remove_all_and_too_many(rig: Rig) -> None:
    prompt, other = rig.tokens(16, 17), rig.tokens(17, 9)
    alone = rig.alone(other)
    seat = rig.take(0)
    rig.prefill(seat, prompt)
    if rig.runtime.remove_tail(rig.generation, seat.sequence, len(prompt) + 1):
        raise CaseFailed("more tokens were removed than there are")
    remove(rig, seat, 0)
    remove(rig, seat, len(prompt))
    rig.same(alone, [rig.prefill(seat, other)], "another prompt after all tokens were removed")
    rig.give_back(seat)
