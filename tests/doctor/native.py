"""Libraries for the checks to look at: copies of the emulator's, whole and broken, and small ones of strange habits."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from calculet_trio.doctor.host_tree import HostTree
from calculet_trio.doctor.native_library import NativeLibrary
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.runtimes.calrt_abi import ABI_VERSION, CALLS
from calculet_trio.runtimes.calrt_library import FILE, Place
from tests.doctor.recorded import surroundings
from tests.emulator import emulator_library

VENDOR: Final = "libcalrt-linux-x86_64.so.0.7.6"
PATIENCE_S: Final = 60.0
"""Ten times what a busy machine needs to start Python; a hang is given less where it is the subject."""
MACHINE_AT: Final = 18
AARCH64: Final = 183
COMPILE_S: Final = 60


def copy_of_emulator(place: Path) -> Path:
    """The really built library, with the emulator beside it."""
    place.mkdir(parents=True)
    source = emulator_library().parent
    shutil.copyfile(source / FILE, place / FILE)
    shutil.copyfile(source / VENDOR, place / VENDOR)
    return place / FILE


def patched(path: Path, at: int, data: bytes) -> None:
    """Write ``data`` over what stands in the file there."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def replaced(path: Path, old: bytes, new: bytes) -> None:
    """``new`` for ``old``, of the same length, everywhere in the file."""
    assert len(old) == len(new), "or everything behind it would move"
    content = path.read_bytes()
    assert old in content, f"{path} has no {old!r}"
    path.write_bytes(content.replace(old, new))


def compiled(place: Path, source: str, *arguments: str, abi: int = ABI_VERSION, name: str = FILE) -> Path:
    """A library with every call of the binding, which answers ``abi`` to each, and ``source``."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    place.mkdir(parents=True, exist_ok=True)
    calls = "\n".join(f"unsigned calculet_{each}(void) {{ return {abi}; }}" for each in CALLS)
    (place / "strange.c").write_text(f"{calls}\n{source}\n")
    command = [compiler, "-shared", "-fPIC", "-o", place / name, place / "strange.c", *arguments]
    subprocess.run(command, check=True, timeout=COMPILE_S)
    return place / name


def constructed(place: Path, body: str) -> Path:
    """A library that does ``body`` while it is loaded."""
    includes = "".join(f"#include <{each}.h>\n" for each in ("signal", "stdio", "stdlib", "string", "unistd"))
    return compiled(place, f"{includes}__attribute__((constructor)) static void begin(void) {{ {body} }}")


def around(library: Path | str, place: Path, *, process_s: float = PATIENCE_S, **changes: Any) -> Surroundings:
    """This machine, with ``library`` where a daemon would look."""
    native = NativeLibrary(
        (Place(Path(library), "a test", is_named=True),), lock=place / "board.lock", process_s=process_s
    )
    return surroundings(HostTree(), place, **{"native_library": native, **changes})
