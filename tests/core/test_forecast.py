"""Forecasts: who cannot be served in time is told so at once, and told when to come back."""

from __future__ import annotations

import pytest

from calculet_trio.core.admission import DrainRate
from calculet_trio.core.effects import Refusal, RefusalKind
from calculet_trio.core.policy import TenantPolicy
from tests.core.door import Door
from tests.core.shapes import make_request

# ---- when to come back --------------------------------------------------------------------------------


def test_before_anything_was_measured_a_place_takes_a_second() -> None:
    assert DrainRate().retry_after_s(3) == 3.0


def test_the_estimate_follows_the_time_between_two_ends() -> None:
    rate = DrainRate()
    for moment_s in (0.0, 4.0):
        rate.ended(moment_s, others_waiting=True)
    assert rate.retry_after_s(1) == 4.0
    rate.ended(13.0, others_waiting=True)
    assert rate.retry_after_s(1) == pytest.approx(5.0), "a fifth of the newest gap"
    assert rate.retry_after_s(2) == pytest.approx(10.0)


def test_what_was_not_measured_is_not_expected() -> None:
    rate = DrainRate()
    assert rate.expected_s(3) is None
    rate.ended(0.0, others_waiting=True)
    rate.ended(2.0, others_waiting=True)
    assert rate.expected_s(2.5) == pytest.approx(5.0)


def test_gaps_in_which_nobody_waited_say_nothing() -> None:
    rate = DrainRate()
    rate.ended(0.0, others_waiting=True)
    rate.ended(2.0, others_waiting=True)
    rate.ended(1000.0, others_waiting=False)
    rate.ended(1002.0, others_waiting=True)
    assert rate.retry_after_s(1) == pytest.approx(2.0)


def test_no_promise_is_longer_than_two_minutes() -> None:
    rate = DrainRate()
    rate.ended(0.0, others_waiting=True)
    rate.ended(500.0, others_waiting=True)
    assert rate.retry_after_s(1) == 120.0


# ---- in time ---------------------------------------------------------------------------------------------


def test_before_anything_was_measured_nobody_is_refused_for_time() -> None:
    door = Door(lanes=1)
    door.occupy(50)
    request = make_request(9, deadline_s=0.001)
    assert door.offer(4, request=request) is None
    assert request.expected_wait_s is None


def test_a_prompt_that_no_idle_device_could_prefill_in_time_is_the_requests_fault() -> None:
    door = Door()
    door.measure(prefill_token_s=0.5, end_s=1.0)
    request = make_request(9, deadline_s=12.0)
    assert door.offer(4, request=request, now=10.0) is None
    assert request.expected_wait_s == 0.0, "a lane is free"
    assert door.offer(5, request=request, now=10.0) == Refusal(
        RefusalKind.INVALID,
        "deadline_too_short",
        "a prompt of 5 tokens takes about 2.5 s; its deadline is in 2.0 s",
    )


def test_a_wait_that_would_outlast_the_deadline_is_the_loads_fault_and_says_when_to_come_back() -> None:
    door = Door(lanes=1)
    door.measure(prefill_token_s=0.5, end_s=4.0)
    door.occupy(50)
    for number in (1, 2):
        door.queue_up(number, 3)
    request = make_request(9, deadline_s=14.0)
    assert door.offer(4, request=request) is None, "twelve of waiting and two of prefill"
    assert request.expected_wait_s == pytest.approx(12.0)
    assert door.offer(4, request=request, now=0.5) == Refusal(
        RefusalKind.CAPACITY,
        "queue_too_long",
        "about 12.0 s of waiting lie ahead; the request's deadline is in 13.5 s",
        retry_after_s=1.0,
    )
    refusal = door.offer(4, request=request, now=9.0)
    assert refusal is not None
    assert refusal.retry_after_s == pytest.approx(7.0), "when what lies ahead is shorter than what it can wait"


def test_free_lanes_shorten_the_wait_and_other_tenants_weights_lengthen_it() -> None:
    door = Door(lanes=3, tenants={"heavy": TenantPolicy(weight=3.0)})
    door.measure(prefill_token_s=0.001, end_s=1.0)
    for number in range(1, 7):
        door.queue_up(number, 3, tenant="heavy")
    request = make_request(9)
    door.offer(4, request=request)
    assert request.expected_wait_s == pytest.approx(3 + 1 - 3), "of the six three pass it, and three lanes are free"
    door.occupy(50)
    door.offer(4, request=request)
    assert request.expected_wait_s == pytest.approx(2.0)
