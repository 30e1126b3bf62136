"""Runs every check, says how long each took, and ends with what to do next. Called by tools/check.

All steps run, whatever the earlier ones say, so that one run shows everything there is to mend.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

BIN = Path(sys.executable).parent
STEP_S = 1500
"""A step that takes longer hangs; all of them together take less."""


class Step(NamedTuple):
    """One check.

    Args:
        name: in the summary.
        command: its program, from the environment's bin directory, and arguments.
        mend: what a person does when it fails.
        shown: whether its output is shown as it comes; else only if it fails.
    """

    name: str
    command: tuple[str, ...]
    mend: str
    shown: bool = False


ROOT = Path(__file__).resolve().parent.parent


def async_files() -> list[str]:
    """The package's files that flake8-async has something to say about; over all of them it takes minutes."""
    files = sorted((ROOT / "calculet_trio").rglob("*.py"))
    found = [path for path in files if any(word in path.read_text("utf-8") for word in ("async def", "import trio"))]
    return [str(path.relative_to(ROOT)) for path in found]


PYTEST = ("pytest", "--cov=calculet_trio.core", "--cov-report=term-missing:skip-covered", "--cov-fail-under=100")
STEPS = (
    Step("ruff check", ("ruff", "check"), "ruff check --fix mends most of it"),
    Step("ruff format", ("ruff", "format", "--check"), "ruff format"),
    Step("mypy", ("mypy",), "the types disagree where it says"),
    Step("lint-imports", ("lint-imports", "--no-cache"), "a room imports what it may not know: ARCHITECTURE.md, Rooms"),
    Step("flake8-async", ("flake8", *async_files()), "the rule's name is its page in flake8-async's documentation"),
    Step("binding", ("python", "tools/binding_tests.py"), "its ctest -R NAME runs one test", shown=True),
    Step("tests/tidy", ("pytest", "-q", "tests/tidy"), "each test's docstring says the rule and why"),
    Step("pytest", (*PYTEST, "--ignore=tests/tidy"), "pytest --last-failed -x shows the first again", shown=True),
)


def main() -> int:
    """Run the steps; arguments go to pytest, and then only pytest runs."""
    if sys.argv[1:]:
        return subprocess.run([BIN / "pytest", *sys.argv[1:]], check=False).returncode
    began = time.monotonic()
    failed = []
    lines = []
    for step in STEPS:
        if step.shown:
            print(f"── {step.name}", flush=True)
        step_began = time.monotonic()
        passed = run(step)
        took_s = time.monotonic() - step_began
        lines.append(f"{'✓' if passed else '✗'} {step.name:<14}{took_s:7.1f} s")
        if not step.shown:
            print(lines[-1], flush=True)
        if not passed:
            failed.append(step)
    print("\n── all checks")
    print("\n".join(lines))
    print(f"{len(STEPS) - len(failed)} of {len(STEPS)} steps passed in {time.monotonic() - began:.0f} s")
    for step in failed:
        print(f"next: {step.name}: {step.mend}")
    if not failed:
        print("next: tools/serve shows it at work; or commit")
    return 1 if failed else 0


def run(step: Step) -> bool:
    """Whether the step passed; the output of one that did not is shown."""
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}", "COLUMNS": "120"}
    command = [BIN / step.command[0], *step.command[1:]]
    try:
        answer = subprocess.run(
            command, check=False, capture_output=not step.shown, text=True, timeout=STEP_S, env=environment
        )
    except subprocess.TimeoutExpired:
        print(f"{step.name} did not end within {STEP_S} s", flush=True)
        return False
    if answer.returncode and not step.shown:
        print(f"── {step.name}\n{answer.stdout}{answer.stderr}", flush=True)
    return answer.returncode == 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
