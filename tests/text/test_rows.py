"""Rows as devices give them: the same choice from bfloat16 bits, or from named candidates, as from the whole row."""

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calculet_trio.text.byte_tokenizer import ByteTokenizer
from calculet_trio.text.params import ReplyParams, SamplingParams
from calculet_trio.text.ranking import likeliest
from calculet_trio.text.reply import ReplyStream, Step
from calculet_trio.text.rows import CandidateRow, head_of_bfloat16, head_of_candidates, widened

INF = float("inf")
TOKENIZER = ByteTokenizer([])
SIZE = TOKENIZER.vocab_size


def narrowed(row: np.ndarray) -> np.ndarray:
    """The bits of bfloat16 numbers, cut off."""
    return (np.asarray(row, np.float32).view(np.uint32) >> 16).astype(np.uint16)


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 0.8, 1.7]),
    top_k=st.sampled_from([0, 1, 3, 40, 10_000]),
    top_p=st.sampled_from([0.05, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.3]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
    logit_bias=st.sampled_from([{}, {}, {7: 5.0}]),
    seed=st.integers(0, 2**32),
)
LOGITS = st.sampled_from([-INF, float("nan"), -2.0, -0.0, 0.0, 0.5, 1.0, 3.0, 7.25, INF])
ROWS = st.one_of(
    hnp.arrays(np.uint16, SIZE, elements=st.integers(0, 2**16 - 1)),
    hnp.arrays(np.float32, SIZE, elements=LOGITS, fill=st.sampled_from([-1.0, 0.0, 0.5])).map(narrowed),
    st.integers(0, 2**32).map(lambda seed: narrowed(np.random.default_rng(seed).standard_normal(SIZE) * 3)),
)


def named(row: np.ndarray, count: int, generator: np.random.Generator) -> CandidateRow:
    """A device's candidates: of equals any, in any order."""
    order = generator.permutation(row.size)
    order = order[np.argsort(-np.where(np.isnan(row), -INF, row)[order], kind="stable")][:count]
    generator.shuffle(order)
    return CandidateRow(order.astype(np.int32), row[order])


def replied(params: SamplingParams, rows: list[np.ndarray], candidates: list[CandidateRow | None]) -> list[Step]:
    stream = ReplyStream(TOKENIZER, ReplyParams(sampling=params, ignore_eos=True), prompt=[1, 2])
    steps = []
    for row, of_it in zip(rows, candidates, strict=True):
        steps.append(stream.accept(row, of_it))
        if steps[-1].failed:
            break
    return steps


@given(PARAMS, st.lists(ROWS, min_size=1, max_size=4))
def test_bits_say_what_the_floats_say(params: SamplingParams, rows: list[np.ndarray]) -> None:
    before = [row.copy() for row in rows]
    nothing = [None] * len(rows)
    assert replied(params, rows, nothing) == replied(params, [widened(row) for row in rows], nothing)
    assert all(np.array_equal(*pair) for pair in zip(rows, before, strict=True)), "the rows are the engine's"


@given(PARAMS, st.lists(ROWS, min_size=1, max_size=4), st.sampled_from([1, 8, 64, SIZE]), st.booleans())
def test_candidates_say_what_the_whole_rows_say(
    params: SamplingParams, rows: list[np.ndarray], count: int, is_narrow: bool
) -> None:
    whole = [widened(row) for row in rows]
    generator = np.random.default_rng(1)
    of_them = [named(row, count, generator) for row in whole]
    assert replied(params, rows if is_narrow else whole, of_them) == replied(params, whole, [None] * len(rows))


@given(ROWS, st.sampled_from([1, 2, 8]), st.sampled_from([4, 8, 64, SIZE]))
def test_a_head_is_the_likeliest_or_there_is_none(bits: np.ndarray, count: int, candidates: int) -> None:
    row = widened(bits)
    expected = likeliest(row, count).tolist()
    for head in (
        head_of_bfloat16(bits, count),
        head_of_candidates(named(row, candidates, np.random.default_rng(0)), count, vocab_size=SIZE),
    ):
        event("told" if head is not None else "not told")
        if head is not None:
            assert head.ids.tolist() == expected
            assert head.values.tolist() == row[expected].tolist()


@pytest.mark.parametrize("size", [129, 5000, 151_936])
@pytest.mark.parametrize("count", [1, 40])
def test_what_a_model_says_is_told_without_the_whole_row(size: int, count: int) -> None:
    row = np.random.default_rng(size).standard_normal(size).astype(np.float32) * 3
    bits = narrowed(row)
    head = head_of_bfloat16(bits, count)
    assert head is not None
    assert head.ids.tolist() == np.argsort(-widened(bits), kind="stable")[:count].tolist()
    head = head_of_candidates(named(row, 64, np.random.default_rng(0)), count, vocab_size=size)
    assert head is not None
    assert head.ids.tolist() == np.argsort(-row, kind="stable")[:count].tolist()


def test_candidates_beyond_the_vocabulary_or_before_it_are_no_tokens() -> None:
    row = CandidateRow(np.array([9, -1, 3, 2, 1], np.int32), np.array([9, 8, 5, 5, 1], np.float32))
    head = head_of_candidates(row, 2, vocab_size=9)
    assert head is not None
    assert (head.ids.tolist(), head.values.tolist()) == ([2, 3], [5, 5])
    assert head_of_candidates(row, 3, vocab_size=9) is None, "another may be as likely as the least"


def test_floats_are_not_copied() -> None:
    row = np.zeros(5, np.float32)
    assert widened(row) is row
