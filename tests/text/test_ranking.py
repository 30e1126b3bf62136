"""The largest of many: the same as sorting them all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calculet_trio.text.ranking import likeliest, reaching, without_nan

ROWS = hnp.arrays(
    np.float32,
    st.integers(1, 3000),
    elements=st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0]),
    fill=st.sampled_from([-np.inf, 0.0, 2.5]),
)


def by_sorting(row: np.ndarray, count: int) -> list[int]:
    return sorted(range(row.size), key=lambda token: (-row[token], token))[:count]


@given(ROWS, st.integers(1, 60))
def test_likeliest_is_the_head_of_the_sorted_row(row: np.ndarray, count: int) -> None:
    assert likeliest(row, count).tolist() == by_sorting(row, count)


@pytest.mark.parametrize("size", [1, 127, 128, 129, 5000, 151_936])
@pytest.mark.parametrize("count", [1, 5, 40, 2048, 200_000])
def test_likeliest_at_real_sizes(size: int, count: int) -> None:
    row = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    before = row.copy()
    assert likeliest(row, count).tolist() == np.argsort(-row, kind="stable")[:count].tolist()
    assert np.array_equal(row, before)


@given(ROWS, st.integers(1, 60))
def test_reaching_is_the_same_set(row: np.ndarray, count: int) -> None:
    expected = by_sorting(row, count)
    assert reaching(row, row[expected[-1]], len(expected)).tolist() == sorted(expected)


def test_nan_is_the_least_of_all_and_a_clean_row_is_not_copied() -> None:
    row = np.array([1, np.nan, -np.inf], np.float32)
    assert without_nan(row).tolist() == [1, -np.inf, -np.inf]
    assert np.isnan(row[1])
    clean = np.zeros(3, np.float32)
    assert without_nan(clean) is clean
