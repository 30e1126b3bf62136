"""Taking turns: by jobs or by device time, interleaved, nothing saved up by the idle; a quota for the long."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculet_trio.core.policy import QueuePolicy, TurnPolicy
from calculet_trio.core.turns import DeviceTimeTurns, JobTurns, LongQuota, Turns, WorkKind, turns_of

DECODE, SHORT, MEDIUM, LONG = WorkKind
EVERYTHING = tuple(WorkKind)
BOTH_WAYS = pytest.mark.parametrize("way", TurnPolicy)


def turns(way: TurnPolicy = TurnPolicy.WRR, *, weights: tuple[int, int, int, int] = (8, 4, 2, 1)) -> Turns:
    decode, short, medium, long = weights
    return turns_of(
        QueuePolicy(
            policy=way,
            decode_weight=decode,
            short_prefill_weight=short,
            medium_prefill_weight=medium,
            long_prefill_weight=long,
        )
    )


def take(turns: Turns, available: tuple[WorkKind, ...], many: int, **seconds: float) -> Counter[WorkKind]:
    """So many turns; each job takes a second, or what ``seconds`` says for its kind."""
    taken: Counter[WorkKind] = Counter()
    for _ in range(many):
        kind = turns.turn(available)
        assert kind in available
        turns.charge(kind, seconds.get(kind.value, 1.0))
        taken[kind] += 1
    return taken


def test_the_policy_names_the_way() -> None:
    assert isinstance(turns(TurnPolicy.WRR), JobTurns)
    assert isinstance(turns(TurnPolicy.DRR), DeviceTimeTurns)


# ---- both ways ----------------------------------------------------------------------------------------------


@BOTH_WAYS
def test_the_shares_are_those_of_the_specification(way: TurnPolicy) -> None:
    wheel = turns(way)
    for _ in range(3):
        assert take(wheel, EVERYTHING, 15) == {DECODE: 8, SHORT: 4, MEDIUM: 2, LONG: 1}


@BOTH_WAYS
def test_the_shares_are_the_policys(way: TurnPolicy) -> None:
    assert take(turns(way, weights=(1, 5, 1, 3)), EVERYTHING, 10) == {DECODE: 1, SHORT: 5, MEDIUM: 1, LONG: 3}


@BOTH_WAYS
def test_two_kinds_share_as_their_weights_say(way: TurnPolicy) -> None:
    assert take(turns(way), (DECODE, LONG), 90) == {DECODE: 80, LONG: 10}


@BOTH_WAYS
def test_whoever_is_alone_has_every_turn(way: TurnPolicy) -> None:
    assert take(turns(way), (LONG,), 20) == {LONG: 20}


@BOTH_WAYS
def test_a_kind_without_work_banks_no_turns(way: TurnPolicy) -> None:
    wheel = turns(way)
    take(wheel, (DECODE,), 1000)
    shares = take(wheel, (DECODE, SHORT), 12)
    assert shares[SHORT] in (4, 5)
    assert shares[DECODE] in (7, 8)


@BOTH_WAYS
def test_a_kind_that_had_every_turn_owes_none(way: TurnPolicy) -> None:
    wheel = turns(way)
    take(wheel, (LONG,), 1000)
    assert 1 <= take(wheel, EVERYTHING, 15)[LONG] <= 2


@BOTH_WAYS
@given(st.integers(0, 8**50 - 1))
def test_nobody_with_work_waits_for_ever_whatever_the_others_do(way: TurnPolicy, others: int) -> None:
    """S §17.1: a long prefill keeps its least share. The three others come and go: three bits of ``others`` a turn."""
    wheel = turns(way)
    waited = longest = 0
    for turn in range(50):
        company = others >> 3 * turn
        available = (*(kind for bit, kind in enumerate((DECODE, SHORT, MEDIUM)) if company >> bit & 1), LONG)
        chosen = next(iter(take(wheel, available, 1)))
        waited = 0 if chosen is LONG else waited + 1
        longest = max(longest, waited)
    assert longest < 2 * 15


# ---- by jobs --------------------------------------------------------------------------------------------------


def test_opportunities_interleave() -> None:
    wheel = turns()
    runs = "".join("d" if wheel.turn(EVERYTHING) is DECODE else "." for _ in range(150))
    assert "ddd" not in runs
    assert "..." not in runs, "decode never waits for three prefills in a row"


def test_jobs_count_however_long_they_take() -> None:
    assert take(turns(), (DECODE, LONG), 90, long=22.0, decode=0.017) == {DECODE: 80, LONG: 10}


# ---- by device time ---------------------------------------------------------------------------------------------


def test_device_time_is_shared_as_the_weights_say() -> None:
    """A prefill of 22 s against decode steps of 17 ms: eight seconds of decoding for each of prefilling."""
    shares = take(turns(TurnPolicy.DRR), (DECODE, LONG), 50_000, long=22.0, decode=0.017)
    assert shares[LONG] > 1
    assert shares[DECODE] * 0.017 / (shares[LONG] * 22.0) == pytest.approx(8.0, rel=0.2)


def test_jobs_that_take_no_time_are_counted() -> None:
    assert take(turns(TurnPolicy.DRR), (DECODE, LONG), 90, long=0.0, decode=0.0) == {DECODE: 80, LONG: 10}


def test_who_comes_back_starts_where_the_others_are() -> None:
    wheel = turns(TurnPolicy.DRR)
    take(wheel, (SHORT, MEDIUM), 30)
    take(wheel, (SHORT,), 300)
    assert take(wheel, (SHORT, MEDIUM), 6) == {SHORT: 4, MEDIUM: 2}


@given(st.lists(st.tuples(st.integers(1, 15), st.sampled_from([0.01, 0.1, 1.0, 5.0])), max_size=80))
def test_whoever_has_work_is_never_a_job_and_a_share_behind(steps: list[tuple[int, float]]) -> None:
    """Of two kinds with work throughout, neither is ahead, by weight, by more than one job of each."""
    weights = dict(zip(WorkKind, (8, 4, 2, 1), strict=True))
    wheel = turns(TurnPolicy.DRR)
    had = dict.fromkeys(WorkKind, 0.0)
    for company, seconds in steps:
        available = tuple(k for bit, k in enumerate(WorkKind) if company >> bit & 1 or k in (DECODE, LONG))
        kind = wheel.turn(available)
        wheel.charge(kind, seconds)
        had[kind] += seconds / weights[kind]
        assert abs(had[DECODE] - had[LONG]) <= 5.0 / weights[DECODE] + 5.0 / weights[LONG]


# ---- the quota of long prefills -----------------------------------------------------------------------------------


def test_a_share_of_one_is_no_quota() -> None:
    quota = LongQuota(1.0)
    quota.charge(1000.0, 1.0)
    assert quota.allows(2.0)


def test_long_prefills_wait_once_their_share_of_the_last_minute_is_used() -> None:
    quota = LongQuota(0.25)
    quota.charge(10.0, 100.0)
    assert quota.allows(100.0)
    quota.charge(5.0, 110.0)
    assert not quota.allows(110.0)
    assert not quota.allows(159.9)
    assert quota.allows(160.0), "the first is a minute old"


def test_a_quota_remembers_a_minute_and_no_more() -> None:
    quota = LongQuota(1.0)
    for second in range(1000):
        quota.charge(1.0, float(second))
    assert len(quota._spells) == 60
    assert quota._spent_s == pytest.approx(60.0)
