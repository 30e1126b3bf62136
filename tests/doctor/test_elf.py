"""Reading a library's headers: right on the real one, and one of two errors on whatever else the bytes are."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calculet_trio.doctor.elf import Elf, NoElf, read_library
from tests.doctor.native import VENDOR
from tests.emulator import emulator_library

HEADERS_BYTES = 64 + 56 * 16


@pytest.fixture(scope="module")
def whole() -> bytes:
    return emulator_library().read_bytes()


def test_the_real_one() -> None:
    library = emulator_library()
    found = read_library(library)
    assert found.soname == library.name
    assert VENDOR in found.needed
    assert library.parent in found.search
    assert found.mentions("calculet_job_submit")
    assert not found.mentions("calculet_job_submit_twice")
    assert read_library(library.parent / VENDOR).mentions("calrt_emulator_marker")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_any_bytes_are_a_library_or_say_why_not(whole: bytes, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(whole)
    places = st.one_of(st.integers(0, HEADERS_BYTES - 1), st.integers(0, len(whole) - 1))
    for place, byte in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=8)):
        content[place] = byte
    path = tmp_path / "changed.so"
    path.write_bytes(content[: data.draw(st.one_of(st.just(len(whole)), st.integers(0, len(whole))))])
    with suppress(NoElf):
        assert isinstance(read_library(path), Elf)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to(path.name)])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "library.so")
    with pytest.raises(OSError, match=r"library\.so"):
        read_library(tmp_path / "library.so")
