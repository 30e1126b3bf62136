"""A small tokenizer directory in Hugging Face's form, written by their own library."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = (
    "the sea and the land, the sun and the moon in 1999",
    "don't they're über naïve 你好 世界 🙂",
    "a  b\n\n c\t d",
)
CONFIG = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "moe_intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "vocab_size": 300,
    "max_position_embeddings": 4096,
    "rope_theta": 1_000_000,
    "rms_norm_eps": 1e-6,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}


def qwen_like() -> Tokenizer:
    """Byte-level BPE with Qwen's way of cutting words, its normalizer and its control tokens; 293 tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False, special=False)])
    return tokenizer


def write_tokenizer(directory: Path, tokenizer: Tokenizer | None = None, **config: object) -> Path:
    """The directory, with the files that such a directory has."""
    directory.mkdir()
    (tokenizer or qwen_like()).save(str(directory / "tokenizer.json"))
    for name, value in {
        "config.json": {**CONFIG, **config},
        "tokenizer_config.json": {
            "eos_token": "<|im_end|>",
            "bos_token": None,
            "add_bos_token": False,
            "chat_template": "{{ messages }}",
        },
        "generation_config.json": {"eos_token_id": [290, 291]},
    }.items():
        (directory / name).write_text(json.dumps(value))
    return directory
