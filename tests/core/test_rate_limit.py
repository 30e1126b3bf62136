"""A tenant's arrivals per second: a burst of one second, then the rate, and no more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculet_trio.core.rate_limit import RateLimit


def test_a_second_of_arrivals_may_come_at_once() -> None:
    limit = RateLimit(3.0, 0.0)
    assert [limit.take(0.0) for _ in range(3)] == [None] * 3
    assert limit.take(0.0) == pytest.approx(1 / 3)


def test_it_says_when_there_will_be_one_and_there_is_one_then() -> None:
    limit = RateLimit(2.0, 0.0)
    limit.take(0.0)
    limit.take(0.0)
    assert limit.take(0.25) == pytest.approx(0.25)
    assert limit.take(0.5) is None


def test_less_than_one_a_second_still_lets_one_in() -> None:
    limit = RateLimit(0.1, 0.0)
    assert limit.take(0.0) is None
    assert limit.take(1.0) == pytest.approx(9.0)
    assert limit.take(10.0) is None


def test_a_long_silence_banks_one_burst_and_no_more() -> None:
    limit = RateLimit(2.0, 0.0)
    assert [limit.take(1000.0) for _ in range(3)][:2] == [None, None]
    assert limit.take(1000.0) is not None


def test_it_may_be_forgotten_once_it_is_full_again() -> None:
    limit = RateLimit(2.0, 0.0)
    assert limit.is_full(0.0)
    limit.take(0.0)
    assert not limit.is_full(0.25)
    assert limit.is_full(0.5)


@given(st.sampled_from([0.5, 1.0, 4.0, 16.0]), st.lists(st.sampled_from([0.0, 0.125, 0.25, 1.0, 8.0]), max_size=80))
def test_no_stretch_of_time_sees_more_than_the_rate_and_one_burst(per_s: float, pauses_s: list[float]) -> None:
    limit, now, taken_s = RateLimit(per_s, 0.0), 0.0, []
    for pause_s in pauses_s:
        now += pause_s
        wait_s = limit.take(now)
        if wait_s is None:
            taken_s.append(now)
        else:
            assert wait_s > 0
    for first, begin_s in enumerate(taken_s):
        for last in range(first, len(taken_s)):
            assert last - first + 1 <= max(1.0, per_s) + per_s * (taken_s[last] - begin_s) + 1e-6
