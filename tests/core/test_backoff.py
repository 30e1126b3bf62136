"""Back-off: pauses that double up to a limit, and are over when they are over."""

from __future__ import annotations

import pytest

from calculet_trio.core.backoff import Backoff


def test_nothing_is_held_back_before_a_refusal() -> None:
    assert Backoff().allows(0.0)


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(first_s=0.005, longest_s=1.0)
    pauses_s = []
    for _ in range(12):
        backoff.refused(100.0)
        assert backoff.until_s is not None
        pauses_s.append(backoff.until_s - 100.0)
    assert pauses_s == pytest.approx([0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0, 1.0])


def test_however_often_it_is_refused_the_pause_stays_a_number() -> None:
    backoff = Backoff()
    backoff.failures = 10**9
    backoff.refused(0.0)
    assert backoff.until_s == 1.0


def test_it_may_be_tried_when_the_pause_is_over_and_not_before() -> None:
    backoff = Backoff(first_s=1.0)
    backoff.refused(10.0)
    assert not backoff.allows(10.999)
    assert backoff.until_s == 11.0
    assert backoff.allows(11.0)
    assert backoff.until_s is None, "nobody is woken for a pause that is over"
    assert backoff.failures == 1, "but the next pause is longer still"


def test_one_success_forgets_every_refusal() -> None:
    backoff = Backoff(first_s=1.0)
    for _ in range(5):
        backoff.refused(0.0)
    backoff.accepted()
    assert backoff.allows(0.0)
    backoff.refused(0.0)
    assert backoff.until_s == 1.0
