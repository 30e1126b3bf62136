"""Prefix reuse: a sequence that was prefilled and decoded is shortened and gone on with, as the next turn of a talk.

Keys and values that decode wrote are read by a prefill here, which no other case does. Whether they may differ a little
from what a prefill would have written is the one question, whether they do at all is the other.

Source: SPEC section 7, 12; S §9.3.
"""

from __future__ import annotations

from typing import Final

from calculet_trio.conformance.context import remove
from calculet_trio.conformance.rig import NotApplicable, Rig

_PROMPT_TOKENS: Final = 24
_REPLY_TOKENS: Final = 6
_NEXT_TOKENS: Final = 9
_FOLLOWING: Final = 3


def prefix_reuse(rig: Rig) -> str:
    """A turn on top of the one before says what its whole prompt says by itself, wherever the two part."""
    _require_claims(rig)
    prompt, reply = rig.tokens(26, _PROMPT_TOKENS), rig.tokens(27, _REPLY_TOKENS)
    said = (*prompt, *reply)
    following = rig.tokens(28, _FOLLOWING)
    worst = 0.0
    for dropped in (0, 1, _REPLY_TOKENS, _REPLY_TOKENS + 1, len(said) - 1):
        kept = len(said) - dropped
        rest = rig.tokens(600 + dropped, _NEXT_TOKENS)
        alone = rig.alone((*said[:kept], *rest), following)
        rig.tell_apart(alone, rig.alone((*rig.tokens(29, kept), *rest), following), "another conversation")
        seat = rig.take(rig.shape.lanes - 1)
        rig.say(seat, prompt, reply)
        _let_others_work(rig)
        remove(rig, seat, dropped)
        rows = rig.say(seat, rest, following)
        worst = max(worst, rig.agree(alone, rows, f"a turn after {kept} tokens that were kept, {dropped} dropped"))
        rig.give_back(seat)
    _say_the_same_again(rig)
    return f"a turn on top of up to {len(said)} tokens; rows differ by at most {worst:.4g}"


def reply_reuse(rig: Rig) -> str:
    """What decode wrote is, to the bit, what a prefill would have written: a next turn may go on from a reply, too."""
    _require_claims(rig)
    prompt, reply = rig.tokens(34, _PROMPT_TOKENS), rig.tokens(35, _REPLY_TOKENS)
    rest, following = rig.tokens(36, _NEXT_TOKENS), rig.tokens(37, _FOLLOWING)
    alone = rig.alone((*prompt, *reply, *rest), following)
    rig.tell_apart(alone, rig.alone((*prompt, *rig.tokens(38, _REPLY_TOKENS), *rest), following), "another reply")
    seat = rig.take(0)
    rig.say(seat, prompt, reply)
    rows = rig.say(seat, rest, following)
    worst = rig.agree(alone, rows, f"a turn after a reply of {len(reply)} tokens")
    rig.give_back(seat)
    if worst > 0:
        raise NotApplicable(
            f"decode computes otherwise than prefill, rows differ by up to {worst:.4g}: of two tokens that were as "
            "likely the other one may come, so that prompts alone are used again"
        )
    return f"a turn on top of a reply of {len(reply)} tokens: the same rows"


def _require_claims(rig: Rig) -> None:
    missing = {"remove_tail", "incremental_prefill"} - rig.capabilities
    if missing:
        raise NotApplicable(f"the runtime does not claim {', '.join(sorted(missing))}")


def _let_others_work(rig: Rig) -> None:
    """What is kept lies still while other lanes come and go."""
    if rig.shape.lanes > 1:
        rig.alone(rig.tokens(30, _PROMPT_TOKENS), rig.tokens(31, 2), lane=0)


def _say_the_same_again(rig: Rig) -> None:
    """The same prompt again: all is kept but its last token, whose logits are wanted."""
    prompt, following = rig.tokens(32, _PROMPT_TOKENS), rig.tokens(33, 2)
    seat = rig.take(0)
    first = rig.say(seat, prompt, following)
    remove(rig, seat, len(following) + 1)
    rig.agree(first, rig.say(seat, prompt[-1:], following), "the same prompt again")
    rig.give_back(seat)
