"""Small vocabularies, in the spelling that a GGUF carries."""

from __future__ import annotations

from typing import Any

from calculet_trio.text.bpe import CONTROL_TOKEN, USER_DEFINED_TOKEN
from calculet_trio.text.tokenizer import SpecialIds

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SPECIAL_IDS = SpecialIds(bos=1, eos=2, end_of_turn=(2, 0))
THINK = "<think>"


def tiny_vocabulary(*merges: str, pre: str = "smollm", absent: str = "") -> dict[str, Any]:
    """Three special tokens, one user-defined one, all bytes but the absent ones, and what the merges make."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    characters = [chr(code) for code in printable] + [chr(256 + n) for n in range(256 - len(printable))]
    tokens = [*SPECIALS, THINK, *(each for each in characters if each not in absent)]
    types = [CONTROL_TOKEN] * len(SPECIALS) + [USER_DEFINED_TOKEN] + [1] * (len(tokens) - 4)
    for merge in merges:
        tokens.append(merge.replace(" ", ""))
        types.append(1)
    return {"model": "gpt2", "pre": pre, "tokens": tokens, "token_types": types, "merges": list(merges)}


CROSSING_CHARACTERS = ["a", "B", "s", "S", "l", "L", "1", "2", "!", ".", "$", "'", "_", " ", "\n", "\r", "\t"]
CROSSING_CHARACTERS += ["é", "²", "٣", "\u3000", "\u00a0", "–", "日"]

UNMERGED_WORDS = ["aBs", " aBs", "!.$"]
"""Tokens that no merges lead to: only where whole words come first are they ever used."""


def crossing_vocabulary(pre: str) -> dict[str, Any]:
    """Merges of any two of the characters above: every place where a text is cut into words shows in its ids."""
    spelled = []
    merges: dict[str, None] = {}
    for character in CROSSING_CHARACTERS:
        whole, *rest = (_spelling(byte) for byte in character.encode())
        for part in rest:
            merges[f"{whole} {part}"] = None
            whole += part
        spelled.append(whole)
    merges |= dict.fromkeys(f"{left} {right}" for left in spelled for right in spelled)
    vocabulary = tiny_vocabulary(*merges, pre=pre)
    for word in UNMERGED_WORDS:
        vocabulary["tokens"].append(word.replace(" ", "Ġ"))
        vocabulary["token_types"].append(1)
    return vocabulary


def _spelling(byte: int) -> str:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return chr(byte) if byte in printable else chr(256 + [n for n in range(256) if n not in printable].index(byte))
