"""YAML without its traps: bounded, no aliases, no tags, no doubled keys, and scalars that are what they look like."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from calculet_trio.settings import document as module
from calculet_trio.settings.document import BYTES_MAX, Document, read_document
from calculet_trio.settings.faults import DEFAULT, Origin
from tests.settings.values import PATIENT


@pytest.fixture(params=["libyaml", "python"])
def file(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file to write; read by either of PyYAML's parsers."""
    if request.param == "python":
        monkeypatch.setattr(module.yaml, "CSafeLoader", yaml.SafeLoader, raising=False)
    elif not hasattr(yaml, "CSafeLoader"):
        pytest.skip("this PyYAML was built without libyaml")
    return tmp_path / "f.yaml"


def values_of(file: Path, text: str):
    file.write_text(text, "utf-8")
    document, faults = read_document(file)
    assert faults == ()
    return document.values


def only_fault(file: Path, data: str | bytes):
    file.write_bytes(data if isinstance(data, bytes) else data.encode())
    document, faults = read_document(file)
    [fault] = faults
    assert document.values == {}
    return fault


def test_scalars_are_what_they_look_like(file: Path) -> None:
    read = values_of(
        file,
        "a: [1, -2, +3, 010, 1_000, 0x10, 1:30, 2026-01-01, yes, on, true, False, null, ~, '', '7', 1.5, 1e3, .5, 1.]\n"
        'b:\nc: "true"\nd: -.inf\ne: .5e+1\nf: "\\u00e9"\n',
    )
    assert read["a"] == [
        *(1, -2, 3, 10, "1_000", "0x10", "1:30", "2026-01-01", "yes", "on", True, False, None, None, "", "7", 1.5),
        *(1000.0, 0.5, 1.0),
    ]
    assert [type(each) for each in read["a"][:4]] == [int] * 4
    assert read == read | {"b": None, "c": "true", "d": -float("inf"), "e": 5.0, "f": "é"}


def test_keys_are_words_or_integers(file: Path) -> None:
    assert values_of(file, "true: 1\nnull: 2\n4: 3\n'5': 4\n1.5: 5\n") == {"true": 1, "null": 2, 4: 3, "5": 4, "1.5": 5}


def test_each_value_knows_its_line(file: Path) -> None:
    file.write_text("a:\n  b: 1\n\nc:\n  - d: 2\n    e:\n      3\n  - 4\n")
    document, _ = read_document(file)
    lines = {path: origin.line for path, origin in document.origins.items()}
    assert lines == {("a",): 1, ("a", "b"): 2, ("c",): 4, ("c", 0): 5, ("c", 0, "d"): 5, ("c", 0, "e"): 6, ("c", 1): 8}
    assert document.nearest_origin(("c", 0, "nowhere", "deep")) == Origin(str(file), 5)
    assert document.nearest_origin(("nowhere",)) == Origin(str(file))
    assert document.origin(("nowhere",)) == DEFAULT


def test_every_doubled_key_is_a_fault_and_the_first_holds(file: Path) -> None:
    file.write_text("a: 1\nb:\n  c: 1\n  c: {d: 2}\na: 3\n")
    document, faults = read_document(file)
    assert document.values == {"a": 1, "b": {"c": 1}}
    assert [str(fault) for fault in faults] == [
        f"{file}:4: b.c stands twice, first in line 3",
        f"{file}:5: a stands twice, first in line 1",
    ]


BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (BOMB, 1, "anchor or alias"),
        ("a: *nowhere\n", 1, ""),
        ("a: 1\nb: !!python/object/apply:os.system [ls]\n", 2, "a tag"),
        ("a: 1\nb: !x 1\n", 2, "a tag"),
        ("!!map {a: 1}\n", 1, "a tag"),
        ("a: 1\n? [b, c]\n: 2\n", 2, "not a plain word"),
        ("? !!str a\n: 2\n", 1, "not a plain word"),
        ("a: 1\n---\nb: 2\n", 3, "second document"),
        ("- a\n", 1, "not a mapping"),
        ("just words\n", 1, "not a mapping"),
        ("", None, "is empty"),
        ("# only a comment\n", None, "is empty"),
        ("a: 1\nb: [1, 2\nc: 3\n", 3, "is not YAML"),
        ("a: 1\n\tb: 2\n", 2, "is not YAML"),
        ("a: 'open\n", 2, "is not YAML"),
        ("a: {b: {c: {d: {e: {f: {g: {h: {i: {j: 1}}}}}}}}}\n", 1, "nested more than"),
        ("a: " + "[" * 100_000 + "\n", 1, "nest"),
        ("a: \x07\n", None, "is not YAML"),
    ],
    ids=lambda each: repr(each)[:24] if isinstance(each, str) else "",
)
def test_what_ends_the_reading_is_one_fault(file: Path, text: str, line: int | None, problem: str) -> None:
    fault = only_fault(file, text)
    assert problem in fault.problem
    assert fault.origin.line == line


def test_the_number_of_values_is_bounded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VALUES_MAX", 10)
    assert len(values_of(file, "a: [1, 2, 3, 4, 5, 6, 7, 8]\n")["a"]) == 8
    assert "holds more than 10 values" in only_fault(file, "a: [1, 2, 3, 4, 5, 6, 7, 8, 9]\n").problem


def test_bytes_that_are_no_text(file: Path) -> None:
    assert str(only_fault(file, b"a: 1\nb: \xff\n")) == f"{file}:2: is not UTF-8"
    assert "is not" in only_fault(file, b"\x00\x01\x02").problem


def test_a_byte_order_mark_is_no_part_of_the_first_key(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_document(file)[0].values == {"a": 1}


def test_size_is_bounded(file: Path) -> None:
    file.write_text("a: " + "x" * BYTES_MAX)
    assert "larger than" in only_fault(file, file.read_bytes()).problem
    assert "larger than" in read_document(Path("/dev/zero"))[1][0].problem


def test_what_cannot_be_read_says_why(file: Path) -> None:
    assert str(read_document(file)[1][0]) == f"{file}: cannot be read: {os.strerror(2)}"
    assert "directory" in read_document(file.parent)[1][0].problem


def test_digits_beyond_number_are_a_text(file: Path) -> None:
    assert values_of(file, f"a: {'9' * 5000}\n") == {"a": "9" * 5000}


@PATIENT
@given(data=st.binary(max_size=200) | st.text("ab:-[]{}&*!?|>'\"%@#, \n\t0.", max_size=80).map(str.encode))
def test_whatever_stands_in_a_file_is_values_or_faults(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    document, faults = read_document(file)
    assert document.values or faults or b"{" in data


@PATIENT
@given(
    values=st.dictionaries(
        st.text("abc", min_size=1),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("aé1.:- #'\"\n"),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
            max_leaves=6,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_what_yaml_writes_is_read_back(file: Path, values: dict[str, object]) -> None:
    text = yaml.safe_dump(values)
    if "&" not in text:
        assert values_of(file, text) == values


def test_a_flag_stands_over_the_file(tmp_path: Path) -> None:
    document = Document("f", tmp_path, {"a": {"b": 1, "c": 2}}, {("a",): Origin("f", 1), ("a", "b"): Origin("f", 2)})
    over = document.overlaid(("a", "b"), 5, "--b").overlaid(("d", "e"), [{"g": 1}], "--d")
    assert over.values == {"a": {"b": 5, "c": 2}, "d": {"e": [{"g": 1}]}}
    assert over.origin(("a", "b")) == Origin("--b")
    assert over.origin(("d", "e", 0, "g")) == Origin("--d")
    assert document.values == {"a": {"b": 1, "c": 2}}
