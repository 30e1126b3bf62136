"""The choice of tokens against a reference that sorts everything, and against the probabilities meant."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from calculet_trio.errors import InvalidRequest
from calculet_trio.text.params import SamplingParams
from calculet_trio.text.sampling import Sampler

INF = float("inf")
NAN = float("nan")


def sampler(params: SamplingParams, *, prompt: tuple[int, ...] = (), vocab_size: int, seed: int = 0) -> Sampler:
    return Sampler(params, prompt=prompt, vocab_size=vocab_size, generator=np.random.default_rng(seed))


def row_of(*logits: float) -> np.ndarray:
    return np.array(logits, np.float32)


# ---- the reference: everything sorted, in double precision ------------------------------------------


def adjusted(row: np.ndarray, params: SamplingParams, prompt: list[int], generated: list[int]) -> np.ndarray:
    logits = np.where(np.isnan(row), -INF, row).astype(np.float64)
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    for token in set(prompt) | set(generated):
        scale = params.repetition_penalty
        logits[token] = logits[token] / scale if logits[token] > 0 else logits[token] * scale
    for token in set(generated):
        logits[token] -= params.frequency_penalty * generated.count(token) + params.presence_penalty
    return logits


def probabilities(logits: np.ndarray, params: SamplingParams) -> tuple[np.ndarray, float]:
    """The distribution meant, and how close the nearest cut was to falling elsewhere."""
    weights = np.exp((logits - logits.max()) / params.temperature)
    order = np.argsort(-logits, kind="stable")
    margins = [1.0]
    if 0 < params.top_k < order.size:
        order = order[: params.top_k]
    if params.top_p < 1:
        mass = np.cumsum(weights[order]) / weights[order].sum()
        margins += [float(np.abs(mass - params.top_p).min())]
        order = order[: int(np.searchsorted(mass, params.top_p)) + 1]
    margins += [float(np.abs(weights[order] - params.min_p).min())] if params.min_p else []
    order = order[weights[order] >= params.min_p]
    result = np.zeros(logits.size)
    result[order] = weights[order] / weights[order].sum()
    return result, min(margins)


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 0.8, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 3, 40, 10_000]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
)


class Fixed:
    """Stands in for a generator: the chance is chosen by the test."""

    def __init__(self, chance: float) -> None:
        self.chance = chance

    def random(self) -> float:
        return self.chance


@given(PARAMS, st.integers(0, 2**32), st.sampled_from([5, 130, 1000, 20_000]), st.sampled_from([0.5, 3.0]))
def test_only_what_the_filters_leave_is_chosen(params: SamplingParams, seed: int, size: int, spread: float) -> None:
    row = (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)
    before = row.copy()
    expected, margin = probabilities(row.astype(np.float64), params)
    assume(margin > 1e-5)  # there rounding decides
    for chance in (0.0, 0.3, 0.77, 0.999999, 1 - 2**-53):
        chosen = Sampler(params, prompt=(), vocab_size=size, generator=Fixed(chance)).choose(row)
        assert expected[chosen] > 0
    assert np.array_equal(row, before), "the row is the engine's"


@given(
    PARAMS, st.lists(st.sampled_from([-INF, NAN, -2.0, 0.0, 1.0, 3.0]), min_size=1, max_size=300), st.floats(0, 0.9999)
)
def test_ties_masks_and_nan(params: SamplingParams, logits: list[float], chance: float) -> None:
    row = row_of(*logits)
    chosen = Sampler(params, prompt=(), vocab_size=row.size, generator=Fixed(chance)).choose(row)
    finite = np.isfinite(row)
    if not finite.any():
        assert chosen is None
        return
    expected, margin = probabilities(np.where(finite, row, -INF).astype(np.float64), params)
    assume(margin > 1e-5)
    assert expected[chosen] > 0


@pytest.mark.parametrize(
    ("size", "params"),
    [
        (6, SamplingParams()),
        (1000, SamplingParams(temperature=0.7)),
        (6, SamplingParams(temperature=0.5, top_k=3)),
        (1000, SamplingParams(temperature=0.8, top_k=40, top_p=0.95)),
        (1000, SamplingParams(top_p=0.6)),
        (3000, SamplingParams(temperature=2.0, top_p=0.97)),
        (1000, SamplingParams(min_p=0.1)),
        (6, SamplingParams(top_p=0.9, min_p=0.2)),
    ],
)
def test_tokens_come_as_often_as_they_should(size: int, params: SamplingParams) -> None:
    draws = 8_000
    row = (np.random.default_rng(7).standard_normal(size) * 2).astype(np.float32)
    expected, _ = probabilities(row.astype(np.float64), params)
    choice = sampler(params, vocab_size=size, seed=11)
    counts = np.bincount([choice.choose(row) for _ in range(draws)], minlength=size)
    # Pearson's statistic over the likely tokens, the rest taken together; its mean is the number of classes - 1
    likely = np.flatnonzero(expected * draws >= 5)
    seen = np.append(counts[likely], draws - counts[likely].sum())
    meant = np.append(expected[likely] * draws, max(draws - expected[likely].sum() * draws, 1e-9))
    assert counts[expected == 0].sum() == 0
    if meant[-1] < 5:
        seen, meant = seen[:-1], meant[:-1]
    statistic = float(((seen - meant) ** 2 / meant).sum())
    classes = seen.size
    assert statistic < classes + 5 * np.sqrt(2 * classes)


@pytest.mark.parametrize("seed", range(40))
def test_the_last_chance_falls_on_a_possible_token(seed: int) -> None:
    row = (np.random.default_rng(seed).standard_normal(1000) * 2).astype(np.float32)
    row[-40:] = -INF
    for params in (SamplingParams(), SamplingParams(top_p=0.9999), SamplingParams(top_k=990)):
        chosen = Sampler(params, prompt=(), vocab_size=1000, generator=Fixed(1 - 2**-53)).choose(row)
        assert np.isfinite(row[chosen])


def test_greedy_is_the_likeliest_and_draws_nothing() -> None:
    row = row_of(1, 5, 5, 2)
    for temperature in (0.0, 1e-40, 1e-6):
        greedy = Sampler(SamplingParams(temperature=temperature), prompt=(), vocab_size=4, generator=None)
        assert greedy.choose(row) == 1


def test_extreme_logits_and_temperatures_give_a_token() -> None:
    row = row_of(3e38, -3e38, 0)
    for temperature in (1e-5, 1e-3, 2.0):
        for extra in ({}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}):
            assert sampler(SamplingParams(temperature=temperature, **extra), vocab_size=3).choose(row) == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("logits", [(NAN, NAN), (-INF, -INF), (NAN, -INF), (0.0, INF), (NAN, INF)])
def test_a_row_that_is_no_distribution_is_a_fault(temperature: float, logits: tuple[float, ...]) -> None:
    params = SamplingParams(temperature=temperature, top_k=1, logit_bias={0: 100.0})
    assert sampler(params, vocab_size=2).choose(row_of(*logits)) is None


def test_nan_beside_a_token_is_never_chosen() -> None:
    row = row_of(0.0, -INF, -INF, NAN, -INF)
    for params in (SamplingParams(top_k=1), SamplingParams(temperature=0), SamplingParams(), SamplingParams(top_p=0.5)):
        assert sampler(params, vocab_size=5).choose(row) == 0


# ---- bias and penalties -----------------------------------------------------------------------------


@given(
    st.builds(
        SamplingParams,
        temperature=st.just(0.0),
        repetition_penalty=st.sampled_from([0.5, 1.0, 1.3]),
        presence_penalty=st.sampled_from([-2.0, 0.0, 0.7]),
        frequency_penalty=st.sampled_from([-1.0, 0.0, 0.9]),
        logit_bias=st.dictionaries(st.integers(0, 6), st.sampled_from([-100.0, -1.0, 2.0])),
    ),
    st.lists(st.integers(0, 6), max_size=8),
    st.integers(0, 2**32),
)
def test_bias_and_penalties_against_their_definition(params: SamplingParams, prompt: list[int], seed: int) -> None:
    rows = np.random.default_rng(seed).standard_normal((12, 7)).astype(np.float32) * 3
    choice = sampler(params, prompt=tuple(prompt), vocab_size=7)
    generated: list[int] = []
    for row in rows:
        logits = adjusted(row, params, prompt, generated)
        best, second = np.sort(logits)[::-1][:2]
        assume(best - second > 1e-4)
        before = row.copy()
        token = choice.choose(row)
        assert token == logits.argmax()
        assert np.array_equal(row, before), "the row is the engine's"
        generated.append(token)


def test_many_distinct_tokens_are_remembered() -> None:
    size = 500
    choice = sampler(SamplingParams(temperature=0, presence_penalty=2.0), vocab_size=size)
    row = -np.arange(size, dtype=np.float32) / 1000
    assert [choice.choose(row) for _ in range(size)] == list(range(size))


@pytest.mark.parametrize("token", [-1, 7, 10**12])
def test_a_bias_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(InvalidRequest, match=rf"token {token}; ids are 0 to 6") as caught:
        sampler(SamplingParams(logit_bias={token: 1.0}), vocab_size=7)
    assert caught.value.param == "logit_bias"


# ---- seeds ------------------------------------------------------------------------------------------


@given(PARAMS, st.integers(0, 2**63))
def test_same_seed_same_tokens_whatever_else_runs(params: SamplingParams, seed: int) -> None:
    rows = np.random.default_rng(1).standard_normal((20, 50)).astype(np.float32)

    def tokens(*, other: Any = None) -> list[int | None]:
        choice = sampler(params, vocab_size=50, seed=seed)
        chosen = []
        for row in rows:
            chosen.append(choice.choose(row))
            if other is not None:
                other.choose(row)
        return chosen

    assert tokens() == tokens(other=sampler(SamplingParams(), vocab_size=50, seed=3))


def test_one_chance_a_token() -> None:
    generator = np.random.default_rng(5)
    choice = Sampler(SamplingParams(top_p=0.9), prompt=(), vocab_size=50, generator=generator)
    for row in np.random.default_rng(1).standard_normal((9, 50)).astype(np.float32):
        choice.choose(row)
    fresh = np.random.default_rng(5)
    fresh.random(9)
    assert generator.random() == fresh.random()
