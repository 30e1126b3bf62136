"""Every contract on who may import whom finds the import that is planted against it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINT = Path(sys.executable).with_name("lint-imports")
RUN_S = 120

PLANTED = {
    "core/health.py": "import random",
    "core/deadlines.py": "import calculet_trio.shell.loop",
    "shell/loop.py": "import calculet_trio.runtimes.host\nimport calculet_trio.shell.drain\nimport quart\nimport click",
    "observe/logging.py": "import prometheus_client",
    "cli/paths.py": "import gguf",
    "packages/digests.py": "import onnxruntime\nimport jinja2\nimport cryptography\nimport pickle",
    "text/stops.py": "import trio",
    "sim/__init__.py": "",
    "sim/planted.py": "import quart_trio",
}
"""Files of the package, and what is added at their ends: together, a breach of every contract."""


def verdicts(directory: Path) -> dict[str, str]:
    """What lint-imports says of each contract, for the package in ``directory``."""
    if not LINT.exists():
        pytest.skip("lint-imports is not installed beside this Python")
    answer = subprocess.run(
        [LINT, "--no-cache", "--config", str(directory / "pyproject.toml")],
        cwd=directory,
        env=os.environ | {"COLUMNS": "300", "PYTHONPATH": str(directory)},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    found = re.findall(r"^(\S.*?) ?(KEPT|BROKEN)\b", answer.stdout, re.MULTILINE)
    assert found, answer.stdout + answer.stderr
    return dict(found)


def test_every_contract_finds_what_is_planted(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "calculet_trio", tmp_path / "calculet_trio", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for path, text in PLANTED.items():
        file = tmp_path / "calculet_trio" / path
        file.parent.mkdir(exist_ok=True)
        with file.open("a", encoding="utf-8") as source:
            source.write(f"\n{text}\n")
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    assert verdicts(tmp_path) == {contract["name"]: "BROKEN" for contract in contracts}
