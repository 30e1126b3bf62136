"""Writes history_vectors.inc: what calculet_trio/runtimes/emulated.py says, for the C++ emulator to be held against.

Usage: python binding/tests/make_history_vectors.py > binding/tests/history_vectors.inc
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from calculet_trio.runtimes.emulated import END_TOKEN, extend, next_token

VECTORS = 100
ENDED = 3
TOKENS_MAX = 12
TOKEN_MAX = 151_935


def lines() -> Iterator[str]:
    """One line a vector: tokens, the history's hash after them, and the next token; the first few end the reply."""
    rng = random.Random(7)
    yield "// Made by make_history_vectors.py from calculet_trio/runtimes/emulated.py."
    for index in range(VECTORS):
        tokens = draw(rng)
        while index < ENDED and next_token(extend(0, tokens)) != END_TOKEN:  # which is rare
            tokens = draw(rng)
        history = extend(0, tokens)
        yield f"{{{{{', '.join(map(str, tokens))}}}, {history:#018x}ULL, {next_token(history)}}},"


def draw(rng: random.Random) -> list[int]:
    """A short history."""
    return [rng.randint(0, TOKEN_MAX) for _ in range(rng.randint(0, TOKENS_MAX))]


if __name__ == "__main__":
    print("\n".join(lines()))
