"""Graphs are walked, not loaded: every tensor has its bytes, inside of the package, or the graph is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calculet_trio.errors import PackageError
from calculet_trio.packages import graph_tensors
from calculet_trio.packages.graph_tensors import check_graph
from calculet_trio.packages.manifest_parts import FileRecord
from tests.packages.test_manifest import SHA, example

onnx = pytest.importorskip("onnx", reason="needs the host extra")

WEIGHTS_BYTES = 64
FLOAT, INT4, STRING = 1, 22, 8


def tensor(name: str = "w", dims: tuple[int, ...] = (4, 4), data_type: int = FLOAT, **external: str) -> Any:
    """A tensor of a graph; with ``external``, in another file."""
    made = onnx.TensorProto(name=name, dims=dims, data_type=data_type)
    if external:
        made.data_location = onnx.TensorProto.EXTERNAL
        for key, value in external.items():
            made.external_data.add(key=key, value=value)
    return made


def outside(**external: str) -> Any:
    return tensor(**({"location": "weights.bin", "offset": "0", "length": "64"} | external))


def initializer(made: Any) -> Any:
    return onnx.ModelProto(graph=onnx.GraphProto(name="g", initializer=[made]))


def check(directory: Path, model: Any, weights: str = "weights.bin") -> None:
    """Look into a graph beside 64 bytes of weights."""
    data = model if isinstance(model, bytes) else model.SerializeToString()
    (directory / "model.onnx").write_bytes(data)
    files = {"model.onnx": FileRecord(sha256=SHA, size_bytes=len(data))}
    files[weights] = FileRecord(sha256=SHA, size_bytes=WEIGHTS_BYTES)
    check_graph(directory, "model.onnx", attrs.evolve(example(), files=files))


@pytest.mark.parametrize(
    "made",
    [
        outside(),
        tensor(location="weights.bin"),
        tensor(location="./weights.bin", offset="0"),
        tensor(dims=(2, 4), location="weights.bin", offset="32", length="32"),
        tensor(dims=(0,), location="weights.bin", offset="64"),
        tensor(dims=(3, 3), data_type=INT4, location="weights.bin", offset="59", length="5"),
        onnx.TensorProto(name="inline", dims=(2,), data_type=FLOAT, raw_data=bytes(8)),
        onnx.TensorProto(name="values", dims=(2,), data_type=FLOAT, float_data=[1, 2]),
        onnx.TensorProto(name="words", dims=(1,), data_type=STRING, string_data=[b"x"]),
    ],
)
def test_tensors_that_have_their_bytes_are_let_through(tmp_path: Path, made: Any) -> None:
    check(tmp_path, initializer(made))


def test_weights_lie_beside_their_graph(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="no file of the package"):
        check(tmp_path, initializer(outside()), weights="parts/weights.bin")
    check(tmp_path, initializer(outside(location="parts/weights.bin")), weights="parts/weights.bin")


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (outside(location="/etc/passwd"), "'/etc/passwd', which is no file of the package"),
        (outside(location="../weights.bin"), "'../weights.bin', which is no file"),
        (outside(location="x/../weights.bin"), "'x/../weights.bin', which is no file"),
        (outside(location=""), "'', which is no file"),
        (outside(location="*/_ORT_MEM_ADDR_/*"), "which is no file"),
        (outside(offset="1"), "takes 64 bytes at 1 of weights.bin (length 64), which has 64"),
        (outside(length="63"), "takes 64 bytes at 0"),
        (outside(length="65"), "length 65), which has 64"),
        (outside(offset="99999999999999999999"), "has the offset '9999"),
        (outside(offset="-1"), "has the offset '-1'"),
        (outside(length="0x40"), "has the length '0x40'"),
        (outside(length="٣"), "has the length '٣'"),
        (tensor(dims=(2**20, 2**20), location="weights.bin"), "takes 4398046511104 bytes"),
        (tensor(dims=(2**41,), location="weights.bin"), "has the shape [2199023255552]"),
        (tensor(dims=(-1,), location="weights.bin"), "has the shape [18446744073709551615]"),
        (tensor(dims=(1,) * 17, location="weights.bin"), "has the shape"),
        (tensor(data_type=STRING, location="weights.bin"), "of the type 8, which cannot lie in another file"),
        (tensor(data_type=0, location="weights.bin"), "of the type 0"),
        (
            onnx.TensorProto(name="i", dims=(2,), data_type=FLOAT, raw_data=bytes(7)),
            "has 7 bytes, and its shape takes 8",
        ),
        (
            onnx.TensorProto(name="i", dims=(2,), data_type=FLOAT, data_location=1, raw_data=bytes(8)),
            "which is no file of the package",
        ),
    ],
)
def test_a_tensor_without_its_bytes_is_refused(tmp_path: Path, made: Any, reason: str) -> None:
    with pytest.raises(PackageError) as caught:
        check(tmp_path, initializer(made))
    assert reason in caught.value.message


def test_a_place_that_is_said_twice_is_refused(tmp_path: Path) -> None:
    """Of two entries one reader takes the first, another the last."""
    made = outside()
    made.external_data.add(key="location", value="/etc/passwd")
    with pytest.raises(PackageError, match="says twice where it lies"):
        check(tmp_path, initializer(made))


ESCAPING = outside(location="/etc/passwd")
Attribute = onnx.AttributeProto


def attribute(made: Any) -> Any:
    return onnx.ModelProto(graph=onnx.GraphProto(node=[onnx.NodeProto(attribute=[made])]))


@pytest.mark.parametrize(
    "model",
    [
        attribute(Attribute(t=ESCAPING)),
        attribute(Attribute(tensors=[outside(), ESCAPING])),
        attribute(Attribute(sparse_tensor=onnx.SparseTensorProto(values=ESCAPING))),
        attribute(Attribute(sparse_tensors=[onnx.SparseTensorProto(indices=ESCAPING)])),
        onnx.ModelProto(graph=onnx.GraphProto(sparse_initializer=[onnx.SparseTensorProto(values=ESCAPING)])),
    ],
)
def test_a_tensor_is_found_wherever_it_is(tmp_path: Path, model: Any) -> None:
    with pytest.raises(PackageError, match="no file of the package"):
        check(tmp_path, model)


EMPTY = onnx.GraphProto(name="g")


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (attribute(Attribute(name="body", g=EMPTY)), "an operator holds a graph of its own"),
        (attribute(Attribute(name="branches", graphs=[EMPTY, EMPTY])), "an operator holds a graph of its own"),
        (onnx.ModelProto(graph=EMPTY, functions=[onnx.FunctionProto(name="f")]), "it has functions of its own"),
        (onnx.ModelProto(functions=[onnx.FunctionProto(name="f")]), "it has functions of its own"),
    ],
)
def test_a_graph_that_holds_programs_is_refused(tmp_path: Path, model: Any, reason: str) -> None:
    """A loop need not end, and functions that call one another twice are without number once they are written out."""
    with pytest.raises(PackageError, match=reason):
        check(tmp_path, model)


def test_a_graph_that_is_given_twice_is_read_twice(tmp_path: Path) -> None:
    """Protocol buffers merge them; so must the walk."""
    with pytest.raises(PackageError, match="no file of the package"):
        check(tmp_path, initializer(outside()).SerializeToString() + initializer(ESCAPING).SerializeToString())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"not a graph", "is no graph that can be used"),
        (b"", "has 0 bytes"),
        (b"\x08\x07", "it holds no graph"),
        (b"\x3a\x7f", "leads past its end"),
        (b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "leads past its end"),
        (b"\xff" * 20, "does not end"),
        (b"\x3a", "does not end"),
        (b"\x3b\x00", "wire type 3"),
        (b"\x3a\x00\x02\x00", "leads past its end"),
    ],
)
def test_what_is_no_graph_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    with pytest.raises(PackageError, match=reason):
        check(tmp_path, data)


def test_the_number_of_fields_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = onnx.ModelProto(graph=onnx.GraphProto(node=[onnx.NodeProto()] * 1000))
    walk = graph_tensors._Walk
    monkeypatch.setattr(graph_tensors, "_Walk", lambda view: walk(view, fields_left=100))
    with pytest.raises(PackageError, match="more than 4000000 fields"):
        check(tmp_path, many)


def test_a_graph_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "model.onnx").open("wb") as file:
        file.truncate(graph_tensors.GRAPH_BYTES_MAX + 1)
    record = FileRecord(sha256=SHA, size_bytes=graph_tensors.GRAPH_BYTES_MAX + 1)
    with pytest.raises(PackageError, match="allowed for a graph"):
        check_graph(tmp_path, "model.onnx", attrs.evolve(example(), files={"model.onnx": record}))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(change=st.tuples(st.integers(0, 60), st.integers(0, 255)))
def test_no_changed_byte_breaks_the_walk(tmp_path: Path, change: tuple[int, int]) -> None:
    data = bytearray(attribute(Attribute(tensors=[outside()])).SerializeToString())
    data[change[0] % len(data)] = change[1]
    refused(lambda: check(tmp_path, bytes(data)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.binary(min_size=1, max_size=64))
def test_no_bytes_break_the_walk(tmp_path: Path, data: bytes) -> None:
    refused(lambda: check(tmp_path, data))


def refused(work: Callable[[], None]) -> None:
    """Done, or refused with a sentence of bounded length."""
    sentence = ""
    try:
        work()
    except PackageError as error:
        sentence = error.message
    assert len(sentence) < 1000
