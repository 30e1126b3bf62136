"""What a client may ask of a reply, validated before it comes here.

Source: API.md "Parameters"; ranges are checked by ``api.schemas``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class SamplingParams:
    """How the next token is chosen. The defaults are OpenAI's.

    Args:
        temperature: 0 is greedy.
        top_p: in (0, 1]; 1 is off.
        top_k: 0 is off.
        min_p: in [0, 1]; 0 is off.
        repetition_penalty: > 0; 1 is off. Divides (multiplies) positive (negative) logits of seen tokens.
        presence_penalty, frequency_penalty: in [-2, 2]; 0 is off. Count generated tokens only.
        logit_bias: token id → added to its logit, in [-100, 100].
        seed: same seed, same text, whatever else runs; None draws one.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = attrs.field(factory=dict)
    seed: int | None = None


@attrs.frozen(kw_only=True)
class ReplyParams:
    """How the reply is made and cut.

    Args:
        sampling: see `SamplingParams`.
        stop: strings that end the reply and are never shown.
        top_logprobs: None: no logprobs; 0: the chosen token's only; k: also the k likeliest.
        ignore_eos: go on past the model's end tokens (llama-server's field, used by benchmarks).
    """

    sampling: SamplingParams = attrs.field(factory=SamplingParams)
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None
    ignore_eos: bool = False


# ---- prompts ------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ChatPrompt:
    """A conversation for the model's chat template; contents are plain strings by now."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    template_kwargs: Mapping[str, Any] = attrs.field(factory=dict)
    add_generation_prompt: bool = True


@attrs.frozen
class TextPrompt:
    """Text to be tokenized as it is; special tokens in it are text."""

    text: str


@attrs.frozen
class TokenPrompt:
    """Token ids; checked against the vocabulary when the prompt is prepared."""

    ids: tuple[int, ...]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


# ---- outputs ------------------------------------------------------------------------------------


@attrs.frozen
class TopLogprob:
    """One alternative: its true bytes and natural-log probability."""

    token: int
    text_bytes: bytes
    logprob: float


@attrs.frozen
class TokenLogprob:
    """The chosen token, its true bytes and probability, and the likeliest alternatives."""

    token: int
    text_bytes: bytes
    logprob: float
    top: tuple[TopLogprob, ...]


@attrs.frozen
class Output:
    """What one or more tokens added to the reply.

    Args:
        text: text that may be shown now; whole characters only; may be empty while something is held back.
        logprobs: entries of the tokens that ``text`` shows, in order; empty unless asked for.
    """

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
