"""The wheel: eight, four, two, one; interleaved; and nothing saved up by whoever had no work."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from calculet_trio.core.policy import QueuePolicy
from calculet_trio.core.turns import JobTurns, WorkKind

DECODE, SHORT, MEDIUM, LONG = WorkKind
EVERYTHING = tuple(WorkKind)


def test_the_shares_are_those_of_the_specification() -> None:
    wheel = JobTurns(QueuePolicy())
    for _ in range(3):
        turns = Counter(wheel.turn(EVERYTHING) for _ in range(15))
        assert turns == {DECODE: 8, SHORT: 4, MEDIUM: 2, LONG: 1}


def test_the_shares_are_the_policys() -> None:
    policy = QueuePolicy(decode_weight=1, short_prefill_weight=5, medium_prefill_weight=1, long_prefill_weight=3)
    wheel = JobTurns(policy)
    turns = Counter(wheel.turn(EVERYTHING) for _ in range(10))
    assert turns == {DECODE: 1, SHORT: 5, MEDIUM: 1, LONG: 3}


def test_opportunities_interleave() -> None:
    wheel = JobTurns(QueuePolicy())
    turns = [wheel.turn(EVERYTHING) for _ in range(150)]
    runs = "".join("d" if kind is DECODE else "." for kind in turns)
    assert "ddd" not in runs
    assert "..." not in runs, "decode never waits for three prefills in a row"


def test_two_kinds_share_as_their_weights_say() -> None:
    wheel = JobTurns(QueuePolicy())
    assert Counter(wheel.turn((DECODE, LONG)) for _ in range(90)) == {DECODE: 80, LONG: 10}


def test_whoever_is_alone_has_every_turn() -> None:
    wheel = JobTurns(QueuePolicy())
    assert {wheel.turn((LONG,)) for _ in range(20)} == {LONG}


def test_a_kind_without_work_banks_no_turns() -> None:
    wheel = JobTurns(QueuePolicy())
    for _ in range(1000):
        wheel.turn((DECODE,))
    turns = [wheel.turn((DECODE, SHORT)) for _ in range(12)]
    assert Counter(turns) == {DECODE: 8, SHORT: 4}


def test_a_kind_that_had_every_turn_owes_none() -> None:
    wheel = JobTurns(QueuePolicy())
    for _ in range(1000):
        wheel.turn((LONG,))
    assert Counter(wheel.turn(EVERYTHING) for _ in range(15)) == {DECODE: 8, SHORT: 4, MEDIUM: 2, LONG: 1}


@given(st.integers(0, 8**50 - 1))
def test_nobody_with_work_waits_for_ever_whatever_the_others_do(others: int) -> None:
    """The three others come and go: three bits of ``others`` a turn."""
    wheel = JobTurns(QueuePolicy())
    waited = longest = 0
    for turn in range(50):
        company = others >> 3 * turn
        available = [kind for bit, kind in enumerate((DECODE, SHORT, MEDIUM)) if company >> bit & 1] + [LONG]
        chosen = wheel.turn(available)
        assert chosen in available
        waited = 0 if chosen is LONG else waited + 1
        longest = max(longest, waited)
    assert longest < 2 * 15
