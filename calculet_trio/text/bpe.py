"""The tokenizer of real models: byte-level BPE over the vocabulary and merges that a GGUF carries.

Source: llama.cpp ``src/llama-vocab.cpp`` (``llm_tokenizer_bpe``), whose ids these are; built on Hugging
Face ``tokenizers``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import tokenizers
from tokenizers import AddedToken, Regex, models, pre_tokenizers

from calculet_trio.errors import PackageError
from calculet_trio.text.tokenizer import SpecialIds, Tokenizer

CONTROL_TOKEN: Final = 3
"""GGUF token type of ``<|im_end|>`` and its kind: special."""

USER_DEFINED_TOKEN: Final = 4
"""GGUF token type of ``<think>`` and its kind: whole tokens in any text, shown like any text, not special."""

_SHOWN_CHARACTERS: Final = 80

_LETTERS_NUMBERS: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ANY_CASE_SUFFIX: Final = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+"
_PUNCTUATION_SPACE: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

TOKEN_CHARACTERS_MAX: Final = 1024
"""The longest tokens of known vocabularies are runs of some hundred blanks."""
SPECIAL_MAX: Final = 16_384
SPECIAL_CHARACTERS_MAX: Final = 1 << 20
"""Of special tokens together: whatever a template writes is searched for all of them."""

PRE_TOKENIZERS: Final[Mapping[str, tuple[str, ...]]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _LETTERS_NUMBERS, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (_LETTERS_NUMBERS,),
    "llama-bpe": (rf"{_ANY_CASE_SUFFIX}|\p{{N}}{{1,3}}|{_PUNCTUATION_SPACE}",),
    "qwen2": (rf"{_ANY_CASE_SUFFIX}|\p{{N}}|{_PUNCTUATION_SPACE}",),
    "smollm": (r"\p{N}", _LETTERS_NUMBERS),
}
"""``tokenizer.ggml.pre`` → the patterns that cut a text into words, one after the other."""

_WHOLE_WORDS_FIRST: Final = frozenset({"llama-bpe"})
"""Those for which a word that is a token is that token, whatever the merges say."""


def _byte_characters() -> dict[str, int]:
    """GPT-2's spelling: each byte is one printable character."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF: Final[Mapping[str, int]] = _byte_characters()


class BpeTokenizer(Tokenizer):
    """Byte-level BPE. Make one with `from_vocabulary`.

    Costs, measured on a 2-core host: 0.3 µs to 0.8 µs a byte, the GIL released; ``"a" * 5_000_000`` takes
    about 2.5 s and 1.25 M ids. Callers bound the text first (`Tokenizer.text_bytes_limit`).
    """

    @classmethod
    def from_vocabulary(cls, vocabulary: Mapping[str, Any], special: SpecialIds) -> BpeTokenizer:
        """The tokenizer of a package's ``vocabulary.json``.

        Args:
            vocabulary: ``{"model", "pre", "tokens", "token_types", "merges"}`` as they stand in the GGUF.
            special: from the package's manifest.

        Raises:
            PackageError: a kind of vocabulary that is not supported, or one that contradicts itself.
        """
        if vocabulary.get("model") != "gpt2":
            named = str(vocabulary.get("model"))[:_SHOWN_CHARACTERS]
            raise PackageError(f"tokenizer model {named!r} is not supported; supported: gpt2")
        pre = str(vocabulary.get("pre"))[:_SHOWN_CHARACTERS]
        if pre not in PRE_TOKENIZERS:
            known = ", ".join(PRE_TOKENIZERS)
            raise PackageError(f"pre-tokenizer {pre!r} is not supported; supported: {known}")
        for name in ("tokens", "token_types", "merges"):
            if not isinstance(vocabulary.get(name), list):
                raise PackageError(f"the vocabulary has no list {name!r}")
        tokens, types = vocabulary["tokens"], vocabulary["token_types"]
        if len(tokens) != len(types):
            raise PackageError(f"the vocabulary has {len(tokens)} tokens but {len(types)} token types")
        _require_bounded(tokens, types)
        used = [special.bos, special.eos, *special.end_of_turn]
        outside = [token for token in used if token is not None and not 0 <= token < len(tokens)]
        if outside:
            raise PackageError(f"special token {outside[0]} is outside the vocabulary of {len(tokens)}")
        return cls(pre, tokens, types, vocabulary["merges"], special)

    def __init__(
        self, pre: str, tokens: Sequence[str], types: Sequence[int], merges: Sequence[str], special: SpecialIds
    ) -> None:
        # what has no text is found in none
        literals = {text: token for token, text in enumerate(tokens) if types[token] == CONTROL_TOKEN and text}
        whole = {text: token for token, text in enumerate(tokens) if types[token] == USER_DEFINED_TOKEN and text}
        longest_whole_bytes = max((len(text.encode()) for text in whole), default=0)
        super().__init__(
            literals,
            special,
            vocab_size=len(tokens),
            # in the GGUF's spelling a character is a byte
            longest_token_bytes=max(longest_whole_bytes, *map(len, set(tokens) - set(whole) - set(literals))),
        )
        self._tokens = tokens
        self._literal_ids = self._special_ids | set(whole.values())
        self._bytes: list[bytes | None] = [None] * len(tokens)
        # without the control tokens no way leads from text to them
        vocab = {text: token for token, text in enumerate(tokens) if types[token] != CONTROL_TOKEN}
        self._encoder = _build_encoder(pre, vocab, merges)
        self._encoder.add_tokens([AddedToken(text, normalized=False) for text in whole])

    def token_bytes(self, token: int) -> bytes:
        if token < 0:
            raise IndexError(f"token {token} is outside the vocabulary of {self.vocab_size}")
        known = self._bytes[token]
        if known is None:
            text = self._tokens[token]
            known = text.encode() if token in self._literal_ids else _spelled_bytes(text)
            self._bytes[token] = known
        return known

    def _encode_text(self, text: str) -> list[int]:
        if not text:
            return []
        # unlike `encode`, the batch call releases the GIL
        [encoding] = self._encoder.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids


def _require_bounded(tokens: Sequence[str], types: Sequence[int]) -> None:
    """Raises PackageError for what no vocabulary needs, and what would keep those who search texts for it busy."""
    longest = max(map(len, tokens), default=0)
    if longest > TOKEN_CHARACTERS_MAX:
        raise PackageError(f"the vocabulary has a token of {longest} characters; allowed: {TOKEN_CHARACTERS_MAX}")
    special = [len(text) for text, kind in zip(tokens, types, strict=True) if kind == CONTROL_TOKEN]
    if len(special) > SPECIAL_MAX or sum(special) > SPECIAL_CHARACTERS_MAX:
        raise PackageError(
            f"the vocabulary has {len(special)} special tokens of {sum(special)} characters; "
            f"allowed: {SPECIAL_MAX} of {SPECIAL_CHARACTERS_MAX}"
        )


def _spelled_bytes(text: str) -> bytes:
    try:
        return bytes(map(_BYTE_OF.__getitem__, text))
    except KeyError:  # not in GPT-2's spelling: a padding or unused token, written as it is
        return text.encode()


def _build_encoder(pre: str, vocab: dict[str, int], merges: Sequence[str]) -> tokenizers.Tokenizer:
    pairs = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise PackageError(
                f"the merge {merge[:_SHOWN_CHARACTERS]!r} speaks of a token that the vocabulary does not have"
            )
        pairs.append((left, right))
    encoder = tokenizers.Tokenizer(models.BPE(vocab, pairs, ignore_merges=pre in _WHOLE_WORDS_FIRST))
    cuts: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS[pre]
    ]
    cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    absent = "".join(character for character in _BYTE_OF if character not in vocab)
    if absent:
        # A byte without a token is dropped. Alone in its word it cannot bring its neighbours together first.
        cuts.append(pre_tokenizers.Split(Regex(f"[{absent}]"), "isolated"))
    encoder.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    return encoder
