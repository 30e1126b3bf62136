"""A package that is whole by its manifest and by its hashes, and runs nowhere."""

from __future__ import annotations

import hashlib
from pathlib import Path

import attrs

from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.manifest_parts import FileRecord
from tests.packages.test_manifest import example


def graph(text: str) -> bytes:
    """An ONNX file: a graph of that name, and nothing in it."""
    name = text.encode()
    assert len(name) < 126, "longer ones have a length of two bytes"
    return bytes([0x3A, len(name) + 2, 0x12, len(name)]) + name


def write_package(directory: Path, name: str = "tiny", *, version: str = "1.0") -> Manifest:
    """Make ``directory`` a package called ``name``: every file that the example manifest names, a line each."""
    files = {}
    for path in example().files:
        content = graph(f"{name}: {path}") if path.endswith(".onnx") else f"{name}: {path}\n".encode()
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
        files[path] = FileRecord(sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
    manifest = attrs.evolve(example(), name=name, package_version=version, files=files)
    manifest.save(directory)
    return manifest
