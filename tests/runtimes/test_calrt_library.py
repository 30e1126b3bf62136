"""Finding the binding's library: the order of places, and errors that say where was looked and what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from calculet_trio.errors import Unavailable
from calculet_trio.runtimes import calrt_library
from calculet_trio.runtimes.calrt import CalrtRuntime
from calculet_trio.runtimes.calrt_abi import ABI_VERSION, CALLS
from calculet_trio.runtimes.calrt_library import ENVIRONMENT, CalrtLibrary, load, places


def compiled(tmp_path: Path, source: str) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    (tmp_path / "other.c").write_text(source)
    library = tmp_path / "libcalculet_calrt.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "other.c"], check=True, timeout=60)
    return library


def test_what_is_configured_is_meant_then_the_environment_then_what_was_built_then_the_standard_paths() -> None:
    built = (Path("/cache/calrt.so"), Path("/cache/emulator.so"))
    assert [p.path for p in places(Path("/mine.so"), built, {ENVIRONMENT: "/env.so"})] == [Path("/mine.so")]
    assert [p.path for p in places(None, built, {ENVIRONMENT: "/env.so"})] == [Path("/env.so")]
    assert [p.path for p in places(None, built, {})] == [*built, *calrt_library.STANDARD]


def test_an_absent_library_is_an_error_that_says_where_was_looked_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calrt_library, "STANDARD", (tmp_path / "usr" / "lib.so",))
    with pytest.raises(Unavailable) as refused:
        load(None, (tmp_path / "built.so",), {})
    assert f"{tmp_path}/built.so (calculet-trio binding build)" in refused.value.message
    assert f"{tmp_path}/usr/lib.so (a standard path)" in refused.value.message
    assert "binding build --calrt DIR" in (refused.value.hint or "")
    with pytest.raises(Unavailable, match=r"mine\.so \(device\.library\)"):
        load(tmp_path / "mine.so", (), {})


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("not ELF")
    with pytest.raises(Unavailable, match=r"text\.so \(device\.library\) cannot be loaded"):
        load(tmp_path / "text.so", ())


def test_the_loaders_words_and_a_path_need_be_no_text(tmp_path: Path) -> None:
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    try:
        place.mkdir()
    except OSError:
        pytest.skip("this file system takes UTF-8 alone")
    (place / "text.so").write_text("not ELF")
    with pytest.raises(Unavailable, match="cannot be loaded"):
        load(place / "text.so", ())
    with pytest.raises(Unavailable, match="is not the binding"):
        load(compiled(place, "int strange(void) { return 1; }\n"), ())


def test_another_library_is_refused_by_the_call_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"is not the binding: .*calculet_abi_version"):
        load(compiled(tmp_path, "int strange(void) { return 1; }\n"), ())


def test_a_call_that_is_missing_is_named(tmp_path: Path) -> None:
    source = f"unsigned calculet_abi_version(void) {{ return {ABI_VERSION}; }}\n"
    with pytest.raises(Unavailable, match=r"is not the binding: .*calculet_code_name"):
        load(compiled(tmp_path, source), ())


def test_another_abi_is_refused_whatever_calls_it_has(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=f"has ABI 1; this version speaks {ABI_VERSION}") as refused:
        load(compiled(tmp_path, "unsigned calculet_abi_version(void) { return 1; }\n"), ())
    assert "build it again" in (refused.value.hint or "")


def test_the_emulator_is_known_by_its_marker_and_not_by_its_file(tmp_path: Path, calrt_library: CalrtLibrary) -> None:
    assert calrt_library.is_emulator
    calls = "\n".join(f"unsigned calculet_{name}(void) {{ return {ABI_VERSION}; }}" for name in CALLS)
    other = load(compiled(tmp_path, calls), ())
    assert not other.is_emulator
    assert CalrtRuntime(other).emulator is None  # so that conformance provokes nothing
    assert CalrtRuntime(calrt_library).emulator is not None
