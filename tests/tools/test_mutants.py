"""The mutants still apply to the core as it is: one whose text has gone would be missed without anybody noticing."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_mutants_text_stands_in_its_module_once() -> None:
    defined = runpy.run_path(str(ROOT / "tools" / "core_mutants.py"))
    mutants = (*defined["NAMED"], *defined["MORE"])
    assert len(mutants) > 30
    core = ROOT / "calculet_trio" / "core"
    found = {each.name: (core / f"{each.module}.py").read_text().count(each.before) for each in mutants}
    assert {name: times for name, times in found.items() if times != 1} == {}
