"""Sanitizers under a Python without: the libraries built with one, how a process is started, what it reports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import attrs
import binding_tests

CXX: Final = os.environ.get("CXX", "c++")
CONTROL: Final = Path(__file__).resolve().parent / "sanitized_control.cpp"
COMPILE_S: Final = 120
CONTROL_S: Final = 60
EXIT: Final = 66
"""What a process leaves with of which a sanitizer has reported anything."""
CALL: Final = "import ctypes, sys; getattr(ctypes.CDLL(sys.argv[1]), sys.argv[2])()"
LAUNCHERS: Final[tuple[list[str], ...]] = ([], ["setarch", "-R"])
"""ThreadSanitizer of a GCC before 14 does not start where the kernel spreads addresses wider than it knows
(vm.mmap_rnd_bits above 28: "unexpected memory mapping"). setarch -R has a process not spread at all."""
REPORT_LINES: Final = 40


@attrs.frozen
class Sanitizer:
    """One way of building the libraries.

    Args:
        name: of the libraries' directory, ``lib-NAME``.
        flags: of ``-fsanitize``.
        runtime: what must be loaded before all else, since Python does not bring it.
        defects: of the control: the function that has one, and what its report says.
    """

    name: str
    flags: str
    runtime: str
    defects: tuple[tuple[str, str], ...]

    def build(self, source: Path, place: Path) -> Path | None:
        """The binding's library, over an emulator that is sanitized, too; None where it was said why there is none."""
        targets = (f"calrt_{self.name}", f"calculet_calrt_{self.name}")
        is_built = binding_tests.build("-DCALCULET_SANITIZED=ON", source=source, place=place, targets=targets)
        return place / f"lib-{self.name}" / "libcalculet_calrt.so" if is_built else None

    def environment(self, logs: Path) -> dict[str, str]:
        """What differs for a process under `launcher`; its reports come into ``logs``."""
        options = f"log_path={logs}/{self.name}:exitcode={EXIT}"
        return {
            "TSAN_OPTIONS": options,
            # No leaks: CPython keeps much until its end, and what we lose would have its frames around it. The C++
            # tests look for ours.
            "ASAN_OPTIONS": f"{options}:detect_leaks=0",
            "UBSAN_OPTIONS": f"{options}:print_stacktrace=1",
            # Each of Python's objects is a block of its own, so that a write past one that we were handed is seen.
            "PYTHONMALLOC": "malloc",
        }

    def launcher(self) -> list[str]:
        """What a command must begin with, so that each of the control's defects is reported under it.

        Raises:
            RuntimeError: nothing has them reported; the message has what was said instead.
        """
        # The C++ library beside it: Python has none, and without one the sanitizer does not find what throws.
        loaded = f"LD_PRELOAD={compilers_file(self.runtime)} {compilers_file('libstdc++.so.6')}"
        said = ""
        with tempfile.TemporaryDirectory(prefix="ct") as scratch:
            library = Path(scratch, "control.so")
            compiling = [CXX, "-shared", "-fPIC", "-g1", f"-fsanitize={self.flags}", "-fno-sanitize-recover=all"]
            if not binding_tests.ran([*compiling, CONTROL, "-o", library], COMPILE_S):
                raise RuntimeError(f"{CONTROL.name} does not compile")
            for begin in LAUNCHERS:
                launcher = [*begin, "env", loaded]  # env: what launches it could not start with that loaded
                said = next((said for what in self.defects if (said := self._missed(launcher, library, *what))), "")
                if not said:
                    return launcher
        raise RuntimeError(said)

    def _missed(self, launcher: list[str], library: Path, function: str, words: str) -> str:
        """What was said where the defect was not reported; empty if it was."""
        if shutil.which(launcher[0]) is None:
            return f"{launcher[0]} not found"
        with tempfile.TemporaryDirectory(prefix="ct") as logs:
            ended = subprocess.run(
                [*launcher, sys.executable, "-c", CALL, library, function],
                check=False,
                capture_output=True,
                text=True,
                timeout=CONTROL_S,
                env={**os.environ, **self.environment(Path(logs))},
            )
            found = "".join(reports(Path(logs), ended.stderr))
        seen = ended.returncode == EXIT and words in found
        return "" if seen else f"{function}: exit {ended.returncode}, no {words!r} in {found or ended.stderr}"


THREAD: Final = Sanitizer("thread", "thread", "libtsan.so", (("race", "data race"),))
ADDRESS: Final = Sanitizer(
    "address",
    "address,undefined",
    "libasan.so",
    (("overflow", "heap-buffer-overflow"), ("undefined", "shift exponent 32 is too large")),
)
SANITIZERS: Final = {each.name: each for each in (THREAD, ADDRESS)}


def missing() -> str:
    """What this machine lacks for all of this, for people; empty if nothing."""
    lacking = [package for program, package in binding_tests.NEEDED.items() if shutil.which(program) is None]
    if shutil.which(CXX) is not None:
        lacking += [f"{CXX}'s {name}" for name in ("libtsan.so", "libasan.so", "libubsan.so") if not has(name)]
    return ", ".join(lacking)


def has(name: str) -> bool:
    """Whether the compiler has such a file of its own."""
    return compilers_file(name).is_absolute()


def compilers_file(name: str) -> Path:
    """The compiler's own file of that name; the bare name where it has none."""
    asking = [CXX, f"-print-file-name={name}"]
    answer = subprocess.run(asking, check=True, capture_output=True, text=True, timeout=COMPILE_S)
    path = Path(answer.stdout.strip())
    return path.resolve() if path.is_absolute() else path


def reports(logs: Path, said: str) -> list[str]:
    """What sanitizers have reported, the beginning of each.

    Args:
        logs: where they write.
        said: the process's standard error, where GCC's UndefinedBehaviorSanitizer writes all the same.
    """
    texts = [path.read_text(errors="replace") for path in sorted(logs.iterdir())]
    if "runtime error: " in said:
        texts.append(said[said.rfind("\n", 0, said.index("runtime error: ")) + 1 :])
    return ["\n".join(text.splitlines()[:REPORT_LINES]) for text in texts]
