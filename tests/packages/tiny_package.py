"""A package that is whole by its manifest and by its hashes, and runs nowhere."""

from __future__ import annotations

import hashlib
from pathlib import Path

import attrs

from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.manifest_parts import FileRecord
from tests.packages.test_manifest import example


def write_package(directory: Path, name: str = "tiny") -> Manifest:
    """Make ``directory`` a package called ``name``: every file that the example manifest names, a line each."""
    files = {}
    for path in example().files:
        content = f"{name}: {path}\n".encode()
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
        files[path] = FileRecord(sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
    manifest = attrs.evolve(example(), name=name, files=files)
    manifest.save(directory)
    return manifest
