"""A process that is asked one thing, whose answer is one line, and that is gone afterwards whatever it does."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import attrs

ANSWER_BYTES_MAX: Final = 64 * 1024
DEATH_S: Final = 0.5
"""A process that was killed is gone at once, unless it is inside a driver's call; then nobody waits for it."""


@attrs.frozen
class Ended:
    """How it went.

    Args:
        said: its first line without the line's end, or what there is of it.
        how: why that is not a whole line, in words that follow the process's name; empty if it is.
    """

    said: bytes
    how: str = ""


def one_line(command: Sequence[str], environment: Mapping[str, str], within_s: float) -> Ended:
    """Run ``command`` in a session of its own and take its first line of output; all that is left of it is killed.

    Args:
        command: the program and its arguments.
        environment: its whole environment.
        within_s: how long it may take.

    Raises:
        OSError: it cannot be started.
    """
    ends_at = time.monotonic() + within_s
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout is not None, "it was asked for"
    try:
        return _listen(process, process.stdout.fileno(), ends_at, within_s)
    finally:
        process.stdout.close()
        _end(process)


def _listen(process: subprocess.Popen[bytes], pipe: int, ends_at: float, within_s: float) -> Ended:
    said = b""  # at most a piece more than the bound
    readable = select.poll()
    readable.register(pipe, select.POLLIN)
    while b"\n" not in said:
        # Only until the line's end: what the process has forked may hold the pipe open for ever.
        if not readable.poll(max(0.0, ends_at - time.monotonic()) * 1000):
            return Ended(said, f"did not end within {within_s:g} s")
        piece = os.read(pipe, ANSWER_BYTES_MAX)
        said += piece
        if len(said) > ANSWER_BYTES_MAX:
            return Ended(said, f"said more than {ANSWER_BYTES_MAX} bytes")
        if not piece:
            return Ended(said, _how_it_died(process, ends_at))
    return Ended(said.partition(b"\n")[0])


def _how_it_died(process: subprocess.Popen[bytes], ends_at: float) -> str:
    try:
        code = process.wait(max(DEATH_S, ends_at - time.monotonic()))
    except subprocess.TimeoutExpired:
        return "closed its output and did not end"
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"died of {signal.Signals(-code).name}"
    return f"died of signal {-code}"


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(DEATH_S)
