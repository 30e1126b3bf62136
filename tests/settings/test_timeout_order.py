"""Timeouts in order: derived ones always are, configured ones are named with their values where they are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculet_trio.errors import ConfigurationRefused
from calculet_trio.settings.surface import TimeoutSettings
from calculet_trio.settings.time_span import span_s
from calculet_trio.settings.timeout_order import NEVER_S, TimeoutOrder


def order(*, longest_job_s=100.0, dma_s=None, stop_s=None, **settings):
    return TimeoutOrder(settings=TimeoutSettings(**settings), longest_job_s=longest_job_s, dma_s=dma_s, stop_s=stop_s)


def found(**what):
    return [str(each) for each in order(**what).disorders()]


@given(
    longest_job_s=st.floats(0.1, 1e6),
    streams_s=st.floats(0, 86_400),
    write_stall_s=st.floats(0.1, 3600),
    stop_s=st.floats(0, 1e6),
)
def test_what_is_derived_is_in_order(longest_job_s, streams_s, write_stall_s, stop_s):
    derived = order(longest_job_s=longest_job_s, streams_s=streams_s, write_stall_s=write_stall_s, stop_s=stop_s)
    assert list(derived.disorders()) == []
    assert longest_job_s < derived.watchdog_s < derived.drain_s
    assert derived.drain_s > max(streams_s + longest_job_s, write_stall_s)


@pytest.mark.parametrize(
    ("what", "shorter", "longer"),
    [
        ({"watchdog_s": 90.0}, "job_per_token_ms and the model's context) (100 s)", "timeouts.watchdog_s (90 s)"),
        ({"watchdog_s": 200.0, "drain_s": 200.0}, "timeouts.watchdog_s (200 s)", "timeouts.drain_s (200 s)"),
        ({"drain_s": 120.0}, "timeouts.watchdog_s (130 s)", "timeouts.drain_s (120 s)"),
        ({"drain_s": 150.0, "stop_s": 150.0}, "timeouts.drain_s (150 s)", "the unit's TimeoutStopSec (150 s)"),
        ({"dma_s": 60.0}, "the driver's dma_timeout_ms (60 s)", "timeouts.job_s (60 s)"),
        ({"dma_s": NEVER_S}, "the driver's dma_timeout_ms (never)", "timeouts.job_s (60 s)"),
    ],
)  # fmt: skip
def test_two_in_the_wrong_order_are_named_with_their_values(what, shorter, longer):
    [said] = found(**what)
    assert said.split(" must be less than ")[0].endswith(shorter)
    assert said.endswith(longer)
    with pytest.raises(ConfigurationRefused) as refused:
        order(**what).refuse_disorder()
    assert said in refused.value.message


def test_what_cannot_be_read_is_not_compared():
    assert found(drain_s=150.0) == []
    assert found(drain_s=150.0, stop_s=NEVER_S) == []
    order().refuse_disorder()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2min 30s", 150.0),
        ("150", 150.0),
        ("1h 2min 3s 4ms", 3723.004),
        (" 90s ", 90.0),
        ("1.5min", 90.0),
        ("3d12h", 302_400.0),
        ("infinity", float("inf")),
        ("", None),
        ("soon", None),
        ("5 parsecs", None),
        ("-5", None),
        ("1" * 100, None),
    ],
)
def test_time_spans_of_systemd(text, seconds):
    assert span_s(text) == seconds
