"""The five conditions under which a prompt may be prefilled in pieces; each is one case, none is enough.

Keys and values cannot be read through the port. They are compared by what is computed from them: every
later row depends on all of them.

Source: SPEC section 5; S §6.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Final

from calculet_trio.conformance.agreement import Row
from calculet_trio.conformance.rig import CaseFailed, NotApplicable, Rig, Seat

BOUNDARIES: Final = (15, 16, 17, 127, 128, 129)
"""Of S §6: on both sides of the blocks that kernels and DMA like."""
SLOWER_AT_MOST: Final = 1.5
"""A prompt in pieces may take so much longer on the device than whole: the price of letting others between."""
_ROUNDS: Final = 3
_PIECES_AT_MOST: Final = 6


def incremental_prefill_supported(rig: Rig) -> str:
    """The runtime claims to append to a prompt, and a piece need not be sampled."""
    if "incremental_prefill" not in rig.capabilities:
        raise NotApplicable("the runtime does not claim incremental_prefill")
    prompt = rig.tokens(18, 24)
    seat = rig.take(0)
    in_pieces(rig, seat, prompt, (8, 16))
    rig.give_back(seat)
    return "claimed, and three pieces were taken"


def kv_equal_to_whole_prefill(rig: Rig) -> str:
    """What follows a prompt in pieces is what follows the whole one, for as long as it goes on."""
    length = min(200, rig.max_seq - 8)
    prompt, following = rig.tokens(19, length), rig.tokens(20, 8)
    alone = rig.alone(prompt, following)
    cuts = tuple(range(length // 4, length, max(1, length // 4)))
    worst = rig.agree(alone, _said_in_pieces(rig, prompt, following, cuts), f"in pieces cut at {cuts}")
    strange = (*rig.tokens(21, cuts[0]), *prompt[cuts[0] :])
    rig.tell_apart(alone, _said_in_pieces(rig, strange, following, cuts), "a prompt with a wrong first piece")
    return f"{length} tokens, then {len(following)}; rows differ by at most {worst:.4g}"


def positions_and_csrs_clear(rig: Rig) -> str:
    """A piece belongs to one place of one sequence, whatever ran before it."""
    prompts = [rig.tokens(22, 30), rig.tokens(23, 30)]
    alone = [rig.alone(prompt, prompt[:2]) for prompt in prompts]
    rig.tell_apart(alone[0], alone[1], "the two prompts")
    rig.tell_apart(alone[0][:1], rig.alone(prompts[0][10:]), "a last piece with and without those before it")
    lanes = (0, rig.shape.lanes - 1) if rig.shape.lanes > 1 else (0,)
    seats = [rig.take(lane) for lane in lanes]
    for begin, end in pairwise((0, 10, 20)):
        for seat, prompt in zip(seats, prompts, strict=False):
            rig.prefill(seat, prompt[begin:end], samples=False)
            for wrong in (end - 1, end + 1):
                job = rig.prefill_job(seat, prompt[end:], position=wrong)
                rig.must_refuse(job, f"its position is {wrong}, and {end} tokens are there")
    rows = [[rig.prefill(seat, prompt[20:])] for seat, prompt in zip(seats, prompts, strict=False)]
    for place in range(2):
        for seat, prompt, said in zip(seats, prompts, rows, strict=False):
            said.append(rig.step(seat, prompt[place]))
    worst = max(rig.agree(*pair, "pieces of two prompts in turns") for pair in zip(alone, rows, strict=False))
    return f"wrong positions are refused; pieces in turns differ by at most {worst:.4g}"


def chunk_boundaries(rig: Rig) -> str:
    """A cut may lie on either side of every boundary."""
    following = rig.tokens(24, 2)
    fitting = [cut for cut in BOUNDARIES if cut + 20 + len(following) <= rig.max_seq]
    worst = 0.0
    for cut in fitting:
        prompt = rig.tokens(500 + cut, min(2 * cut + 1, rig.max_seq - len(following)))
        for end, cuts in ((cut + 20, (cut,)), (cut + 1, (cut,)), (len(prompt), (cut, min(2 * cut, len(prompt) - 1)))):
            alone = rig.alone(prompt[:end], following)
            said = _said_in_pieces(rig, prompt[:end], following, cuts)
            worst = max(worst, rig.agree(alone, said, f"{end} tokens cut at {cuts}"))
    left_out = [cut for cut in BOUNDARIES if cut not in fitting]
    beyond = f"; {left_out} are beyond a context of {rig.max_seq}" if left_out else ""
    return f"cut at {fitting}{beyond}; rows differ by at most {worst:.4g}"


def golden_and_performance(rig: Rig) -> str:
    """The golden run passes, and a prompt in pieces takes little longer on the device than whole."""
    outcome = rig.runtime.golden(rig.generation)
    if not outcome.passed:
        raise CaseFailed(outcome.detail)
    piece = rig.chunk_tokens
    if rig.max_seq <= piece:
        return f"golden passes; no prompt of this package is longer than one piece of {piece} tokens"
    prompt = rig.tokens(25, min(rig.max_seq, _PIECES_AT_MOST * piece))
    whole_s, pieces_s = [], []
    for _ in range(_ROUNDS):  # in turns, so that a machine that grows slower meanwhile is slower for both
        whole_s.append(_device_s(rig, prompt, ()))
        pieces_s.append(_device_s(rig, prompt, tuple(range(piece, len(prompt), piece))))
    ratio = median(pieces_s) / median(whole_s)
    seen = (
        f"{len(prompt)} tokens in pieces of {piece} take {ratio:.2f} times as long as whole ({median(whole_s):.3g} s)"
    )
    if ratio > SLOWER_AT_MOST:
        raise CaseFailed(f"{seen}; allowed {SLOWER_AT_MOST:g}")
    return f"golden passes; {seen}"


def in_pieces(rig: Rig, seat: Seat, prompt: Sequence[int], cuts: Sequence[int]) -> Row:
    """Prefill a prompt cut at these places; the row of its last token."""
    *before, last = pairwise((0, *cuts, len(prompt)))
    for begin, end in before:
        rig.prefill(seat, prompt[begin:end], samples=False)
    return rig.prefill(seat, prompt[slice(*last)])


def _said_in_pieces(rig: Rig, prompt: Sequence[int], following: Sequence[int], cuts: Sequence[int]) -> list[Row]:
    seat = rig.take(0)
    rows = [in_pieces(rig, seat, prompt, cuts), *(rig.step(seat, token) for token in following)]
    rig.give_back(seat)
    return rows


def _device_s(rig: Rig, prompt: Sequence[int], cuts: Sequence[int]) -> float:
    seat = rig.take(0)
    taken_s = 0.0
    for begin, end in pairwise((0, *cuts, len(prompt))):
        taken_s += rig.run(rig.prefill_job(seat, prompt[begin:end], samples=end == len(prompt))).device_s
        seat.length = end
    rig.give_back(seat)
    return taken_s
