"""Log-probabilities in OpenAI's two shapes, chat's and the older one of completions, as finite numbers.

Source: OpenAI API reference; reports B13, B15.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from calculet_trio.core.events import FaultReason
from calculet_trio.errors import GenerationFailed
from calculet_trio.text.params import TokenLogprob, TopLogprob

LEAST_LOGPROB: Final = -9999.0
"""What a probability of zero is said as: JSON has no infinity, and OpenAI uses this number."""


def _finite(entry: TokenLogprob | TopLogprob) -> float:
    if math.isnan(entry.logprob) or entry.logprob == math.inf:
        raise GenerationFailed(FaultReason.BAD_LOGITS.value, retryable=False)
    return max(entry.logprob, LEAST_LOGPROB)


def _shown(text_bytes: bytes) -> str:
    return text_bytes.decode(errors="replace")


def _entry(entry: TokenLogprob | TopLogprob) -> dict[str, Any]:
    return {"token": _shown(entry.text_bytes), "logprob": _finite(entry), "bytes": list(entry.text_bytes)}


def _sayable(top: Sequence[TopLogprob]) -> list[TopLogprob]:
    return [one for one in top if not math.isnan(one.logprob) and one.logprob != math.inf]


def chat_logprobs(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Chat's ``logprobs``; an alternative that is no number is left out, a chosen token's is a fault."""
    content = [{**_entry(e), "top_logprobs": [_entry(one) for one in _sayable(e.top)]} for e in entries]
    return {"content": content, "refusal": None}


def completion_logprobs(entries: Sequence[TokenLogprob], *, text_offset: int) -> dict[str, Any]:
    """Completions' older form: parallel arrays; the chosen token is always among ``top_logprobs``."""
    offsets, tops = [], []
    for entry in entries:
        offsets.append(text_offset)
        text_offset += len(_shown(entry.text_bytes))
        top = {_shown(one.text_bytes): _finite(one) for one in _sayable(entry.top)}
        tops.append({**top, _shown(entry.text_bytes): _finite(entry)})
    return {
        "tokens": [_shown(entry.text_bytes) for entry in entries],
        "token_logprobs": [_finite(entry) for entry in entries],
        "top_logprobs": tops,
        "text_offset": offsets,
    }
