"""Every row of the collection is replayed here, or the README of this directory says why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROWS = HERE.parents[2] / "shared" / "cases" / "reports.md"


def replayed() -> set[str]:
    """The rows that some test here is named for."""
    tests = "".join(path.read_text(encoding="utf-8") for path in HERE.glob("test_*.py"))
    return {row.upper() for row in re.findall(r"def test_(b\d\d)_", tests)}


def listed() -> set[str]:
    """The rows that the README gives reasons for."""
    return set(re.findall(r"^\| (B\d\d) \|", (HERE / "README.md").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.skipif(not ROWS.exists(), reason="the collection is not beside the repository (../shared)")
def test_every_row_is_replayed_or_listed_and_none_is_made_up() -> None:
    rows = set(re.findall(r"^### (B\d\d) ", ROWS.read_text(encoding="utf-8"), re.MULTILINE))
    assert rows == replayed() | listed()


def test_a_row_that_is_listed_is_not_also_replayed_in_full() -> None:
    assert replayed() & listed() == {"B37"}  # of which one half is
