"""Makes the repository's own environment, .venv, or finds that it is made already.

Usage: tools/python tools/environment.py EXTRA[,EXTRA...]

Standard library only: it runs before anything is installed. A second run with the same pyproject.toml costs a
few milliseconds. An environment whose Python is gone, or whose installation was cut off, is made anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
INSTALLING = VENV / ".installing"
"""Is there while pip works; found at the start, it tells of an installation that was cut off."""
INSTALLED = VENV / ".installed"
"""What was installed: the pyproject's hash, and the extras."""
PYTHON_PROBE_S = 30
SHOWN_LINES = 15


def main() -> int:
    """Make sure of the extras that the command line names; the exit code says whether they are there."""
    extras = sorted(sys.argv[1].split(","))
    stamp = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    if is_ready(stamp, extras):
        return 0
    with (ROOT / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tools/serve and tools/check may be started at once
        if is_ready(stamp, extras):
            return 0
        return make(stamp, extras)


def is_ready(stamp: str, extras: list[str]) -> bool:
    """Whether .venv has the extras, from this very pyproject.toml, and its Python runs."""
    try:
        installed, *had = INSTALLED.read_text().split()
    except (OSError, ValueError):
        return False
    return installed == stamp and set(extras) <= set(had) and not INSTALLING.exists() and runs()


def runs() -> bool:
    """Whether the environment's Python starts and is new enough: its base may have been removed or replaced."""
    try:
        probe = [PYTHON, "-c", "import sys, pip; sys.exit(sys.version_info < (3, 11))"]
        return not subprocess.run(probe, capture_output=True, timeout=PYTHON_PROBE_S, check=False).returncode
    except (OSError, subprocess.TimeoutExpired):
        return False


def make(stamp: str, extras: list[str]) -> int:
    """Make the environment as far as it is not made, and say what is being done."""
    began = time.monotonic()
    if INSTALLING.exists() or not runs():
        print("making .venv …", file=sys.stderr, flush=True)
        shutil.rmtree(VENV, ignore_errors=True)
        venv.create(VENV, with_pip=True)
    INSTALLING.touch()
    INSTALLED.unlink(missing_ok=True)
    print(f"installing calculet-trio with {', '.join(extras)} into .venv …", file=sys.stderr, flush=True)
    command = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    command += ["--editable", f"{ROOT}[{','.join(extras)}]"]
    last_lines = follow(command)
    if last_lines:
        print("\n".join(last_lines), file=sys.stderr)
        print("error: pip could not install what is needed (its last words are above)", file=sys.stderr)
        print("hint: check the network and `pip config list`, then run the same command again", file=sys.stderr)
        return 69
    INSTALLED.write_text(" ".join([stamp, *extras]))
    INSTALLING.unlink()
    print(f"installed in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return 0


def follow(command: list[str | Path]) -> list[str]:
    """Run pip, showing what it fetches; its last lines if it failed, else none."""
    on_terminal = sys.stderr.isatty()
    width = shutil.get_terminal_size().columns - 1
    lines: list[str] = []
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines = [*lines[1 - SHOWN_LINES :], line.rstrip()]
            words = line.strip()
            if on_terminal:
                print(f"\r\033[K{words[:width]}", end="", file=sys.stderr, flush=True)
            elif words.startswith("Downloading") and " MB)" in words:  # those that take time
                print(f"  {words[:100]}", file=sys.stderr, flush=True)
    if on_terminal:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return lines if process.returncode else []


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
