"""Log-probabilities of a row of logits, as OpenAI's ``logprobs`` shows them.

They are the model's own: before bias, penalties, temperature and filters, so that they mean the same
whatever the client samples with.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from calculet_trio.text.params import TokenLogprob, TopLogprob
from calculet_trio.text.ranking import Row, likeliest, without_nan
from calculet_trio.text.tokenizer import Tokenizer

LOGPROB_MIN: Final = -9999.0
"""Stands for a probability of zero: JSON has no -Infinity. OpenAI's own figure for a very unlikely token."""


def token_logprob(row: Row, token: int, *, top: int, tokenizer: Tokenizer) -> TokenLogprob:
    """The entry of ``token``, which was chosen from ``row``.

    Args:
        row: f32[vocab] with a finite maximum; NaN counts as -inf; not modified.
        token: the chosen id.
        top: how many of the likeliest tokens to list; 0 for none.
        tokenizer: knows the tokens' bytes.
    """
    row = without_nan(row)
    peak = row.max()
    with np.errstate(over="ignore", under="ignore"):
        total = np.exp(row - peak).sum(dtype=np.float64)
    ids = likeliest(row, top) if top else np.empty(0, np.intp)

    def logprob(token: int) -> float:
        return max(float(np.float64(row[token]) - peak - np.log(total)), LOGPROB_MIN)

    listed = tuple(TopLogprob(token, tokenizer.token_bytes(token), logprob(token)) for token in ids.tolist())
    return TokenLogprob(token, tokenizer.token_bytes(token), logprob(token), listed)
