"""A GGUF file as the builder reads it: numbers, special tokens, vocabulary, template, and tensors.

Only what the graphs can compute is let through; the rest is refused by name here, so that a package that
builds is a package that is right.

Source: the GGUF specification, version 3; llama.cpp's names of tensors and keys.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from calculet_trio.errors import PackageError
from calculet_trio.packages.manifest_parts import Architecture, Special

SUPPORTED_FAMILIES: Final = ("llama", "qwen3", "qwen3moe")
END_TOKENS: Final = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|end_of_text|>")
"""Control tokens that end a reply whether or not the file's keys name them, as in llama.cpp."""
CONTROL: Final = 3
"""``token_type`` of a special token."""


class GgufSource:
    """An open GGUF file; its tensors are mapped, not read.

    Raises:
        PackageError: no such file, not a GGUF, or a model that the graphs cannot compute.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fields, self._tensors = _read(path)
        family = str(self._value("general.architecture", ""))
        if family not in SUPPORTED_FAMILIES:
            supported = ", ".join(SUPPORTED_FAMILIES)
            raise PackageError(
                f"{path.name} is a {family or 'nameless'!r} model; the CPU builder supports {supported}",
                hint="choose a GGUF of a supported architecture",
            )
        self.family = family
        self.architecture = self._read_architecture()
        self._refuse_variants()

    # ---- metadata -------------------------------------------------------------------------------

    def special(self) -> Special:
        """Token ids with a meaning of their own."""
        tokens, types = self._strings("tokens"), self._numbers("token_type")
        end = [self._token("eos_token_id"), self._token("eot_token_id"), self._token("eom_token_id")]
        end += [i for i, text in enumerate(tokens) if text in END_TOKENS and i < len(types) and types[i] == CONTROL]
        bos = self._token("bos_token_id")
        add_bos = bool(self._value("tokenizer.ggml.add_bos_token", False))
        return Special(
            bos=bos,
            eos=self._token("eos_token_id"),
            end_of_turn=tuple(sorted({token for token in end if token is not None})),
            add_bos=add_bos and bos is not None,
        )

    def vocabulary(self) -> dict[str, Any]:
        """``{"model", "pre", "tokens", "token_types", "merges"}``, in the GGUF's own spelling."""
        return {
            "model": str(self._value("tokenizer.ggml.model", "")),
            "pre": str(self._value("tokenizer.ggml.pre", "default")),
            "tokens": self._strings("tokens"),
            "token_types": self._numbers("token_type"),
            "merges": self._strings("merges"),
        }

    def chat_template(self) -> str | None:
        template = self._value("tokenizer.chat_template", None)
        return None if template is None else str(template)

    # ---- tensors --------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        return name in self._tensors

    def kind(self, name: str) -> str:
        """The tensor's type by name: ``F32``, ``Q4_1``, …"""
        return str(self._tensor(name).tensor_type.name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Extents in elements, outermost axis first."""
        return tuple(int(extent) for extent in reversed(self._tensor(name).shape))

    def elements(self) -> int:
        """Elements of all tensors together."""
        return sum(int(tensor.n_elements) for tensor in self._tensors.values())

    def raw(self, name: str) -> npt.NDArray[Any]:
        """The tensor as it lies in the file; for a quantized type ``u8[..., bytes of a row]``."""
        data: npt.NDArray[Any] = self._tensor(name).data
        return data

    def array(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor's values as ``f32``, outermost axis first.

        Raises:
            PackageError: no such tensor, or of a type that cannot be dequantized.
        """
        from gguf import quants

        tensor = self._tensor(name)
        try:
            values: npt.NDArray[np.float32] = quants.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            raise PackageError(
                f"{self.path.name}: {name} is of type {self.kind(name)}, which is not supported"
            ) from None
        return values.astype(np.float32, copy=False)

    # ---- within ---------------------------------------------------------------------------------

    def _tensor(self, name: str) -> Any:
        try:
            return self._tensors[name]
        except KeyError:
            raise PackageError(f"{self.path.name} has no tensor {name!r}, which a {self.family} model needs") from None

    def _value(self, key: str, default: object) -> Any:
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def _number(self, key: str, default: float | None = None) -> Any:
        value = self._value(f"{self.family}.{key}", default)
        if type(value) not in (int, float):
            raise PackageError(f"{self.path.name}: {self.family}.{key} is {value!r}; allowed: a number")
        return value

    def _token(self, key: str) -> int | None:
        value = self._value(f"tokenizer.ggml.{key}", None)
        return value if type(value) is int and 0 <= value < self.architecture.vocab_size else None

    def _strings(self, key: str) -> list[str]:
        return [str(text) for text in self._value(f"tokenizer.ggml.{key}", [])]

    def _numbers(self, key: str) -> list[int]:
        return [int(number) for number in self._value(f"tokenizer.ggml.{key}", [])]

    def _read_architecture(self) -> Architecture:
        width, query_heads = int(self._number("embedding_length")), int(self._number("attention.head_count"))
        moe = self.family == "qwen3moe"
        numbers = Architecture(
            family=self.family,
            layers=int(self._number("block_count")),
            width=width,
            feed_forward=int(self._number("expert_feed_forward_length" if moe else "feed_forward_length")),
            query_heads=query_heads,
            kv_heads=int(self._number("attention.head_count_kv", query_heads)),
            head_dim=int(self._number("attention.key_length", width // max(query_heads, 1))),
            vocab_size=self.shape("token_embd.weight")[0],
            context_tokens=int(self._number("context_length")),
            rope_base=float(self._number("rope.freq_base", 10_000.0)),
            norm_epsilon=float(self._number("attention.layer_norm_rms_epsilon")),
            experts=int(self._number("expert_count")) if moe else 0,
            experts_used=int(self._number("expert_used_count")) if moe else 0,
        )
        least = min(numbers.layers, width, numbers.feed_forward, query_heads, numbers.kv_heads, numbers.head_dim)
        if least < 1 or query_heads % max(numbers.kv_heads, 1):
            raise PackageError(f"{self.path.name}: its numbers of layers, heads or widths contradict each other")
        return numbers

    def _refuse_variants(self) -> None:
        numbers, name = self.architecture, self.path.name
        tokens = len(self._strings("tokens"))
        refusals = {
            f"vocabulary of {tokens} tokens for {numbers.vocab_size} rows of token_embd": tokens != numbers.vocab_size,
            f"rope scaling {self._value(f'{self.family}.rope.scaling.type', 'none')!r}": self._value(
                f"{self.family}.rope.scaling.type", "none"
            )
            != "none",
            "rotary part of a head": self._number("rope.dimension_count", numbers.head_dim) != numbers.head_dim,
            "value width unlike its key width": self._number("attention.value_length", numbers.head_dim)
            != numbers.head_dim,
            "mixture of experts (its family has none here)": self.family == "llama"
            and self._number("expert_count", 0) > 0,
            "bias in its attention": self.has("blk.0.attn_q.bias"),
        }
        for what, present in refusals.items():
            if present:
                raise PackageError(f"{name} has a {what}, which the CPU builder does not support")


def _read(path: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    from gguf import GGUFReader

    if not path.is_file():
        raise PackageError(f"{path} is not a file", hint="give the path of a GGUF file")
    try:
        reader = GGUFReader(path)
        names: Sequence[Any] = reader.tensors
        return reader.fields, {tensor.name: tensor for tensor in names}
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError, struct.error, OSError) as error:
        raise PackageError(f"{path.name} is not a readable GGUF file: {error}") from error
