"""Tiny random models as GGUF files: real architectures that a test can build, run and throw away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pytest

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
NORMAL, CONTROL = 1, 3


@attrs.frozen(kw_only=True)
class TinyModel:
    """The numbers of a tiny model; widths stay multiples of 32, so that any quantization can be asked for.

    Args:
        family: ``llama``, ``qwen3`` or ``qwen3moe``.
        quantization: GGUF type of the matrices; norms and the router stay F32.
        experts: experts of a qwen3moe model.
    """

    family: str = "qwen3"
    quantization: str = "F32"
    layers: int = 2
    width: int = 64
    feed_forward: int = 96
    query_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    context_tokens: int = 256
    experts: int = 4
    experts_used: int = 2
    tied: bool = True
    seed: int = 1

    def write(self, path: Path) -> Path:
        """Write the GGUF file and return its path."""
        gguf = pytest.importorskip("gguf", reason="needs the host extra")
        writer = gguf.GGUFWriter(path, self.family)
        tokens = self._write_metadata(writer)
        random = np.random.default_rng(self.seed)
        for name, shape in self._shapes(len(tokens)).items():
            kind, values = self._values(name, shape, random)
            self._add(writer, gguf, name, values, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    # ---- what is in it ----------------------------------------------------------------------------

    def _write_metadata(self, writer: Any) -> list[str]:
        writer.add_context_length(self.context_tokens)
        writer.add_embedding_length(self.width)
        writer.add_block_count(self.layers)
        writer.add_feed_forward_length(self.feed_forward)
        writer.add_head_count(self.query_heads)
        writer.add_head_count_kv(self.kv_heads)
        writer.add_key_length(self.head_dim)
        writer.add_value_length(self.head_dim)
        writer.add_rope_dimension_count(self.head_dim)
        writer.add_rope_freq_base(10_000.0)
        writer.add_layer_norm_rms_eps(1e-5)
        if self.family == "qwen3moe":
            writer.add_expert_count(self.experts)
            writer.add_expert_used_count(self.experts_used)
            writer.add_expert_feed_forward_length(self.feed_forward)
        tokens = vocabulary()
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_list(tokens)
        writer.add_token_types([CONTROL if token in SPECIAL_TOKENS else NORMAL for token in tokens])
        writer.add_token_merges(["Ġ t", "h e"])
        writer.add_bos_token_id(tokens.index("<|endoftext|>"))
        writer.add_eos_token_id(tokens.index("<|im_end|>"))
        writer.add_add_bos_token(False)
        writer.add_chat_template(TEMPLATE)
        return tokens

    def _shapes(self, vocab_size: int) -> dict[str, tuple[int, ...]]:
        heads, kv = self.query_heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "token_embd": (vocab_size, self.width),
            "output_norm": (self.width,),
        }
        if not self.tied:
            shapes["output"] = (vocab_size, self.width)
        for layer in range(self.layers):
            block: dict[str, tuple[int, ...]] = {
                "attn_norm": (self.width,),
                "attn_q": (heads, self.width),
                "attn_k": (kv, self.width),
                "attn_v": (kv, self.width),
                "attn_output": (self.width, heads),
                "ffn_norm": (self.width,),
            }
            if self.family != "llama":
                block |= {"attn_q_norm": (self.head_dim,), "attn_k_norm": (self.head_dim,)}
            wide, narrow = (self.feed_forward, self.width), (self.width, self.feed_forward)
            if self.family == "qwen3moe":
                block |= {"ffn_gate_inp": (self.experts, self.width)}
                block |= {"ffn_gate_exps": (self.experts, *wide), "ffn_up_exps": (self.experts, *wide)}
                block |= {"ffn_down_exps": (self.experts, *narrow)}
            else:
                block |= {"ffn_gate": wide, "ffn_up": wide, "ffn_down": narrow}
            shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
        return shapes

    def _values(
        self, name: str, shape: tuple[int, ...], random: np.random.Generator
    ) -> tuple[str, npt.NDArray[np.float32]]:
        if name.endswith("norm"):
            return "F32", (1 + 0.1 * random.standard_normal(shape)).astype(np.float32)
        # Scaled so that every layer changes the stream, and the logits spread enough to have clear winners.
        scale = 1.0 if name in ("token_embd", "output") else 1.5 / np.sqrt(shape[-1])
        values = (scale * random.standard_normal(shape)).astype(np.float32)
        return ("F32" if name.endswith("ffn_gate_inp") else self.quantization), values

    @staticmethod
    def _add(writer: Any, gguf: Any, name: str, values: npt.NDArray[np.float32], kind: str) -> None:
        if kind == "F32":
            writer.add_tensor(f"{name}.weight", values)
            return
        qtype = gguf.GGMLQuantizationType[kind]
        data = gguf.quants.quantize(values, qtype)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=qtype)


def vocabulary() -> list[str]:
    """All 256 bytes in GPT-2's spelling, two merged tokens, and the special ones."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    spelling = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in spelling]
    spelling |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    return [*(spelling[byte] for byte in range(256)), "Ġt", "he", *SPECIAL_TOKENS]
