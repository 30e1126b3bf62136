"""llama.cpp's log-probabilities, through its own server: the oracle that nobody here wrote."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

ANSWER_S = 120


class LlamaOracle:
    """``/completion`` of a running llama.cpp server, asked one token at a time."""

    def __init__(self, address: str, vocab_size: int, *, whole_token: int) -> None:
        self._address = address
        self._whole_token = whole_token
        self._vocab_size = vocab_size

    def tokenize(self, text: str) -> list[int]:
        """Token ids of ``text`` as it is."""
        answer = self._ask("/tokenize", {"content": text, "add_special": False, "parse_special": True})
        ids: list[int] = answer["tokens"]
        return ids

    def logprobs(self, tokens: Sequence[int], *, likeliest: int | None = None) -> npt.NDArray[np.float64]:
        """Log-probability of what may follow ``tokens``; NaN where the server names none.

        Args:
            tokens: the prompt.
            likeliest: how many tokens to ask for (all of a large vocabulary take seconds); None for all.
        """
        # The server drops the entry of a token that is half a character: force one that is whole. The
        # probabilities it reports are those before the bias.
        force = [[self._whole_token, 1e6]]
        answer = self._complete(tokens, n_predict=1, n_probs=likeliest or self._vocab_size, logit_bias=force)
        row = np.full(self._vocab_size, np.nan)
        for entry in answer["completion_probabilities"][0]["top_logprobs"]:
            row[entry["id"]] = entry["logprob"]
        return row

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """At most ``count`` tokens that follow, the likeliest at every step; an end token ends them."""
        answer = self._complete(tokens, n_predict=count, return_tokens=True)
        ids: list[int] = answer["tokens"]
        return ids

    def _complete(self, tokens: Sequence[int], **fields: object) -> dict:
        body = {"prompt": list(tokens), "temperature": 0.0, "cache_prompt": True, **fields}
        return self._ask("/completion", body)

    def _ask(self, path: str, body: dict) -> dict:
        request = urllib.request.Request(
            f"{self._address}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            found: dict = json.load(answer)
        return found


@contextmanager
def consulting(
    gguf_file: Path, *, vocab_size: int, whole_token: int, context_tokens: int = 256
) -> Iterator[LlamaOracle]:
    """A llama.cpp server with the model, its KV in f32, for as long as the block lasts.

    Args:
        gguf_file: the model.
        vocab_size: its tokens.
        whole_token: the id of any token that is whole characters.
        context_tokens: the longest prompt and reply.
    """
    xllamacpp = pytest.importorskip("xllamacpp", reason="needs the check extra")
    params = xllamacpp.CommonParams()
    params.model.path = str(gguf_file)
    params.n_ctx, params.n_parallel, params.warmup, params.port = context_tokens, 1, False, 0
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.cpuparams.n_threads = 2
    params.verbosity = 0
    server = xllamacpp.Server(params)
    try:
        yield LlamaOracle(server.listening_address, vocab_size, whole_token=whole_token)
    finally:
        del server
