"""The unit under a real systemd: `tools/systemd_lab`, where it can be run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

LAB = Path(__file__).resolve().parents[2] / "tools" / "systemd_lab"
LAB_S = 900
UNAVAILABLE = 69


def test_the_short_lab_passes():
    answer = subprocess.run([LAB, "--short"], capture_output=True, text=True, timeout=LAB_S, check=False)
    if answer.returncode == UNAVAILABLE:
        pytest.skip(answer.stdout.strip().splitlines()[-1] if answer.stdout else answer.stderr.strip())
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout.splitlines()[-1] == "PASS: 6 scenarios"


def test_an_unknown_argument_is_wrong_usage():
    answer = subprocess.run([LAB, "--shrot"], capture_output=True, text=True, timeout=LAB_S, check=False)
    assert answer.returncode == 2
    assert "--short" in answer.stderr
