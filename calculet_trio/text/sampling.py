"""How the next token is chosen from a row of logits.

The order of things: logit bias, repetition penalty, frequency and presence penalties; temperature; top-k;
top-p over what top-k left; min-p. Each step is one of llama.cpp's or vLLM's, so that clients find what they
know; the exact order is vLLM's but for min-p.

Source: vLLM ``v1/sample/sampler.py``; llama.cpp ``common/sampling.cpp`` (order of bias and penalties);
Keskar et al. 2019 (repetition penalty); Holtzman et al. 2019 (top-p); Nguyen et al. 2024 (min-p).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Final

import numpy as np
import numpy.typing as npt

from calculet_trio.errors import InvalidRequest
from calculet_trio.text.params import SamplingParams
from calculet_trio.text.ranking import Ids, Row, likeliest, ranked, reaching, without_nan
from calculet_trio.text.rows import Head

GREEDY_BELOW_TEMPERATURE: Final = 1e-5
"""Taken for 0: nobody means the difference, and quotients would leave the range of float32."""

_NUCLEUS_STEPS: Final = (64, 2048)
"""How many of the likeliest tokens are ranked at first for top-p alone; most nuclei are smaller."""

_DRAW_GROUP: Final = 128


class Sampler:
    """One request's choice of tokens: same seed and logits, same tokens, whatever else runs.

    Args:
        params: ranges are checked by the surface, ids of the bias here.
        prompt: its token ids, which the repetition penalty counts as seen.
        vocab_size: ids are below this.
        generator: drawn from exactly once per token, never if greedy.

    Raises:
        InvalidRequest: a biased id is outside the vocabulary.
    """

    def __init__(
        self, params: SamplingParams, *, prompt: Sequence[int], vocab_size: int, generator: np.random.Generator
    ) -> None:
        self._params = params
        self._generator = generator
        self._bias = _Bias(params.logit_bias, vocab_size=vocab_size) if params.logit_bias else None
        penalized = params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
        self._penalties = _Penalties(params, prompt) if penalized else None
        self._is_greedy = params.temperature < GREEDY_BELOW_TEMPERATURE
        top_k = params.top_k if 0 < params.top_k < vocab_size else None
        self._ranked_tokens = 1 if self._is_greedy else top_k

    @property
    def head_tokens(self) -> int | None:
        """How many of a row's likeliest tokens its choice depends on; None where the whole row matters."""
        return self._ranked_tokens if self._bias is None and self._penalties is None else None

    def choose(self, row: Row) -> int | None:
        """The next token, or None if no logit of the row is a finite maximum (a fault of the device).

        NaN logits are never chosen. What is chosen counts as generated.

        Args:
            row: f32[vocab]; not modified.
        """
        adjusted = self._adjust(row)
        if self._ranked_tokens is None:
            token = self._choose_of_all(without_nan(adjusted))
        else:
            token = self.choose_of(Head(*ranked(adjusted, self._ranked_tokens)))
        if self._penalties is not None and token is not None:
            self._penalties.count(token)
        return token

    def choose_of(self, head: Head) -> int | None:
        """The token that `choose` would choose from the row whose ``head_tokens`` likeliest these are."""
        ids, peak = head.ids, head.values[0]
        if not isfinite(peak):
            return None
        if self._is_greedy:
            return int(ids[0])
        chance = self._generator.random()
        params = self._params
        weights = np.exp((head.values.astype(np.float64) - peak) / params.temperature)
        bounds = weights.cumsum()
        kept = _reached(bounds, params.top_p * bounds[-1]) if params.top_p < 1 else weights.size
        if params.min_p > 0:
            return self._pick_of(ids[:kept], weights[:kept], chance)
        return int(ids[_fallen_on(bounds[:kept], chance)])

    def _choose_of_all(self, row: Row) -> int | None:
        peak = row.max()
        if not isfinite(peak):
            return None
        chance = self._generator.random()
        params = self._params
        if params.top_p < 1:
            ids, weights = self._nucleus_of_all(row, peak)
        else:
            everything = self._weights(row, peak)
            if params.min_p == 0:
                return _pick_of_many(everything, chance)
            ids = np.flatnonzero(everything >= params.min_p)
            weights = everything[ids].astype(np.float64)
        return self._pick_of(ids, weights, chance)

    def _pick_of(self, ids: Ids, weights: npt.NDArray[np.floating], chance: float) -> int:
        if self._params.min_p > 0:
            weights = np.where(weights >= self._params.min_p, weights, 0.0)  # the likeliest token weighs 1
        return int(ids[_pick(weights, chance)])

    def _adjust(self, row: Row) -> Row:
        if self._bias is None and self._penalties is None:
            return row
        adjusted = row.copy()
        if self._bias is not None:
            self._bias.apply(adjusted)
        if self._penalties is not None:
            self._penalties.apply(adjusted)
        return adjusted

    def _weights(self, logits: npt.NDArray[np.floating], peak: np.float32) -> npt.NDArray[np.floating]:
        """Unnormalized probabilities; the likeliest token's is 1."""
        with np.errstate(over="ignore", under="ignore"):  # very unlikely: -inf, then zero
            return np.exp((logits - peak) / logits.dtype.type(self._params.temperature))

    def _nucleus_of_all(self, row: Row, peak: np.float32) -> tuple[Ids, npt.NDArray[np.floating]]:
        wanted = self._params.top_p * float(self._weights(row, peak).sum(dtype=np.float64))
        for count in _NUCLEUS_STEPS:
            ids = likeliest(row, count)
            weights = self._weights(row[ids].astype(np.float64), peak)
            if weights.sum() >= wanted:
                kept = _nucleus(weights, wanted)
                return ids[:kept], weights[:kept]
        ranked = np.sort(row)[::-1]  # much cheaper than ranking the ids
        kept = _nucleus(self._weights(ranked, peak), wanted)
        ids = reaching(row, ranked[kept - 1], kept)
        return ids, self._weights(row[ids].astype(np.float64), peak)


class _Bias:
    """What the client adds to single logits."""

    def __init__(self, bias: Mapping[int, float], *, vocab_size: int) -> None:
        outside = [token for token in bias if not 0 <= token < vocab_size]
        if outside:
            raise InvalidRequest(
                f"logit_bias names token {outside[0]}; ids are 0 to {vocab_size - 1}", param="logit_bias"
            )
        self._ids = np.fromiter(bias.keys(), np.intp, len(bias))
        self._added = np.fromiter(bias.values(), np.float32, len(bias))

    def apply(self, row: Row) -> None:
        row[self._ids] += self._added


class _Penalties:
    """Tokens seen so far, each once, and how often each was generated."""

    def __init__(self, params: SamplingParams, prompt: Iterable[int]) -> None:
        self._params = params
        self._places: dict[int, int] = {}
        self._ids = np.zeros(64, np.intp)
        self._counts = np.zeros(64, np.float32)
        if params.repetition_penalty != 1:  # the others count generated tokens only
            for token in dict.fromkeys(prompt):
                self._place(token)

    def count(self, token: int) -> None:
        place = self._place(token)  # may move the arrays
        self._counts[place] += 1

    def apply(self, row: Row) -> None:
        seen = len(self._places)
        ids, counts = self._ids[:seen], self._counts[:seen]
        params = self._params
        logits = row[ids]
        if params.repetition_penalty != 1:
            penalty = np.float32(params.repetition_penalty)
            with np.errstate(over="ignore"):
                logits = np.where(logits > 0, logits / penalty, logits * penalty)
        row[ids] = logits - counts * params.frequency_penalty - (counts > 0) * params.presence_penalty

    def _place(self, token: int) -> int:
        place = self._places.setdefault(token, len(self._places))
        if place == self._ids.size:  # at most log2(vocabulary) times
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token
        return place


def _nucleus(weights: npt.NDArray[np.floating], wanted: float) -> int:
    """Length of the shortest prefix that weighs ``wanted``; at least 1."""
    return _reached(weights.cumsum(dtype=np.float64), wanted)


def _reached(bounds: npt.NDArray[np.float64], wanted: float) -> int:
    """Of a running sum: how many terms it takes to reach ``wanted``; all of them where rounding put that beyond."""
    return min(int(bounds.searchsorted(wanted)) + 1, bounds.size)


def _pick(weights: npt.NDArray[np.floating], chance: float) -> int:
    """The index that ``chance`` (in [0, 1)) falls on; never one of weight zero."""
    return _fallen_on(weights.cumsum(dtype=np.float64), chance)


def _fallen_on(bounds: npt.NDArray[np.float64], chance: float) -> int:
    return _first_above(bounds, chance * bounds[-1])


def _pick_of_many(weights: npt.NDArray[np.floating], chance: float) -> int:
    """Like `_pick`, in two steps, because a running sum of a whole vocabulary costs more than its exponentials."""
    groups = weights.size // _DRAW_GROUP
    grouped = weights[: groups * _DRAW_GROUP].reshape(_DRAW_GROUP, groups)  # columns are groups
    rest = weights[groups * _DRAW_GROUP :]
    sums = np.append(grouped.sum(axis=0), rest.sum())
    bounds = np.cumsum(sums, dtype=np.float64)
    aim = chance * bounds[-1]
    group = _first_above(bounds, aim)
    within = aim - (bounds[group - 1] if group else 0.0)
    members = rest if group == groups else grouped[:, group]
    member = _first_above(np.cumsum(members, dtype=np.float64), within)
    return groups * _DRAW_GROUP + member if group == groups else member * groups + group


def _first_above(bounds: npt.NDArray[np.float64], aim: float) -> int:
    """The first index whose bound exceeds ``aim``; where rounding put ``aim`` at the end, the last real one."""
    last = bounds.searchsorted(bounds[-1])  # what follows it weighs nothing
    return int(min(bounds.searchsorted(aim, side="right"), last))
