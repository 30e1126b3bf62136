"""Builds binding/ over the emulator and runs its C++ tests: plain, and with the thread, address and UB sanitizers.

Usage: .venv/bin/python tools/binding_tests.py [ARGUMENTS OF CTEST]        e.g. -R Fault --output-on-failure

The build stays in build/binding-tests, so that a second run compiles what changed. Without a compiler, CMake or
GoogleTest it says what is missing and passes, unless CI is set: there, tools/check has installed them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "binding"
BUILD = ROOT / "build" / "binding-tests"
JOBS = 2
"""At once: a compiler of C++ takes some 300 MB."""
NEEDED = {"cmake": "cmake", "c++": "g++", "make": "make"}
"""Program → the Debian package that brings it."""
GTEST = Path("/usr/include/gtest/gtest.h")
BUILD_S = 900
CTEST_S = 600


def main() -> int:
    """Build, test, and say how long both took; output is shown where something fails."""
    missing = [package for program, package in NEEDED.items() if shutil.which(program) is None]
    if not GTEST.exists():
        missing.append("libgtest-dev")
    if missing:
        print(f"binding/ is not tested: apt install {' '.join(missing)}", flush=True)
        return 1 if os.environ.get("CI") and os.geteuid() == 0 else 0
    began = time.monotonic()
    if not build("-DCALCULET_TESTS=ON"):
        return 1
    built = time.monotonic()
    tests = ["ctest", "--test-dir", BUILD, "--parallel", str(JOBS), "--output-on-failure", *sys.argv[1:]]
    passed = ran(tests, CTEST_S, show_last=True)
    print(f"built in {built - began:.0f} s, tested in {time.monotonic() - built:.0f} s", flush=True)
    return 0 if passed else 1


def build(*options: str, source: Path = SOURCE, place: Path = BUILD, targets: tuple[str, ...] = ()) -> bool:
    """Whether cmake configured and compiled; what it said is shown where it did not.

    Args:
        options: of configuring, beside those that all builds share.
        source: the directory ``binding``.
        place: where the build stays.
        targets: what is compiled; nothing for everything.
    """
    configure = ["cmake", "-S", source, "-B", place, "-DCMAKE_BUILD_TYPE=Debug", *options]
    configure.append("-DCMAKE_CXX_FLAGS_DEBUG=-g1")  # lines in a sanitizer's report, and no more: it halves the files
    compiling = ["cmake", "--build", place, "--parallel", str(JOBS)]
    if targets:
        compiling += ["--target", *targets]
    return ran(configure, BUILD_S) and ran(compiling, BUILD_S)


def ran(command: list[str | Path], timeout_s: float, *, show_last: bool = False) -> bool:
    """Whether the command succeeded; a failed one's output is shown, of a good one its verdict if asked for."""
    try:
        answer = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"{command[0]} did not end within {timeout_s:.0f} s", flush=True)
        return False
    if answer.returncode:
        print(answer.stdout, flush=True)
    elif show_last:
        print(*[line for line in answer.stdout.splitlines() if "tests passed" in line], flush=True)
    return answer.returncode == 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
