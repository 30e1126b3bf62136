"""Cases of single sequences: decode continues what prefill began, lanes do not mix, contexts end where they must.

Source: SPEC section 13; S §18.
"""

from __future__ import annotations

from calculet_trio.conformance.rig import CaseFailed, NotApplicable, Rig
from calculet_trio.runtimes.port import Allocated


def one_sequence(rig: Rig) -> str:
    """Decoding a token gives what a prefill that ends with it gives, in any lane."""
    prompt, following = rig.tokens(1, 9), rig.tokens(2, 6)
    rows = rig.alone(prompt, following)
    whole = [rig.alone((*prompt, *following[:count]))[0] for count in range(len(following) + 1)]
    worst = rig.agree(whole, rows, "decoded and prefilled")
    last = rig.shape.lanes - 1
    rig.same(rows, rig.alone(prompt, following, lane=last), f"again, in lane {last}")
    rig.tell_apart(rows[:-1], rows[1:], "neighbouring positions")
    return f"{len(rows)} positions; decoded and prefilled rows differ by at most {worst:.4g}"


def two_alternating(rig: Rig) -> str:
    """Two sequences that take turns say what each says alone."""
    if rig.shape.lanes < 2:
        raise NotApplicable("the package has one lane")
    prompts, following = (rig.tokens(3, 5), rig.tokens(4, 11)), rig.tokens(5, 6)
    alone = [rig.alone(prompt, following) for prompt in prompts]
    rig.tell_apart(alone[0], alone[1], "the two sequences")
    seats = [rig.take(lane) for lane in (0, rig.shape.lanes - 1)]
    rows = [[rig.prefill(seat, prompt)] for seat, prompt in zip(seats, prompts, strict=True)]
    for token in following:
        for seat, said in zip(seats, rows, strict=True):
            said.append(rig.step(seat, token))
    for expected, said in zip(alone, rows, strict=True):
        rig.same(expected, said, "in turns")
    return f"{len(following)} turns each, bit for bit"


def cancel_queued(rig: Rig) -> str:
    """A sequence released before its prefill, or before its first decode, leaves nothing in its lane."""
    prompt, other, following = rig.tokens(6, 7), rig.tokens(7, 20), rig.tokens(8, 4)
    alone = rig.alone(prompt, following)
    rig.give_back(rig.take(0))
    rig.same(alone, rig.alone(prompt, following), "after a sequence that was never prefilled")
    abandoned = rig.take(0)
    rig.prefill(abandoned, other)
    rig.give_back(abandoned)
    rig.same(alone, rig.alone(prompt, following), "after a sequence that was never decoded")
    return "the lane begins anew both times"


def near_max_seq(rig: Rig) -> str:
    """A lane can be filled to its last token and no further, and its neighbour notices nothing."""
    full = rig.max_seq
    prompt = rig.tokens(9, full)
    neighbour_says = rig.alone(prompt[:5], prompt[5:9])
    neighbour = rig.take(rig.shape.lanes - 1) if rig.shape.lanes > 1 else None
    said = [] if neighbour is None else [rig.prefill(neighbour, prompt[:5])]
    seat = rig.take(0)
    rows = rig.say(seat, prompt[: full - 2], prompt[full - 2 :])
    rig.must_refuse(rig.prefill_job(seat, prompt[:1]), f"it would be token {full + 1} of {full}")
    if isinstance(rig.runtime.allocate(rig.generation, seat.lane, full), Allocated):
        raise CaseFailed("a lane that is taken was allocated again")
    if neighbour is not None:
        said += [rig.step(neighbour, token) for token in prompt[5:9]]
        rig.same(neighbour_says, said, "the neighbour of a full lane")
        rig.give_back(neighbour)
    rig.give_back(seat)
    worst = rig.agree(rig.alone(prompt), rows[-1:], f"a context of {full} tokens, decoded and prefilled")
    return f"{full} tokens; decoded and prefilled rows differ by at most {worst:.4g}"


def golden(rig: Rig) -> str:
    """The model says what its package recorded."""
    outcome = rig.runtime.golden(rig.generation)
    if not outcome.passed:
        raise CaseFailed(outcome.detail)
    return outcome.detail
