"""The real model's text side, read from its GGUF once, because reading takes seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

VOCABULARY_FIELDS = {
    "model": "tokenizer.ggml.model",
    "pre": "tokenizer.ggml.pre",
    "tokens": "tokenizer.ggml.tokens",
    "token_types": "tokenizer.ggml.token_type",
    "merges": "tokenizer.ggml.merges",
}


@pytest.fixture(scope="session")
def smollm2_fields(smollm2_gguf: Path) -> dict[str, Any]:
    gguf = pytest.importorskip("gguf", reason="needs the host extra")
    fields = gguf.GGUFReader(smollm2_gguf).fields
    wanted = [*VOCABULARY_FIELDS.values(), "tokenizer.chat_template"]
    return {name: fields[name].contents() for name in wanted}


@pytest.fixture(scope="session")
def smollm2_vocabulary(smollm2_fields: dict[str, Any]) -> dict[str, Any]:
    """What the package builder writes to ``vocabulary.json``."""
    return {ours: smollm2_fields[theirs] for ours, theirs in VOCABULARY_FIELDS.items()}


@pytest.fixture(scope="session")
def smollm2_template(smollm2_fields: dict[str, Any]) -> str:
    template: str = smollm2_fields["tokenizer.chat_template"]
    return template
