"""Measured rates: means of what was seen, and None where nothing was."""

from __future__ import annotations

import pytest

from calculet_trio.core.jobs import DecodeJob, Job, LaneWork, PrefillJob
from calculet_trio.core.service_rates import ServiceRates
from calculet_trio.ids import JobId, LaneId, RequestId, SequenceId
from tests.core.shapes import GENERATION, small_shape

SHAPE = small_shape(4, max_seq=8192)


def work(tokens: int) -> LaneWork:
    return LaneWork(RequestId(1), SequenceId(1), LaneId(0), 0, tuple(range(tokens)), 0)


def prefill(tokens: int) -> Job:
    return PrefillJob(JobId(1), GENERATION, SHAPE.prefill, work(tokens))


def decode(profile: int) -> Job:
    return DecodeJob(JobId(1), GENERATION, SHAPE.decode[profile], LaneId(0), (work(1),))


def test_what_was_never_measured_is_not_known() -> None:
    rates = ServiceRates()
    assert rates.prefill_s(100) is None
    assert rates.decode_s("decode_b1") is None
    assert rates.slowest_decode_s == 0.0
    assert rates.expected_s(prefill(10)) == 0.0
    assert rates.expected_s(decode(0)) == 0.0


def test_a_prefill_is_expected_by_its_length() -> None:
    rates = ServiceRates()
    rates.observe(prefill(100), 1.0)
    assert rates.prefill_s(100) == pytest.approx(1.0)
    assert rates.prefill_s(120) == pytest.approx(1.2), "the same class, more tokens"
    assert rates.expected_s(prefill(50)) == pytest.approx(0.5), "the nearest class that was measured"


def test_the_nearest_measured_length_speaks() -> None:
    rates = ServiceRates()
    rates.observe(prefill(16), 0.16)
    rates.observe(prefill(4096), 4096 * 0.005)
    assert rates.prefill_s(20) == pytest.approx(0.2)
    assert rates.prefill_s(3000) == pytest.approx(15.0)


def test_newer_values_weigh_a_fifth() -> None:
    rates = ServiceRates()
    rates.observe(decode(0), 0.010)
    rates.observe(decode(0), 0.020)
    assert rates.decode_s("decode_b1") == pytest.approx(0.012)
    assert rates.expected_s(decode(0)) == pytest.approx(0.012)


def test_each_profile_has_its_own_rate_and_the_slowest_is_known() -> None:
    rates = ServiceRates()
    rates.observe(decode(0), 0.010)
    rates.observe(decode(2), 0.030)
    rates.observe(decode(1), 0.020)
    assert rates.decode_s("decode_b2") == pytest.approx(0.020)
    assert rates.slowest_decode_s == pytest.approx(0.030)
