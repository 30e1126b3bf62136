"""What the code reads at run time goes into the wheel: a file beside the code that is not named there stays behind."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_file_beside_the_code_is_package_data() -> None:
    """An installed daemon without its reference board, or without a page that an error names, is broken."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-data"]
    room = ROOT / "calculet_trio"
    packed = {path for pattern in declared["calculet_trio"] for path in room.glob(pattern)}
    beside = {path for path in room.rglob("*.*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert {str(path.relative_to(room)) for path in beside - packed} == set()


def test_no_room_is_left_out() -> None:
    """A directory without ``__init__.py`` is no package, and is not found."""
    rooms = {path.parent for path in (ROOT / "calculet_trio").rglob("*.py")}
    assert [str(room) for room in sorted(rooms) if not (room / "__init__.py").is_file()] == []
