"""The emulator of the board's runtime, built once from ``binding/`` for all tests that load it."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "binding"
BUILD_S = 600


def emulator_library() -> Path:
    """The library; a test is skipped where nothing can build it. `CALCULET_CALRT_LIBRARY` names one that is there."""
    if named := os.environ.get("CALCULET_CALRT_LIBRARY"):
        return Path(named)
    missing = [tool for tool in ("cmake", "c++") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)} to build the emulator")
    return _built()


@functools.cache
def _built() -> Path:
    """Through ``calculet-trio binding build``; kept for the sources that it was built from."""
    digest = hashlib.sha256(str(SOURCE).encode())  # cmake keeps to the place that it configured
    for path in sorted(SOURCE.rglob("*")):
        if path.is_file():
            digest.update(str(path.relative_to(SOURCE)).encode() + path.read_bytes())
    place = Path(tempfile.gettempdir(), f"calculet-binding-{os.getuid()}-{digest.hexdigest()[:16]}")
    library = place / "calculet-trio" / "binding" / "emulator" / "lib" / "libcalculet_calrt.so"
    if not library.is_file():
        command = [sys.executable, "-c", "from calculet_trio.cli.main import main; main()"]
        command += ["binding", "build", "--emulator", "--source", str(SOURCE)]
        subprocess.run(command, check=True, timeout=BUILD_S, env={**os.environ, "XDG_CACHE_HOME": str(place)})
    return library
