"""Where a graph's tensors lie: an ONNX file is walked without being loaded, and each tensor held against its bytes.

A graph names the bytes of its weights by file, offset and length. A name that leads out of the package, or bytes past
the end of the file, must be found before a runtime maps them. The walk reads what says so and skips the rest; it needs
no library, so that a doctor and a board's host can make it, and holds the file, which is small, and nothing else.

A graph that holds programs is refused: a loop need not end, and functions that call one another twice, thirty deep, are
a million operators once a runtime has written them out. No model here needs either.

Source: ONNX ``onnx.proto`` (field numbers); Protocol Buffers, "Encoding".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

import attrs

from calculet_trio.errors import PackageError
from calculet_trio.packages.manifest import Manifest
from calculet_trio.regular_file import open_regular

GRAPH_BYTES_MAX: Final = 64 << 20
"""Weights lie beside a graph; without them the largest has a megabyte."""
FIELDS_MAX: Final = 4_000_000
"""The small reference model's graph has 10,000; a walk over so many takes seconds and ends."""
DIMENSIONS_MAX: Final = 16
TEXT_BYTES_MAX: Final = 4096

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_TENSOR, _MODEL, _FUNCTION, _BRANCH = "tensor", "model", "function", "branch"
_WITHIN: Final[Mapping[str, Mapping[int, str]]] = {
    _MODEL: {7: "graph", 25: _FUNCTION},
    "graph": {1: "node", 5: _TENSOR, 15: "sparse tensor"},
    "node": {5: "attribute"},
    "attribute": {5: _TENSOR, 10: _TENSOR, 6: _BRANCH, 11: _BRANCH, 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: _TENSOR, 2: _TENSOR},
}
"""Messages that may hold a tensor, or are refused, by the fields that lead to one."""
_REFUSED: Final[Mapping[str, str]] = {
    _FUNCTION: "it has functions of its own",
    _BRANCH: "an operator holds a graph of its own, for a branch or a loop",
}
_DIMS, _DATA_TYPE, _NAME, _RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 1, 2, 8, 9, 13, 14
_EXTERNAL: Final = 1
_BITS: Final[Mapping[int, int]] = {
    1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64, 15: 128, 16: 16,
    17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4,
}  # fmt: skip
"""Bits of an element by ``TensorProto.DataType``; strings have no size, and no place outside of the graph."""

_Field = tuple[int, int, int, int]
"""Number, wire type, and where its bytes begin and end; of a varint, its value twice."""


class _Broken(Exception):
    """The file is not what it should be, in words."""


@attrs.define
class _Tensor:
    """What a graph says of one tensor."""

    name: str = ""
    dims: list[int] = attrs.field(factory=list)
    data_type: int = 0
    raw_bytes: int | None = None
    is_external: bool = False
    external: dict[str, str] = attrs.field(factory=dict)


def check_graph(directory: Path, name: str, manifest: Manifest) -> None:
    """Every tensor of the graph ``name`` has its bytes, inside of the package.

    Args:
        directory: the package; its files must have been checked.
        name: the graph's file in it.
        manifest: the package's manifest.

    Raises:
        PackageError: the file is no graph, or a tensor leads out of the package or past the end of its file.
    """
    path = directory / name
    size_bytes = manifest.files[name].size_bytes
    if not 0 < size_bytes <= GRAPH_BYTES_MAX:
        raise PackageError(f"{path} has {size_bytes} bytes; allowed for a graph: 1 to {GRAPH_BYTES_MAX}")
    with open_regular(path) as file:
        view = file.read(size_bytes)  # not mapped: who shortens the file meanwhile would end the process
    try:
        for tensor in _Walk(view).tensors():
            _check_tensor(tensor, name, manifest)
    except _Broken as problem:
        raise PackageError(f"{path} is no graph that can be used: {problem}") from None


def _check_tensor(tensor: _Tensor, graph: str, manifest: Manifest) -> None:
    what = f"the tensor {tensor.name!r}"
    bits = _BITS.get(tensor.data_type)
    if len(tensor.dims) > DIMENSIONS_MAX or any(not 0 <= extent < 2**40 for extent in tensor.dims):
        raise _Broken(f"{what} has the shape {tensor.dims[:DIMENSIONS_MAX]}")
    needed_bytes = None if bits is None else (math.prod(tensor.dims) * bits + 7) // 8
    if not (tensor.is_external or tensor.external):
        if tensor.raw_bytes is not None and tensor.raw_bytes != needed_bytes:
            raise _Broken(f"{what} has {tensor.raw_bytes} bytes, and its shape takes {needed_bytes}")
        return
    if needed_bytes is None:
        raise _Broken(f"{what} is of the type {tensor.data_type}, which cannot lie in another file")
    location = tensor.external.get("location", "")
    file = (PurePosixPath(graph).parent / location).as_posix()
    if not location or file not in manifest.files:
        raise _Broken(f"{what} lies in {location[:80]!r}, which is no file of the package")
    there_bytes = manifest.files[file].size_bytes
    offset = _number(tensor, "offset", 0)
    length = _number(tensor, "length", there_bytes - offset)
    if offset + length > there_bytes or length < needed_bytes:
        raise _Broken(
            f"{what} takes {needed_bytes} bytes at {offset} of {file} (length {length}), which has {there_bytes}"
        )


def _number(tensor: _Tensor, key: str, default: int) -> int:
    text = tensor.external.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise _Broken(f"the tensor {tensor.name!r} has the {key} {text[:80]!r}")
    return int(text)


# ---- the walk -----------------------------------------------------------------------------------------


@attrs.define
class _Walk:
    """One pass over a file: a bounded number of fields, none of them past the end of what it is part of."""

    view: bytes
    fields_left: int = FIELDS_MAX

    def tensors(self) -> Iterator[_Tensor]:
        """Every tensor of the model, wherever it is nested."""
        yield from self._within(0, len(self.view), _MODEL)

    def _within(self, begin: int, end: int, kind: str) -> Iterator[_Tensor]:
        if kind in _REFUSED:
            raise _Broken(_REFUSED[kind])
        if kind == _TENSOR:
            yield self._tensor(begin, end)
            return
        within = _WITHIN[kind]
        found = kind != _MODEL
        for number, wire, first, last in self._fields(begin, end):
            if number in within and wire == _BYTES:
                found = True
                yield from self._within(first, last, within[number])
        if not found:
            raise _Broken("it holds no graph")

    def _tensor(self, begin: int, end: int) -> _Tensor:
        tensor = _Tensor()
        for number, wire, first, last in self._fields(begin, end):
            if number == _DIMS and len(tensor.dims) <= DIMENSIONS_MAX:
                tensor.dims += [first] if wire == _VARINT else self._packed(first, last)
            elif number == _DATA_TYPE and wire == _VARINT:
                tensor.data_type = first
            elif number == _NAME and wire == _BYTES:
                tensor.name = self._text(first, last)[:80]
            elif number == _RAW_DATA and wire == _BYTES:
                tensor.raw_bytes = last - first
            elif number == _DATA_LOCATION and wire == _VARINT:
                tensor.is_external |= first == _EXTERNAL
            elif number == _EXTERNAL_DATA and wire == _BYTES:
                self._place(tensor, first, last)
        return tensor

    def _place(self, tensor: _Tensor, begin: int, end: int) -> None:
        """One entry of where the tensor lies: a key and its value."""
        entry = {
            number: self._text(first, last) for number, wire, first, last in self._fields(begin, end) if wire == _BYTES
        }
        key, value = entry.get(1, ""), entry.get(2, "")
        if tensor.external.setdefault(key, value) != value:
            raise _Broken(f"the tensor {tensor.name!r} says twice where it lies")

    def _packed(self, begin: int, end: int) -> list[int]:
        found: list[int] = []
        while begin < end and len(found) <= DIMENSIONS_MAX:
            value, begin = self._varint(begin, end)
            found.append(value)
        return found

    def _fields(self, begin: int, end: int) -> Iterator[_Field]:
        while begin < end:
            self.fields_left -= 1
            if self.fields_left < 0:
                raise _Broken(f"it has more than {FIELDS_MAX} fields")
            key, begin = self._varint(begin, end)
            number, wire = key >> 3, key & 7
            if wire == _VARINT:
                value, begin = self._varint(begin, end)
                yield number, wire, value, value
                continue
            if wire == _BYTES:
                length, begin = self._varint(begin, end)
            elif wire in (_FIXED32, _FIXED64):
                length = 4 if wire == _FIXED32 else 8
            else:
                raise _Broken(f"wire type {wire} at byte {begin}")
            if number == 0 or length > end - begin:
                raise _Broken(f"a field of {length} bytes at byte {begin} leads past its end")
            yield number, wire, begin, begin + length
            begin += length

    def _varint(self, begin: int, end: int) -> tuple[int, int]:
        value = 0
        for shift in range(0, 70, 7):
            if begin >= end:
                break
            byte = self.view[begin]
            begin += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, begin
        raise _Broken(f"a number that does not end at byte {begin}")

    def _text(self, begin: int, end: int) -> str:
        if end - begin > TEXT_BYTES_MAX:
            raise _Broken(f"a text of {end - begin} bytes at byte {begin}; allowed: {TEXT_BYTES_MAX}")
        return self.view[begin:end].decode("utf-8", "replace")
