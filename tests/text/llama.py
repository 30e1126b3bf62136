"""llama.cpp's tokenizer and chat template, through its own server: the oracle that nobody here wrote."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ANSWER_S = 60


def write_tiny_model(path: Path, vocabulary: Mapping[str, Any]) -> None:
    """A one-layer model of nothing, whose vocabulary is real: enough for llama.cpp to tokenize with."""
    gguf = pytest.importorskip("gguf", reason="needs the host extra")
    width, ff, vocab_size = 32, 32, len(vocabulary["tokens"])
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(ff)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(width)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(vocabulary["model"])
    writer.add_tokenizer_pre(vocabulary["pre"])
    writer.add_token_list(vocabulary["tokens"])
    writer.add_token_types(vocabulary["token_types"])
    writer.add_token_merges(vocabulary["merges"])
    shapes = {"token_embd": (vocab_size, width), "output_norm": (width,), "blk.0.attn_norm": (width,)}
    shapes |= {f"blk.0.attn_{name}": (width, width) for name in ("q", "k", "v", "output")}
    shapes |= {"blk.0.ffn_norm": (width,), "blk.0.ffn_down": (width, ff)}
    shapes |= {"blk.0.ffn_gate": (ff, width), "blk.0.ffn_up": (ff, width)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaServer:
    """The text side of a running llama.cpp server."""

    def __init__(self, address: str) -> None:
        self._address = address

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        answer = self._post("tokenize", content=text, add_special=False, parse_special=parse_special)
        ids: list[int] = answer["tokens"]
        return ids

    def render(self, messages: list[dict[str, str]]) -> str:
        prompt: str = self._post("apply-template", messages=messages)["prompt"]
        return prompt

    def _post(self, path: str, **body: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self._address}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=ANSWER_S) as reply:
            answer: dict[str, Any] = json.load(reply)
        return answer


@contextmanager
def serving(gguf_file: Path) -> Iterator[LlamaServer]:
    """A llama.cpp server with the model, for as long as the block lasts."""
    xllamacpp = pytest.importorskip("xllamacpp", reason="needs the check extra")
    params = xllamacpp.CommonParams()
    params.model.path = str(gguf_file)
    params.n_ctx, params.n_parallel, params.warmup, params.port = 64, 1, False, 0
    params.cpuparams.n_threads = 1
    server = xllamacpp.Server(params)
    try:
        yield LlamaServer(server.listening_address)
    finally:
        del server
