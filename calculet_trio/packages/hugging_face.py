"""A Hugging Face tokenizer directory as the text side reads it: vocabulary, special tokens, template, numbers.

Read are ``tokenizer.json``, ``tokenizer_config.json``, ``generation_config.json``, ``chat_template.jinja`` and
``config.json``. Only byte-level BPE with a way of cutting words that `calculet_trio.text.bpe` knows is let through.

Source: the ``tokenizers`` library's file format; A §9A.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from calculet_trio.errors import PackageError
from calculet_trio.packages.manifest_json import SHOWN_CHARACTERS_MAX, shown
from calculet_trio.packages.manifest_parts import Architecture, Special
from calculet_trio.regular_file import open_regular

FILE_BYTES_MAX: Final = 64 << 20
"""Qwen3's tokenizer.json has 11 MB."""
VOCABULARY_MAX: Final = 1 << 20
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""GGUF's token types."""
FAMILIES: Final[Mapping[str, str]] = {"qwen3_moe": "qwen3moe", "qwen3": "qwen3", "llama": "llama"}
_CASELESS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS: Final[Mapping[str, str]] = {
    rf"{_CASELESS}\p{{N}}{_REST}": "qwen2",
    rf"{_CASELESS}\p{{N}}{{1,3}}{_REST}": "llama-bpe",
}
"""The pattern of a ``Split`` → what GGUF calls it."""
NORMALIZERS: Final = (None, "NFC")
"""Qwen's tokenizer composes characters; llama.cpp, whose ids ours are, does not."""


P = ParamSpec("P")
T = TypeVar("T")


def _reading(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Of a method that takes apart what the file ``name`` holds: what is of another shape is refused by that name."""

    def decorate(method: Callable[P, T]) -> Callable[P, T]:
        @wraps(method)
        def refusing(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return method(*args, **kwargs)
            except (TypeError, AttributeError, ValueError, LookupError, ArithmeticError) as error:
                what = f"{type(error).__name__}: {str(error)[:SHOWN_CHARACTERS_MAX]}"
                raise PackageError(f"{name} is not of the shape that such a file has ({what})") from None

        return refusing

    return decorate


class HuggingFaceTokenizer:
    """An open directory.

    Args:
        directory: of the tokenizer.
        vocab_size: rows of logits; ids that no token has are unused ones.

    Raises:
        PackageError: a file is missing, damaged, or of a kind that is not supported; the file and key are named.
    """

    @_reading("tokenizer.json")
    def __init__(self, directory: Path, *, vocab_size: int) -> None:
        self._directory = directory
        self._tokenizer = self._object("tokenizer.json")
        self._config = self._object("tokenizer_config.json", optional=True)
        model = self._tokenizer.get("model")
        self._model: Mapping[str, Any] = model if isinstance(model, dict) else {}
        self._refuse_variants()
        self._tokens, self._types = self._read_tokens(vocab_size)
        self._ids = {text: token for token, text in enumerate(self._tokens)}

    # ---- what a package needs -----------------------------------------------------------------------

    @_reading("tokenizer.json")
    def vocabulary(self) -> dict[str, Any]:
        """``{"model", "pre", "tokens", "token_types", "merges"}``, in a GGUF's spelling."""
        merges = self._model.get("merges")
        if not isinstance(merges, list):
            raise self._refusal("tokenizer.json", "model.merges is missing; allowed: a list")
        joined = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
        return {
            "model": "gpt2",
            "pre": self._pre(),
            "tokens": self._tokens,
            "token_types": self._types,
            "merges": joined,
        }

    @_reading("tokenizer_config.json")
    def special(self) -> Special:
        """Token ids with a meaning of their own, from the tokenizer's and the generation's configuration."""
        generation = self._object("generation_config.json", optional=True)
        named = generation.get("eos_token_id", [])
        ends = [token for token in (named if isinstance(named, list) else [named]) if type(token) is int]
        eos, bos = self._named("eos_token"), self._named("bos_token")
        end_of_turn = sorted({*ends, *([] if eos is None else [eos])})
        outside = [token for token in end_of_turn if not 0 <= token < len(self._tokens)]
        if outside:
            raise self._refusal("generation_config.json", f"eos_token_id has {shown(outside[0])}, which is no token")
        return Special(
            bos=bos,
            eos=eos,
            end_of_turn=tuple(end_of_turn),
            add_bos=bool(self._config.get("add_bos_token", False)) and bos is not None,
        )

    @_reading("tokenizer_config.json")
    def chat_template(self) -> str | None:
        """The template of a file of its own, or of the tokenizer's configuration; of several, the default one."""
        path = self._directory / "chat_template.jinja"
        if path.is_file():
            return _bytes(path).decode("utf-8", "replace")
        template = self._config.get("chat_template")
        if isinstance(template, list):
            named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
            template = named.get("default")
        return template if isinstance(template, str) else None

    @_reading("config.json")
    def architecture(self) -> Architecture:
        """The network's numbers, from ``config.json``."""
        config = self._object("config.json")
        kind = str(config.get("model_type"))
        heads, width = self._number(config, "num_attention_heads"), self._number(config, "hidden_size")
        experts = int(config.get("num_experts", 0))
        return Architecture(
            family=FAMILIES.get(kind, kind.replace("-", "_").lower()),
            layers=self._number(config, "num_hidden_layers"),
            width=width,
            feed_forward=self._number(config, "moe_intermediate_size" if experts else "intermediate_size"),
            query_heads=heads,
            kv_heads=int(config.get("num_key_value_heads", heads)),
            head_dim=int(config.get("head_dim", width // max(heads, 1))),
            vocab_size=self._number(config, "vocab_size"),
            context_tokens=self._number(config, "max_position_embeddings"),
            rope_base=float(config.get("rope_theta", 10_000.0)),
            norm_epsilon=float(config.get("rms_norm_eps", 1e-6)),
            experts=experts,
            experts_used=int(config.get("num_experts_per_tok", 0)) if experts else 0,
        )

    # ---- within -------------------------------------------------------------------------------------

    def _object(self, name: str, *, optional: bool = False) -> dict[str, Any]:
        path = self._directory / name
        if optional and not path.is_file():
            return {}
        try:
            found = json.loads(_bytes(path))
        except (ValueError, RecursionError) as error:
            raise self._refusal(name, f"is not valid JSON: {error}") from None
        if not isinstance(found, dict):
            raise self._refusal(name, "is not a JSON object")
        return found

    def _refusal(self, name: str, sentence: str) -> PackageError:
        return PackageError(f"{self._directory / name}: {sentence}")

    def _number(self, config: Mapping[str, Any], key: str) -> int:
        value = config.get(key)
        if type(value) is not int or not 1 <= value <= 1 << 24:
            raise self._refusal("config.json", f"{key} is {shown(value)}; allowed: 1 to {1 << 24}")
        return value

    def _refuse_variants(self) -> None:
        normalizer = self._tokenizer.get("normalizer") or {}
        if self._model.get("type") != "BPE" or self._model.get("byte_fallback"):
            raise self._refusal(
                "tokenizer.json", f"model is a {shown(self._model.get('type'))}; allowed: a byte-level BPE"
            )
        if normalizer.get("type") not in NORMALIZERS:
            raise self._refusal("tokenizer.json", f"normalizer is {shown(normalizer.get('type'))}; allowed: none, NFC")

    def _read_tokens(self, vocab_size: int) -> tuple[list[str], list[int]]:
        vocab = self._model.get("vocab")
        if not isinstance(vocab, dict) or not 1 <= vocab_size <= VOCABULARY_MAX:
            raise self._refusal("tokenizer.json", f"model.vocab for {vocab_size} rows; allowed: 1 to {VOCABULARY_MAX}")
        tokens = [f"[{token}]" for token in range(vocab_size)]
        types = [UNUSED] * vocab_size
        added = [each for each in self._tokenizer.get("added_tokens", []) if isinstance(each, dict)]
        entries = [(text, token, NORMAL) for text, token in vocab.items()]
        entries += [(e.get("content"), e.get("id"), CONTROL if e.get("special") else USER_DEFINED) for e in added]
        for text, token, kind in entries:
            if type(token) is not int or not 0 <= token < vocab_size or not isinstance(text, str):
                raise self._refusal(
                    "tokenizer.json", f"token {shown(text)} has id {shown(token)}; allowed: below {vocab_size}"
                )
            tokens[token], types[token] = text, kind
        return tokens, types

    def _named(self, key: str) -> int | None:
        value = self._config.get(key)
        text = value.get("content") if isinstance(value, dict) else value
        if text is None:
            return None
        if text not in self._ids:
            raise self._refusal("tokenizer_config.json", f"{key} is {shown(text)}, which is no token")
        return self._ids[text]

    def _pre(self) -> str:
        """What GGUF calls the way in which words are cut."""
        cutter = self._tokenizer.get("pre_tokenizer") or {}
        steps = cutter.get("pretokenizers", []) if cutter.get("type") == "Sequence" else [cutter]
        kinds = [step.get("type") for step in steps]
        if kinds == ["Split", "ByteLevel"] and not steps[1].get("use_regex", True):
            pattern = steps[0].get("pattern", {}).get("Regex")
            if pattern in SPLITS and steps[0].get("behavior") == "Isolated" and not steps[0].get("invert"):
                return SPLITS[pattern]
        if kinds == ["ByteLevel"] and steps[0].get("use_regex", True) and not steps[0].get("add_prefix_space"):
            return "gpt-2"
        if kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits") and steps[1].get("use_regex", True):
            return "smollm"
        raise self._refusal(
            "tokenizer.json",
            f"pre_tokenizer {shown(kinds)} cuts words in a way that is not known; known: {', '.join(SPLITS.values())}, "
            "gpt-2, smollm",
        )


def _bytes(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise PackageError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise PackageError(f"{path} is larger than {FILE_BYTES_MAX} bytes, which no tokenizer's file is")
    return data
