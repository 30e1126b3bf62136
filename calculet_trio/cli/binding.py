"""``calculet-trio binding``: the native half, built where it is to run. Wheels hold none of it.

Source: CLI.md "Commands"; binding/README.md.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from calculet_trio.cli import paths
from calculet_trio.cli.board import BUILDS, built_libraries
from calculet_trio.errors import ConfigurationRefused, Unavailable

SOURCE: Final = Path(__file__).resolve().parents[2] / "binding"
"""Beside the package in a checkout; an installed wheel has none."""
TOOLS: Final = ("cmake", "c++")
STEP_S: Final = 1800.0
"""A build takes half a minute; one that takes so long hangs."""
JOBS: Final = 2
LINES_SHOWN: Final = 30


@click.group()
def binding() -> None:
    """Build and find the native half, which drives a board."""


@binding.command()
@click.option(
    "--calrt",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where the vendor's SDK is installed, as /usr/local.",
)
@click.option("--emulator", is_flag=True, help="Link with the emulator of the vendor's library: no board is needed.")
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The directory `binding` of the sources. Default: the one of this checkout.",
)
@click.option("--jobs", type=click.IntRange(1, 64), default=JOBS, show_default=True, help="Compilers at a time.")
def build(calrt: Path | None, emulator: bool, source: Path | None, jobs: int) -> None:
    """Build the library with cmake and a C++ compiler, into this user's cache.

    \b
    Example:
      calculet-trio binding build --emulator
      calculet-trio binding build --calrt /usr/local
    """
    if emulator == (calrt is not None):
        raise click.UsageError("name one of --calrt DIR and --emulator")
    library = build_binding(source or SOURCE, calrt=calrt, jobs=jobs, say=click.echo)
    click.echo(f"{library} is ready; `calculet-trio serve --runtime calrt` finds it")


@binding.command()
def show() -> None:
    """Show which library a daemon would load.

    \b
    Example:
      calculet-trio binding show
    """
    from calculet_trio.cli.board import found_library

    path, is_emulator = found_library()
    click.echo(f"{path}: {'the emulator of the vendor library' if is_emulator else 'the vendor library'}")


def build_binding(source: Path, *, calrt: Path | None, jobs: int, say: Callable[[str], None]) -> Path:
    """Configure, compile, install; what was built before stays until the new one is whole.

    Args:
        source: the directory ``binding``.
        calrt: where the vendor's SDK is; None for the emulator.
        jobs: compilers at a time.
        say: told of each step.

    Returns:
        The library.

    Raises:
        ConfigurationRefused: there are no sources there.
        Unavailable: cmake or a compiler is missing, or one of them failed; the message has its last words.
    """
    if not (source / "CMakeLists.txt").is_file():
        raise ConfigurationRefused(
            f"{source} has no CMakeLists.txt: an installed package holds no sources of the binding",
            hint="take a checkout of the sources, and name its directory `binding` with --source",
        )
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise Unavailable(f"{' and '.join(missing)} not found", hint="on Debian: sudo apt-get install cmake g++")
    place = paths.binding(BUILDS[calrt is None])
    with _alone(place):
        work = place / "build"
        configure = ["cmake", "-S", str(source), "-B", str(work), "-DCMAKE_BUILD_TYPE=Release"]
        configure += ["-DCALRT_INSTALL_DIR=" + ("" if calrt is None else str(calrt.absolute()))]
        for words, command in (
            ("configuring", configure),
            ("compiling", ["cmake", "--build", str(work), "--parallel", str(jobs), "--target", "calculet_calrt"]),
            ("installing", ["cmake", "--install", str(work), "--prefix", str(place)]),
        ):
            say(f"{words} …")
            _run(command)
    return next(library for library in built_libraries() if library.is_relative_to(place))


def _run(command: Sequence[str]) -> None:
    try:
        answer = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=STEP_S
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{' '.join(command[:2])} did not end within {STEP_S:g} s") from None
    if answer.returncode:
        last = "\n".join(answer.stdout.splitlines()[-LINES_SHOWN:])
        raise Unavailable(
            f"{' '.join(command[:2])} failed:\n{last}", hint="its whole output comes by running it by hand"
        )


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """One build at a time; the second waits for the first."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        with (place / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise Unavailable(f"{place} cannot be written: {error.strerror}") from error
