"""What the service manager that started this process would say of it; None wherever it cannot be asked.

Source: systemd.exec(5) (``INVOCATION_ID``), systemctl(1), systemd.time(7).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from calculet_trio.settings.time_span import span_s

ASKING_S: Final = 3.0
"""A manager that is busy answers late; it is not waited for."""


def stop_timeout_s(environ: Mapping[str, str] = os.environ) -> float | None:
    """``TimeoutStopSec`` of the unit that this process is of, as it holds, drop-ins included; blocks."""
    invocation = environ.get("INVOCATION_ID")
    unit = _own_unit()
    if not invocation or unit is None:
        return None
    for manager in (["--user"], []):
        shown = _ask(["systemctl", *manager, "show", unit, "--property", "InvocationID,TimeoutStopUSec"])
        if shown.get("InvocationID") == invocation:  # else it is another unit of that name, the other manager's
            return span_s(shown.get("TimeoutStopUSec", ""))
    return None


def _own_unit() -> str | None:
    try:
        groups = Path("/proc/self/cgroup").read_text("ascii", "replace")
    except OSError:
        return None
    found = re.findall(r"/([^/\n]+\.service)(?:/|$)", groups, re.MULTILINE)
    return found[-1] if found else None


def _ask(command: list[str]) -> dict[str, str]:
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=ASKING_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(line.split("=", 1) for line in answer.stdout.splitlines() if "=" in line)
