"""tools/bench_reuse, with as little work as shows that it works: what it measures is for a quiet machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models import TinyModel

TOOL = Path(__file__).resolve().parents[2] / "tools" / "bench_reuse.py"
RUN_S = 300


def test_the_short_form_shows_what_was_there_and_that_both_say_the_same(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="needs the host extra")
    own = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    environment = {**own, "HOME": str(tmp_path)}
    TinyModel().write(tmp_path / "model.gguf")

    def run(*command: str | Path) -> str:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False, env=environment)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    package, figures = tmp_path / "tiny", tmp_path / "figures.json"
    small = ("--weights", "fp32", "--lanes", "4", "--max-seq", "256", "--no-earn")
    cli = (sys.executable, "-c", "from calculet_trio.cli.main import main; main()")
    run(*cli, "package", "build", tmp_path / "model.gguf", "-o", package, *small)
    said = run(sys.executable, TOOL, "--short", "--package", package, "--json", figures)
    assert "both said the same" in said
    turns = json.loads(figures.read_text())
    assert [turn["cached_tokens"] for turn in turns["without"][0]] == [0, 0]
    first, second = turns["with"][0]
    assert first["cached_tokens"] == 0
    assert first["prompt_tokens"] <= second["cached_tokens"] < second["prompt_tokens"]
