"""The vectors that hold the C++ emulator to the Python one are the Python one's."""

from __future__ import annotations

import runpy
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2] / "binding" / "tests"


def test_the_vectors_are_what_the_emulated_board_says() -> None:
    lines = runpy.run_path(str(TESTS / "make_history_vectors.py"))["lines"]()
    assert (TESTS / "history_vectors.inc").read_text("ascii") == "\n".join(lines) + "\n"
