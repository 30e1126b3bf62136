"""Log-probabilities: the model's own, with true bytes, and nothing that JSON cannot hold."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calculet_trio.text.byte_tokenizer import ByteTokenizer
from calculet_trio.text.logprobs import LOGPROB_MIN, token_logprob

TOKENIZER = ByteTokenizer([b"\xf0\x9f"])
ROWS = hnp.arrays(np.float32, 260, elements=st.floats(-50, 50, width=32))


@given(ROWS, st.integers(0, 259), st.integers(0, 20))
def test_they_are_the_softmax_of_the_row(row: np.ndarray, token: int, top: int) -> None:
    entry = token_logprob(row, token, top=top, tokenizer=TOKENIZER)
    expected = row.astype(np.float64) - np.log(np.exp(row.astype(np.float64)).sum())
    assert np.isclose(entry.logprob, expected[token], atol=1e-4)
    assert [each.token for each in entry.top] == np.argsort(-row, kind="stable")[:top].tolist()
    assert np.allclose([each.logprob for each in entry.top], expected[[each.token for each in entry.top]], atol=1e-4)


def test_impossible_tokens_have_a_finite_figure() -> None:
    row = np.full(260, -np.inf, np.float32)
    row[[0, 3]] = 0.0, np.nan
    entry = token_logprob(row, 0, top=5, tokenizer=TOKENIZER)
    assert entry.logprob == 0.0
    assert [each.logprob for each in entry.top] == [0.0, *[LOGPROB_MIN] * 4]
    json.dumps([each.logprob for each in entry.top], allow_nan=False)


def test_bytes_are_the_tokens_own() -> None:
    row = np.zeros(260, np.float32)
    row[259] = 1
    entry = token_logprob(row, 259, top=1, tokenizer=TOKENIZER)
    assert entry.text_bytes == entry.top[0].text_bytes == b"\xf0\x9f"


def test_the_row_is_left_alone() -> None:
    row = np.array([np.nan, *range(259)], np.float32)
    before = row.copy()
    token_logprob(row, 5, top=3, tokenizer=TOKENIZER)
    assert np.array_equal(row, before, equal_nan=True)
