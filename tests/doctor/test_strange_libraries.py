"""Libraries that crash, hang, fork, print or take memory while they are loaded: the doctor tells of it, and goes on."""

from __future__ import annotations

import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from calculet_trio.doctor.finding import Mark
from calculet_trio.runtimes.calrt_abi import ABI_VERSION
from tests.doctor.native import around, constructed
from tests.doctor.recorded import assert_found, found_by

HANG_S = 1.0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("abort();", "died of SIGABRT"),
        ("*(volatile int *)0 = 1;", "died of SIGSEGV"),
        ("exit(0);", "ended with exit code 0"),
        ("_exit(42);", "ended with exit code 42"),
        ("kill(getpid(), SIGKILL);", "died of SIGKILL"),
        ('for (int fd = 3; fd < 64; ++fd) { (void)!write(fd, "{}\\n", 3); }', "meddles"),
        ('for (int fd = 3; fd < 64; ++fd) { (void)!write(fd, "[1]\\n", 4); }', "meddles"),
        ("for (int fd = 3; fd < 64; ++fd) close(fd);", "ended with exit code 1"),
    ],
)
def test_what_a_library_does_to_its_process_it_does_not_do_to_the_doctor(tmp_path: Path, body: str, said: str) -> None:
    library = constructed(tmp_path / "lib", body)
    assert_found("binding", around(library, tmp_path), Mark.FAILURE, said)


@pytest.mark.parametrize(
    "body",
    [
        "for (;;) pause();",
        "sigset_t all; sigfillset(&all); sigprocmask(SIG_BLOCK, &all, 0); for (;;) { }",
        "if (fork() == 0) for (;;) pause(); for (;;) pause();",
        "if (fork() != 0) _exit(0); for (;;) pause();",
    ],
)
def test_a_library_that_hangs_is_given_up_and_killed_with_all_that_it_started(tmp_path: Path, body: str) -> None:
    mark = tmp_path / "pids"
    note = f'FILE *f = fopen("{mark}", "a"); fprintf(f, "%d\\n", getpgrp()); fclose(f);'
    library = constructed(tmp_path / "lib", f"{note} {body}")
    finding = found_by("binding", around(library, tmp_path, process_s=HANG_S))
    assert finding.mark is Mark.FAILURE
    assert "did not end within 1 s" in finding.seen
    if mark.exists():  # on a busy machine it may not have come so far
        for group in {int(line) for line in mark.read_text().split()}:
            assert_gone(group)


def assert_gone(group: int) -> None:
    """Killed is not yet buried; whose parent is gone is buried by somebody else."""
    ends_at = time.monotonic() + 30
    while time.monotonic() < ends_at:
        if not [each for each in Path("/proc").iterdir() if each.name.isdecimal() and _lives_in(each, group)]:
            return
        select.select([], [], [], 0.01)
    pytest.fail(f"the process group {group} lives on")


def _lives_in(process: Path, group: int) -> bool:
    try:
        fields = (process / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return False
    return int(fields[2]) == group and fields[0] != "Z"


def test_a_process_that_nobody_waits_for_any_more_ends_by_itself(tmp_path: Path) -> None:
    library = constructed(tmp_path / "lib", "for (;;) pause();")
    command = [sys.executable, "-P", "-m", "calculet_trio.doctor.library_process", str(library), "", "1"]
    assert subprocess.run(command, timeout=60, check=False).returncode == -14, "SIGALRM"


def test_what_a_library_prints_goes_nowhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    body = 'for (int i = 0; i < 100000; ++i) { puts("noise"); fputs("noise", stderr); }'
    assert_found("binding", around(constructed(tmp_path / "lib", body), tmp_path), Mark.OK, f"ABI {ABI_VERSION}")
    assert capfd.readouterr() == ("", "")


def test_a_library_that_takes_memory_without_end_gets_a_gigabyte(tmp_path: Path) -> None:
    body = "for (;;) { char *p = malloc(1 << 24); if (!p) _exit(77); memset(p, 1, 1 << 24); }"
    assert_found("binding", around(constructed(tmp_path / "lib", body), tmp_path), Mark.FAILURE, "exit code 77")
