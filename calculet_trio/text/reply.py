"""The text side of one reply: from rows of logits to what its client may be shown.

A `ReplyStream` is made when the prompt is known and then used by one thread at a time: the engine's, which
calls `ReplyStream.accept` with each row, and whoever ends the reply, which calls `ReplyStream.finish`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import cast

import attrs
import numpy as np

from calculet_trio.text.detokenizer import Detokenizer
from calculet_trio.text.logprobs import token_logprob
from calculet_trio.text.params import Output, ReplyParams, TokenLogprob
from calculet_trio.text.ranking import Row
from calculet_trio.text.rows import BFloat16Row, CandidateRow, head_of_bfloat16, head_of_candidates, widened
from calculet_trio.text.sampling import Sampler
from calculet_trio.text.stops import StopMatcher
from calculet_trio.text.tokenizer import Tokenizer

_SEED_BITS = 64  # numpy wants seeds that are not negative


@attrs.frozen
class Step:
    """What one row came to.

    Args:
        token: the sampled id; None if the row was no distribution.
        stopped: the reply is at its natural end: an end token, or a stop string.
        output: what to show; its text may be empty.
        failed: the row was no distribution: every logit NaN or -inf, or one of them +inf.
    """

    token: int | None
    stopped: bool
    output: Output
    failed: bool = False


class ReplyStream:
    """Samples, cuts and shows one reply.

    The outputs joined are the reply, however its bytes are split into tokens: up to the first stop string
    or end token, without special tokens, in whole characters. Each token of which something is shown has its
    log-probabilities in the output that first shows it. A character whose rest never came ends as U+FFFD.

    Args:
        tokenizer: the model's.
        params: validated by the surface.
        prompt: token ids, for the repetition penalty.

    Raises:
        InvalidRequest: the logit bias names a token outside the vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer, params: ReplyParams, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._params = params
        seed = params.sampling.seed
        self._sampler = Sampler(
            params.sampling,
            prompt=prompt,
            vocab_size=tokenizer.vocab_size,
            generator=np.random.default_rng(None if seed is None else seed % 2**_SEED_BITS),
        )
        self._stops = StopMatcher(params.stop)
        self._detokenizer = Detokenizer()
        self._entries: deque[tuple[int, TokenLogprob]] = deque()  # with the place of the token's first byte
        self._sampled_bytes = 0  # of tokens that are not hidden
        self._released_bytes = 0  # of those, what cannot belong to a stop
        self._ended = False

    def accept(self, row: Row | BFloat16Row, candidates: CandidateRow | None = None) -> Step:
        """Sample the next token and say what it adds.

        Args:
            row: [vocab or more], a view into the engine's buffer; read before this returns, not modified.
            candidates: its largest logits, where the device has named them; they change nothing but the effort.
        """
        assert not self._ended, "the reply has ended"
        row = row[: self._tokenizer.vocab_size]
        if self._params.top_logprobs is not None:
            row = widened(row)  # once, for both
        token = self._choose(row, candidates)
        if token is None:
            self._ended = True
            return Step(None, stopped=False, output=Output(""), failed=True)
        ends = self._tokenizer.is_end(token)
        hidden = ends or self._tokenizer.is_special(token)
        piece = self._tokenizer.token_bytes(token)
        if not hidden:
            if piece and self._params.top_logprobs is not None:
                entry = token_logprob(widened(row), token, top=self._params.top_logprobs, tokenizer=self._tokenizer)
                self._entries.append((self._sampled_bytes, entry))
            self._sampled_bytes += len(piece)
        released = self._stops.feed(piece, hidden=hidden)
        stopped = self._stops.matched or (ends and not self._params.ignore_eos)
        return Step(token, stopped, self._end(released) if stopped else self._show(released))

    def _choose(self, row: Row | BFloat16Row, candidates: CandidateRow | None) -> int | None:
        """From as little of the row as tells."""
        count = self._sampler.head_tokens
        head = None
        if count is not None and candidates is not None:
            head = head_of_candidates(candidates, count, vocab_size=row.size)
        if count is not None and head is None and row.dtype == np.uint16:
            head = head_of_bfloat16(cast("BFloat16Row", row), count)
        return self._sampler.choose(widened(row)) if head is None else self._sampler.choose_of(head)

    def finish(self) -> Output | None:
        """What was held back, for a reply that ends without a stop (length, deadline); None if nothing was."""
        if self._ended:
            return None
        output = self._end(b"")
        return output if output.text else None

    def _end(self, released: bytes) -> Output:
        self._ended = True
        return self._show(released + self._stops.flush(), last=True)

    def _show(self, released: bytes, *, last: bool = False) -> Output:
        self._released_bytes += len(released)
        text = self._detokenizer.feed(released)
        if last:
            text += self._detokenizer.flush()
        shown_bytes = self._released_bytes - self._detokenizer.pending_bytes
        entries = []
        while self._entries and self._entries[0][0] < shown_bytes:
            entries.append(self._entries.popleft()[1])
        return Output(text, tuple(entries))
