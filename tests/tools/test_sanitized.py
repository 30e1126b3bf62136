"""tools/sanitized in its short form: it is clean, and what does not hold, or would not have been seen, is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import attrs
import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
RUN_S = 900


@pytest.fixture
def sanitizers(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    import sanitizers

    if lacking := sanitizers.missing():
        pytest.skip(f"needs {lacking}")
    return sanitizers


@pytest.fixture
def sanitized(sanitizers):
    import sanitized

    return sanitized


@pytest.mark.parametrize("variant", ["thread", "address"])
def test_the_short_form_is_clean(sanitizers, variant):
    command = [sys.executable, TOOLS / "sanitized.py", "--short", "--variant", variant]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (ended.stdout.count("✓"), ended.stdout.count("✗")) == (5, 0)
    assert "clean; again: tools/sanitized --short" in ended.stdout


@pytest.mark.parametrize("variant", ["thread", "address"])
def test_a_sanitizer_that_reports_no_planted_defect_is_not_believed(sanitizers, variant):
    sound = (("abi_version", "a defect"),)
    with pytest.raises(RuntimeError, match="abi_version: exit "):
        attrs.evolve(sanitizers.SANITIZERS[variant], defects=sound).launcher()


def test_a_report_is_found_wherever_it_was_written(sanitizers, tmp_path):
    assert sanitizers.reports(tmp_path, "loading m …\n") == []
    (tmp_path / "thread.7").write_text("WARNING: ThreadSanitizer: data race\n")
    said = "loading m …\njob.cpp:48:38: runtime error: shift exponent 32 is too large\n    #0 fill\n"
    assert sanitizers.reports(tmp_path, said) == [
        "WARNING: ThreadSanitizer: data race",
        "job.cpp:48:38: runtime error: shift exponent 32 is too large\n    #0 fill",
    ]


SERIES = {
    'calculet_jobs_total{engine="ping",outcome="finished",phase="decode"}': 3.0,
    'calculet_jobs_total{engine="pong",outcome="finished",phase="decode"}': 2.0,
    "calculet_device_resets_total": 2.0,
    'calrt_errors_total{code="no_capacity"}': 5.0,
    'calrt_errors_total{code="output_error"}': 1.0,
    'calrt_errors_total{code="ccu_fault"}': 1.0,
    'calrt_errors_total{code="pcie_error"}': 1.0,
}


@pytest.mark.parametrize("name", SERIES)
def test_a_run_in_which_an_engine_rested_or_a_fault_stayed_out_shows_nothing(sanitized, name):
    assert sanitized.worked(SERIES).passed
    assert not sanitized.worked({**SERIES, name: 0.0}).passed


def test_a_lane_that_is_not_free_is_named(sanitized, monkeypatch):
    class Daemon:
        def metrics(self):
            return {'calculet_kv_lanes{state="free"}': 7.0}

    monkeypatch.setattr(sanitized, "registered", lambda _daemon: "")
    assert sanitized.held(Daemon()) == "7 of 8 lanes are free"
