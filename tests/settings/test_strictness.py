"""Every key of both schemas: what is right goes round unchanged, what is wrong is named by its path, whatever it is."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculet_trio.settings.allowed import KeyPath, dotted
from calculet_trio.settings.configuration import KINDS
from calculet_trio.settings.document import Document
from calculet_trio.settings.json_schema import json_schema
from calculet_trio.settings.keys import keys_of
from calculet_trio.settings.structuring import plain, structured
from tests.settings.values import PATIENT, documents, right, wrong

SCHEMAS = {name: jsonschema.Draft202012Validator(json_schema(kind)) for name, kind in KINDS.items()}
BOTH = pytest.mark.parametrize("name", list(KINDS))
DIGEST = "a" * 64


def read(name: str, values: dict[Any, Any]):
    return structured(Document("f.yaml", Path(), values), KINDS[name])


def full(name: str) -> dict[str, Any]:
    """Every key there is, with an entry in every list."""
    values: dict[str, Any] = {"schema": name, **defaults(KINDS[name])}
    if "tenants" in values:
        values["tenants"] = [defaults(type_at(name, ("tenants",))) | {"name": "acme", "key_sha256": [DIGEST]}]
        values["models"] = [defaults(type_at(name, ("models",)))]
    return values


def defaults(kind: type) -> dict[str, Any]:
    return {
        each.name: defaults(each.section) if each.section and each.entries_max is None else plain(each.default)
        for each in keys_of(kind)
        if not each.is_required
    }


def type_at(name: str, path: KeyPath) -> type:
    kind: Any = KINDS[name]
    for part in path:
        if isinstance(part, str):
            kind = next(each.section for each in keys_of(kind) if each.name == part)
    return kind


def places(kind: type, path: KeyPath = ()) -> list[tuple[KeyPath, Any]]:
    """Every key, however deep, with what is allowed there (None for a section)."""
    found: list[tuple[KeyPath, Any]] = []
    for each in keys_of(kind):
        place = (*path, each.name)
        found.append((place, each.allowed))
        if each.section is not None:
            found += places(each.section, place if each.entries_max is None else (*place, 0))
    return found


PLACES = [(name, path, allowed) for name, kind in KINDS.items() for path, allowed in places(kind)]
LEAVES = [place for place in PLACES if place[2] is not None]
SECTIONS = [place for place in PLACES if place[2] is None]
EACH_LEAF = pytest.mark.parametrize(
    ("name", "path", "allowed"), LEAVES, ids=[f"{name.split('/')[0]}:{dotted(path)}" for name, path, _ in LEAVES]
)
EACH_SECTION = pytest.mark.parametrize(
    ("name", "path"),
    [place[:2] for place in SECTIONS],
    ids=[f"{name.split('/')[0]}:{dotted(path)}" for name, path, _ in SECTIONS],
)


def put(values: Any, path: KeyPath, value: Any) -> Any:
    changed = copy.deepcopy(values)
    place = changed
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return changed


def as_json(values: Any) -> Any:
    """With the keys that JSON has."""
    if isinstance(values, dict):
        return {str(key): as_json(value) for key, value in values.items()}
    return [as_json(value) for value in values] if isinstance(values, list) else values


@BOTH
def test_every_key_at_its_default_is_right(name: str) -> None:
    settings, faults = read(name, full(name))
    assert faults == ()
    assert plain(settings) == full(name)
    SCHEMAS[name].validate(full(name))


@BOTH
@PATIENT
@given(data=st.data())
def test_what_is_right_goes_round(name: str, data: st.DataObject) -> None:
    values = data.draw(documents(KINDS[name]))
    settings, faults = read(name, values)
    assert settings is not None
    # Right by themselves, keys may still not go together; that is another sentence, and another test.
    assert all("is " not in fault.problem or "allowed" not in str(fault) for fault in faults), faults
    assert read(name, plain(settings))[0] == settings
    SCHEMAS[name].validate(as_json(values))


@EACH_LEAF
def test_a_wrong_value_is_named_by_its_path(name: str, path: KeyPath, allowed: Any) -> None:
    for value in wrong(allowed):
        _, faults = read(name, put(full(name), path, value))
        assert [fault.path[: len(path)] for fault in faults] == [path], (value, faults)
        assert faults[0].allowed
        assert dotted(path) in str(faults[0])


@EACH_SECTION
def test_a_section_must_be_one(name: str, path: KeyPath) -> None:
    for value in (None, 1, True, "schema", [1], [[]], "x" * 1000):
        _, faults = read(name, put(full(name), path, value))
        assert faults, value
        assert {fault.path[: len(path)] for fault in faults} == {path}, (value, faults)


@EACH_LEAF
def test_an_editor_refuses_what_we_refuse(name: str, path: KeyPath, allowed: Any) -> None:
    for value in wrong(allowed):
        if not _is_beyond_json(value):
            assert not SCHEMAS[name].is_valid(as_json(put(full(name), path, value))), value


def _is_beyond_json(value: Any) -> bool:
    """JSON Schema takes 1.0 for an integer, JSON has no infinity, and its keys are texts."""
    if isinstance(value, dict) and any(key.isdigit() if isinstance(key, str) else key > 1024 for key in value):
        return True
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return any(isinstance(each, float) and (not math.isfinite(each) or each == int(each)) for each in inner)


@PATIENT
@given(data=st.data())
def test_every_fault_is_told_at_once(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(list(KINDS)))
    leaves = [(path, allowed) for known, path, allowed in LEAVES if known == name]
    broken = data.draw(st.lists(st.sampled_from(leaves), min_size=2, max_size=6, unique_by=lambda leaf: leaf[0]))
    values = full(name)
    for path, allowed in broken:
        values = put(values, path, data.draw(st.sampled_from(wrong(allowed))))
    _, faults = read(name, values)
    told = [fault.path for fault in faults]
    for path, _ in broken:
        assert any(each[: len(path)] == path for each in told), (path, faults)
    assert len({(fault.path, fault.problem) for fault in faults}) == len(faults)


@PATIENT
@given(data=st.data())
def test_a_misspelt_key_is_named_with_the_nearest_one(data: st.DataObject) -> None:
    name, path, _ = data.draw(st.sampled_from(PLACES))
    key = str(path[-1])
    at = data.draw(st.integers(0, len(key)))
    misspelt = key[:at] + data.draw(st.sampled_from("xqzj")) + key[at:]
    changed = put(full(name), (*path[:-1], misspelt), 1)
    _, faults = read(name, changed)
    [fault] = [each for each in faults if each.path == (*path[:-1], misspelt)]
    assert "not a known key" in fault.problem
    assert "did you mean" in fault.problem or len(key) < 4
    assert key in fault.allowed.split(", ")
    assert not SCHEMAS[name].is_valid(as_json(changed))


@BOTH
def test_the_schema_must_be_named(name: str) -> None:
    [fault] = read(name, {})[1]
    assert (fault.key, fault.problem, fault.allowed) == ("schema", "is missing", name)


@PATIENT
@given(value=right(next(allowed for _, path, allowed in LEAVES if path[-1] == "thresholds")))
def test_a_mapping_keeps_its_numbers(value: dict[int, int]) -> None:
    settings, _ = read("calculet-scheduler/v1", {"schema": "calculet-scheduler/v1", "batch": {"thresholds": value}})
    assert settings is not None
    assert settings.batch.thresholds == value
