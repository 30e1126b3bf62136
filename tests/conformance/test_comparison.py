"""The comparison of paired blocks: equal passes, worse fails, wide says nothing; the interval covers the truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calculet_trio.conformance.comparison import Foursome, Interval, alternate, at_least, at_most, interval
from calculet_trio.conformance.gate import GateVerdict


def measured(*, ratio: float, noise: float, foursomes: int = 6, seed: int = 1, drift: float = 0.0):
    """Blocks of a baseline of 20 ms and a candidate ``ratio`` times as slow, on a machine that drifts."""
    rng = np.random.default_rng(seed)
    ran = 0

    def run(arm: str) -> float:
        nonlocal ran
        ran += 1
        slower = ratio if arm == "candidate" else 1.0
        return float(0.02 * slower * np.exp(drift * ran + noise * rng.standard_normal()))

    return interval(alternate(run, foursomes), lambda block: block)


def test_equal_passes_worse_fails_and_wide_says_nothing():
    assert at_most("P50", measured(ratio=1.0, noise=0.002), 1.03).verdict is GateVerdict.PASS
    assert at_most("P50", measured(ratio=1.1, noise=0.002), 1.03).verdict is GateVerdict.FAIL
    assert at_most("P50", measured(ratio=1.0, noise=0.3), 1.03).verdict is GateVerdict.INCONCLUSIVE
    assert at_least("aggregate", measured(ratio=1.2, noise=0.002), 1.1).verdict is GateVerdict.PASS
    assert at_least("aggregate", measured(ratio=1.05, noise=0.002), 1.1).verdict is GateVerdict.FAIL
    assert at_least("aggregate", measured(ratio=1.2, noise=0.3), 1.1).verdict is GateVerdict.INCONCLUSIVE


def test_an_even_drift_of_the_machine_is_nobodys():
    found = measured(ratio=1.0, noise=0.0, drift=0.05)
    assert (found.low, found.high) == (pytest.approx(1.0), pytest.approx(1.0))


def test_blocks_run_in_the_order_a_b_b_a():
    ran = []
    [foursome] = alternate(lambda arm: ran.append(arm) or len(ran), 1)
    assert ran == ["baseline", "candidate", "candidate", "baseline"]
    assert foursome == Foursome((1, 4), (2, 3))


def test_students_interval_is_the_textbooks():
    logs = (0.01, 0.03, -0.02, 0.02)
    blocks = [Foursome((1.0, 1.0), (float(np.exp(x)), float(np.exp(x)))) for x in logs]
    found = interval(blocks, lambda block: block)
    reach = 3.182 * np.std(logs, ddof=1) / 2
    assert np.log([found.ratio, found.low, found.high]) == pytest.approx([0.01, 0.01 - reach, 0.01 + reach])
    assert str(found) == "+1.0% (95 %: -2.4% to +4.5%, n = 4)"


def test_two_foursomes_are_too_few_and_a_measure_must_be_positive():
    with pytest.raises(ValueError, match="an interval needs 3"):
        measured(ratio=1.0, noise=0.1, foursomes=2)
    with pytest.raises(ValueError, match=r"domain|positive"):
        measured(ratio=0.0, noise=0.0)


@settings(max_examples=12, deadline=None)
@given(ratio=st.floats(0.5, 2.0), noise=st.floats(0.001, 0.5), foursomes=st.integers(3, 40), seed=st.integers(0, 2**32))
def test_the_interval_covers_the_truth_as_often_as_it_says(ratio, noise, foursomes, seed):
    runs = 300
    found = (measured(ratio=ratio, noise=noise, foursomes=foursomes, seed=seed + run) for run in range(runs))
    covered = sum(each.low <= ratio <= each.high for each in found)
    # 95 % of 300 is 285, with a standard deviation of 3.8: five of them below is a broken interval, not bad luck.
    assert covered >= 285 - 19


def test_an_equal_pair_of_blocks_has_an_interval_without_width():
    blocks = [Foursome((2.0, 2.0), (2.0, 2.0))] * 3
    assert interval(blocks, lambda block: block) == Interval(1.0, 1.0, 1.0, 3)
