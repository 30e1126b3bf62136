"""How the reply is to be made: the request's fields → `ReplyParams`, every range checked.

Source: API.md "Parameters"; reports B11–B19.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from calculet_trio.api.fields import Fields
from calculet_trio.api.settings import RequestLimits
from calculet_trio.text.params import ReplyParams, SamplingParams

TOP_K_MAX: Final = 1_000_000
"""Above every vocabulary; larger numbers are mistakes."""

PENALTY_MAX: Final = 10.0
"""A repetition penalty beyond this leaves nothing but never-seen tokens."""

BIAS_MAX: Final = 100.0
SEED_MIN: Final = -(2**63)
SEED_MAX: Final = 2**64 - 1


def reply_params(
    fields: Fields, *, limits: RequestLimits, vocab_size: int, top_logprobs: int | None, defaults: SamplingParams
) -> ReplyParams:
    """The request's `ReplyParams`.

    Args:
        fields: the body.
        limits: bounds on counts and lengths.
        vocab_size: token ids are below this.
        top_logprobs: as the endpoint's own fields ask for it.
        defaults: what an absent field means at this endpoint.

    Raises:
        InvalidRequest: a field is of the wrong type or out of range.
    """
    return ReplyParams(
        sampling=_sampling_params(fields, limits, vocab_size, defaults),
        stop=_stops(fields, limits),
        top_logprobs=top_logprobs,
        ignore_eos=fields.boolean("ignore_eos"),
    )


def _sampling_params(
    fields: Fields, limits: RequestLimits, vocab_size: int, defaults: SamplingParams
) -> SamplingParams:
    top_k = fields.integer("top_k", minimum=-1, maximum=TOP_K_MAX)
    # llama-server says repeat_penalty, vLLM repetition_penalty.
    penalty = "repetition_penalty" if fields.raw("repetition_penalty") is not None else "repeat_penalty"
    seed = fields.integer("seed", minimum=SEED_MIN, maximum=SEED_MAX)
    return SamplingParams(
        temperature=fields.number("temperature", defaults.temperature, minimum=0, maximum=2),
        top_p=fields.number("top_p", defaults.top_p, minimum=0, maximum=1, above=True),
        top_k=defaults.top_k if top_k is None else max(0, top_k),
        min_p=fields.number("min_p", defaults.min_p, minimum=0, maximum=1),
        repetition_penalty=fields.number(
            penalty, defaults.repetition_penalty, minimum=0, maximum=PENALTY_MAX, above=True
        ),
        presence_penalty=fields.number("presence_penalty", defaults.presence_penalty, minimum=-2, maximum=2),
        frequency_penalty=fields.number("frequency_penalty", defaults.frequency_penalty, minimum=-2, maximum=2),
        logit_bias=_logit_bias(fields, limits, vocab_size),
        seed=None if seed is None else seed % 2**64,
    )


def _stops(fields: Fields, limits: RequestLimits) -> tuple[str, ...]:
    value = fields.raw("stop")
    stops = [value] if isinstance(value, str) else fields.array("stop", maximum=limits.stops) or []
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise fields.refuse("stop", "must be a string or an array of strings, none of them empty")
        if len(stop.encode()) > limits.stop_bytes:
            raise fields.refuse("stop", f"has a string of more than {limits.stop_bytes} bytes")
    return tuple(stops)


def _logit_bias(fields: Fields, limits: RequestLimits, vocab_size: int) -> Mapping[int, float]:
    entries = fields.object("logit_bias", maximum=limits.logit_bias_entries) or {}
    biases: dict[int, float] = {}
    for key, bias in entries.items():
        # isdigit() alone also takes other scripts' digits, and a long key would be an expensive int().
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < vocab_size):
            raise fields.refuse("logit_bias", f"has the key {key[:32]!r}; keys are token ids below {vocab_size}")
        if not isinstance(bias, int | float) or isinstance(bias, bool) or not -BIAS_MAX <= bias <= BIAS_MAX:
            raise fields.refuse("logit_bias", f"must map to numbers between -{BIAS_MAX:g} and {BIAS_MAX:g}")
        biases[int(key)] = float(bias)
    return biases


def chat_top_logprobs(fields: Fields, limits: RequestLimits) -> int | None:
    """Chat's pair of ``logprobs`` (a boolean) and ``top_logprobs`` (how many alternatives)."""
    top = fields.integer("top_logprobs", minimum=0, maximum=limits.top_logprobs)
    if fields.boolean("logprobs"):
        return top or 0
    if top is not None:
        raise fields.refuse("top_logprobs", "needs logprobs to be true")
    return None


def completion_top_logprobs(fields: Fields, limits: RequestLimits) -> int | None:
    """Completions' ``logprobs``: a number, of which 0 still asks for the chosen token's."""
    return fields.integer("logprobs", minimum=0, maximum=limits.top_logprobs)


def max_new_tokens(fields: Fields, *names: str, context_tokens: int) -> int | None:
    """The first of ``names`` that is given, clamped to the context: no larger reply can exist."""
    asked = [fields.integer(name, minimum=1) for name in names]  # all are checked, though one wins
    given = [tokens for tokens in asked if tokens is not None]
    return min(given[0], context_tokens) if given else None
