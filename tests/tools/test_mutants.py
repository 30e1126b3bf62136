"""The mutants still apply to the core as it is: one whose text has gone would be missed without anybody noticing."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_every_mutants_text_stands_in_its_module_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALCULET_MUTANTS", "1")  # stay in this process
    defined = runpy.run_path(str(ROOT / "tools" / "mutants"), run_name="mutants")
    mutants = [each for group in defined.values() if isinstance(group, tuple) for each in group]
    mutants = [each for each in mutants if isinstance(each, defined["Mutant"])]
    assert len(mutants) > 30
    core = ROOT / "calculet_trio" / "core"
    found = {each.name: (core / f"{each.module}.py").read_text().count(each.before) for each in mutants}
    assert {name: times for name, times in found.items() if times != 1} == {}
