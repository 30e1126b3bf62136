"""The check ``binding`` on the really built library, on broken copies of it, and on libraries of strange habits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from calculet_trio.doctor.account import Account
from calculet_trio.doctor.board import binding, compatibility
from calculet_trio.doctor.board.pci import PciDevice
from calculet_trio.doctor.elf import HEADER, SEGMENT
from calculet_trio.doctor.finding import Finding, Mark
from calculet_trio.doctor.host_tree import HostTree
from calculet_trio.doctor.native_library import NativeLibrary, is_locked
from calculet_trio.runtimes.calrt_abi import ABI_VERSION
from calculet_trio.runtimes.calrt_library import FILE, Place
from tests.doctor.native import (
    AARCH64,
    MACHINE_AT,
    VENDOR,
    around,
    compiled,
    constructed,
    copy_of_emulator,
    patched,
    replaced,
)
from tests.doctor.recorded import assert_found, copy_of, found_by, surroundings

SECTIONS_AT = 40
SECTION_COUNT_AT = 60
"""``e_shoff`` and ``e_shnum``."""
OTHER = "libcalrt-linux-x86_64.so.0.7.5"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return copy_of_emulator(tmp_path / "lib")


def found(library: Path, place: Path) -> Finding:
    return found_by("binding", around(library, place))


# ---- as it should be ------------------------------------------------------------------------------------


def test_the_emulator_is_named_with_both_libraries_their_versions_and_that_it_counts_for_no_board(
    library: Path, tmp_path: Path
) -> None:
    parts = (
        f"{library} (a test)",
        f"ABI {ABI_VERSION}",
        str(library.parent / VENDOR),
        "CalRT 0.7.6",
        "CalcoreRT emulated",
    )
    assert_found("binding", around(library, tmp_path), Mark.OK, *parts, "calrt-emulator", "counts for no board")


def test_its_versions_are_a_combination_that_was_seen(library: Path, tmp_path: Path) -> None:
    assert_found("compatibility", around(library, tmp_path), Mark.OK, "CalRT 0.7.6", "seen together")


def test_two_checks_load_it_once(library: Path, tmp_path: Path) -> None:
    surrounded = around(library, tmp_path)
    first = surrounded.native_library.look()
    library.unlink()
    assert surrounded.native_library.look() is first


def test_a_link_to_it_is_followed_as_the_daemon_does(library: Path, tmp_path: Path) -> None:
    (library.parent / "link.so").symlink_to(library)
    assert found(library.parent / "link.so", tmp_path).mark is Mark.OK


def test_a_path_that_is_no_utf_8(library: Path, tmp_path: Path) -> None:
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe"))
    try:
        library.parent.rename(place)
    except OSError:
        pytest.skip("this file system takes UTF-8 alone")
    assert_found("binding", around(place / FILE, tmp_path), Mark.OK, f"ABI {ABI_VERSION}", "calrt-emulator")


# ---- none, or not where one thinks ----------------------------------------------------------------------


def test_without_one_it_says_where_was_looked(tmp_path: Path) -> None:
    finding = found(tmp_path / "none.so", tmp_path)
    assert finding.mark is Mark.FAILURE, "somebody has named it"
    assert f"{tmp_path}/none.so (a test)" in finding.seen
    assert "binding build --calrt DIR" in (finding.todo or "")


def test_without_one_a_machine_that_serves_on_its_cpu_is_well(tmp_path: Path) -> None:
    native = NativeLibrary((Place(tmp_path / "none.so", "a standard path"),))
    surrounded = surroundings(HostTree(), tmp_path, native_library=native)
    assert_found("binding", surrounded, Mark.OK, f"{tmp_path}/none.so (a standard path)", "nothing here needs it")
    assert_found("binding", attrs.evolve(surrounded, needs_board=True), Mark.FAILURE, "there is no")


def test_what_is_there_and_is_no_file_is_passed_over_and_said(library: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.so")
    (tmp_path / "directory.so").mkdir()
    (tmp_path / "loop.so").symlink_to("loop.so")
    names = ("fifo.so", "directory.so", "loop.so")
    places = tuple(Place(tmp_path / name, "a test") for name in names)
    seen = NativeLibrary((*places, Place(library, "the last"))).look()
    assert seen.place == Place(library, "the last")
    assert [each.rpartition("/")[2] for each in seen.passed] == [
        "fifo.so (a test: there, and not a file)",
        "directory.so (a test: there, and not a file)",
        "loop.so (a test: Too many levels of symbolic links)",
    ]


def test_nothing_of_a_recorded_host_is_loaded(library: Path, tmp_path: Path) -> None:
    surrounded = attrs.evolve(around(library, tmp_path), tree=copy_of("board", tmp_path))
    assert_found("binding", surrounded, Mark.OK, "recorded elsewhere")


# ---- broken files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [FILE, VENDOR])
def test_a_library_of_another_machine(library: Path, tmp_path: Path, broken: str) -> None:
    patched(library.parent / broken, MACHINE_AT, bytes([AARCH64]))
    finding = found(library, tmp_path)
    assert finding.mark is Mark.FAILURE
    assert f"{library.parent / broken} is for another machine: aarch64" in finding.seen


@pytest.mark.parametrize("broken", [FILE, VENDOR])
@pytest.mark.parametrize("kept", [0, 3, 4, 63, 64, 4096, 0.3, 0.9, -1])
def test_a_library_that_is_cut_short(library: Path, tmp_path: Path, broken: str, kept: float) -> None:
    path = library.parent / broken
    size_bytes = path.stat().st_size
    left = int(size_bytes * kept) if 0 < kept < 1 else int(kept) % size_bytes
    with path.open("r+b") as file:
        file.truncate(left)
    finding = found(library, tmp_path)
    assert finding.mark is Mark.FAILURE
    said = {0: "is empty", 3: "is not an ELF file"}.get(left, "is cut short")
    assert f"{path} {said}" in finding.seen, finding
    assert "build it again" in (finding.todo or "")


@pytest.mark.parametrize("broken", [FILE, VENDOR])
def test_a_hole_in_the_middle_is_a_death_that_is_told(library: Path, tmp_path: Path, broken: str) -> None:
    path = library.parent / broken
    patched(path, 0x400, bytes(path.stat().st_size - 0x800))
    finding = found(library, tmp_path)
    assert finding.mark is Mark.FAILURE
    assert str(library.parent) in finding.seen


def end_of_segments(path: Path) -> int:
    """Where the last byte that is loaded ends."""
    content = path.read_bytes()
    header = HEADER.unpack_from(content)
    at, count = header[5], header[10]
    segments = SEGMENT.iter_unpack(content[at : at + count * SEGMENT.size])
    return max(segment[2] + segment[5] for segment in segments)


@pytest.mark.parametrize("broken", [FILE, VENDOR])
def test_a_library_without_sections_that_is_cut_short(library: Path, tmp_path: Path, broken: str) -> None:
    path = library.parent / broken
    patched(path, SECTIONS_AT, bytes(8))
    patched(path, SECTION_COUNT_AT, bytes(2))
    assert found(library, tmp_path).mark is Mark.OK, "what is loaded needs none"
    os.truncate(path, end_of_segments(path) - 1)
    assert_found("binding", around(library, tmp_path), Mark.FAILURE, f"{path} is cut short")


def test_text_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("not ELF")
    assert_found("binding", around(tmp_path / "text.so", tmp_path), Mark.FAILURE, "is not an ELF file", "a test")


def test_a_program_is_no_library_and_a_32_bit_one_neither(library: Path, tmp_path: Path) -> None:
    patched(library, 16, b"\x02")
    assert "not a shared library" in found(library, tmp_path).seen
    patched(library, 4, b"\x01")
    assert "is for another machine: 32 bit, little-endian" in found(library, tmp_path).seen


def test_the_loader_passes_over_what_is_of_another_machine_where_it_searches(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = copy_of_emulator(tmp_path / "other").parent
    patched(other / VENDOR, MACHINE_AT, bytes([AARCH64]))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(other))
    assert_found("binding", around(library, tmp_path), Mark.OK, f"with {library.parent / VENDOR}")
    shutil.copyfile(library.parent / VENDOR, other / VENDOR)
    assert_found("binding", around(library, tmp_path), Mark.OK, f"with {other / VENDOR}")


def test_without_the_vendors_library_the_loader_says_which_is_missing(library: Path, tmp_path: Path) -> None:
    (library.parent / VENDOR).unlink()
    assert_found("binding", around(library, tmp_path), Mark.FAILURE, "cannot be loaded", VENDOR, "No such file")


def test_a_vendors_library_without_what_the_binding_calls(library: Path, tmp_path: Path) -> None:
    compiled(tmp_path / "other", "", name=VENDOR).replace(library.parent / VENDOR)
    assert_found("binding", around(library, tmp_path), Mark.FAILURE, "cannot be loaded", "undefined symbol")


def test_a_vendors_library_that_calls_itself_another_version(library: Path, tmp_path: Path) -> None:
    replaced(library.parent / VENDOR, b"\0libcalrt-linux-x86_64.so.0.7.6\0", b"\0libcalrt-linux-x86_64.so.0.7.5\0")
    parts = (f"is called {VENDOR}", "calls itself libcalrt-linux-x86_64.so.0.7.5")
    assert_found("binding", around(library, tmp_path), Mark.WARNING, *parts)


def test_a_vendors_library_whose_name_and_word_differ(library: Path, tmp_path: Path) -> None:
    for path in (library, library.parent / VENDOR):
        replaced(path, b"\0" + VENDOR.encode() + b"\0", b"\0" + OTHER.encode() + b"\0")
    (library.parent / VENDOR).rename(library.parent / OTHER)
    parts = (f"is called {OTHER}", "says that it is 0.7.6")
    assert_found("binding", around(library, tmp_path), Mark.WARNING, *parts)


def test_a_vendors_library_of_another_version_is_no_combination_that_was_seen(tmp_path: Path) -> None:
    place = tmp_path / "lib"
    marked = 'const char calrt_emulator_marker[] = "calrt-emulator";'
    vendor = compiled(place, marked, f"-Wl,-soname,{OTHER}", name=OTHER)
    library = compiled(place, "", "-Wl,--no-as-needed", str(vendor), "-Wl,-rpath,$ORIGIN")
    surrounded = around(library, tmp_path)
    assert_found("binding", surrounded, Mark.OK, "CalRT 0.7.5", str(vendor))
    assert_found("compatibility", surrounded, Mark.WARNING, "never tried", "calrt 0.7.5", "(tried was calrt 0.7.6)")


def test_a_missing_call_is_named(tmp_path: Path) -> None:
    library = compiled(tmp_path / "lib", "")
    replaced(library, b"\0calculet_widen\0", b"\0calculet_wide_\0")
    assert_found("binding", around(library, tmp_path), Mark.FAILURE, "is not the binding", "it has no calculet_widen")


def test_without_a_word_on_its_abi_it_is_another_library_and_is_not_loaded(tmp_path: Path) -> None:
    library = constructed(tmp_path / "lib", "abort();")
    replaced(library, b"\0calculet_abi_version\0", b"\0calculet_abi_versioN\0")
    assert_found("binding", around(library, tmp_path), Mark.FAILURE, "it has no calculet_abi_version")


def test_a_call_that_is_mentioned_and_not_defined_is_missing_too(tmp_path: Path) -> None:
    source = "extern void calculet_later(void) __attribute__((weak)); void *keep(void) { return calculet_later; }"
    library = compiled(tmp_path / "lib", source)
    replaced(library, b"\0calculet_widen\0", b"\0calculet_abcde\0")
    replaced(library, b"\0calculet_later\0", b"\0calculet_widen\0")
    assert_found("binding", around(library, tmp_path), Mark.FAILURE, "it has no calculet_widen")


def test_another_abi_is_said_before_the_calls_that_it_lacks(tmp_path: Path) -> None:
    library = compiled(tmp_path / "lib", "", abi=7)
    replaced(library, b"\0calculet_widen\0", b"\0calculet_wide_\0")
    assert_found(
        "binding", around(library, tmp_path), Mark.FAILURE, f"{library} has ABI 7; this version speaks {ABI_VERSION}"
    )


def test_a_name_in_it_that_is_no_text_is_an_error_of_the_loader(library: Path, tmp_path: Path) -> None:
    replaced(library, b"GLIBCXX_3.4\0", b"GLIBCXX_3.\xff\0")
    assert_found("binding", around(library, tmp_path), Mark.FAILURE, "cannot be loaded", "GLIBCXX_3.\ufffd")


def test_a_missing_call_at_a_path_that_is_no_text(tmp_path: Path) -> None:
    library = compiled(tmp_path / "lib", "")
    replaced(library, b"\0calculet_widen\0", b"\0calculet_wide_\0")
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe"))
    try:
        library.parent.rename(place)
    except OSError:
        pytest.skip("this file system takes UTF-8 alone")
    assert_found("binding", around(place / FILE, tmp_path), Mark.FAILURE, "it has no calculet_widen")


# ---- a board that somebody holds ------------------------------------------------------------------------


HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_vendors_library_is_not_loaded_while_the_board_is_held_and_the_lock_stays(tmp_path: Path) -> None:
    library = constructed(tmp_path / "lib", "abort();")
    lock = tmp_path / "board.lock"
    command = [sys.executable, "-c", HOLDER, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert is_locked(lock)
        assert_found("binding", around(library, tmp_path), Mark.OK, str(library), "the board is held")
        assert is_locked(lock)
        holder.communicate()
    assert not is_locked(lock)
    assert_found("binding", around(library, tmp_path), Mark.FAILURE, "SIGABRT")


def test_the_emulator_is_loaded_beside_a_process_that_holds_the_lock(library: Path, tmp_path: Path) -> None:
    lock = tmp_path / "board.lock"
    command = [sys.executable, "-c", HOLDER, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert_found("binding", around(library, tmp_path), Mark.OK, f"ABI {ABI_VERSION}", "CalcoreRT emulated")
        assert is_locked(lock)
        holder.communicate()


def test_a_lock_that_is_no_file_may_be_held_and_none_is_not(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert is_locked(tmp_path / "fifo")
    assert not is_locked(tmp_path / "none")


# ---- a board ------------------------------------------------------------------------------------------------


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> None:
    """A board on this machine's bus, as far as these checks look."""
    for module in (binding, compatibility):
        monkeypatch.setattr(module, "boards_of", lambda _tree: [PciDevice("0000:01:00.0", "0xc001")])


@pytest.mark.usefixtures("board")
def test_an_emulator_beside_a_board_is_a_warning(library: Path, tmp_path: Path) -> None:
    assert_found("binding", around(library, tmp_path), Mark.WARNING, "a board is there", "its emulator")


@pytest.mark.usefixtures("board")
def test_a_board_without_a_library_is_a_warning_where_the_cpu_serves(tmp_path: Path) -> None:
    native = NativeLibrary((Place(tmp_path / "none.so", "a standard path"),))
    assert_found("binding", surroundings(HostTree(), tmp_path, native_library=native), Mark.WARNING, "there is no")


@pytest.mark.usefixtures("board")
def test_a_boards_versions_are_its_drivers_and_those_of_the_library_that_would_be_loaded(tmp_path: Path) -> None:
    place = tmp_path / "lib"
    vendor = compiled(place, "", f"-Wl,-soname,{OTHER}", name=OTHER)
    library = compiled(place, "", "-Wl,--no-as-needed", str(vendor), "-Wl,-rpath,$ORIGIN")
    surrounded = around(library, tmp_path)
    assert_found("binding", surrounded, Mark.OK, "CalRT 0.7.5", "CalcoreRT is known once it is opened")
    assert_found("compatibility", surrounded, Mark.WARNING, "server ", "calrt 0.7.5, driver unknown", "never tried")


# ---- an account that may not ----------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_library_that_may_not_be_read(library: Path, tmp_path: Path) -> None:
    library.chmod(0)
    assert_found("binding", around(library, tmp_path), Mark.FAILURE, "cannot be read: Permission denied")


def test_the_account_is_not_asked_for_more_than_it_has(library: Path, tmp_path: Path) -> None:
    surrounded = around(library, tmp_path, account=Account.own(HostTree()))
    assert found_by("binding", surrounded).mark is Mark.OK
