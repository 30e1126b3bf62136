"""Tiny packages, built once for all tests of the runtimes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from calculet_trio.cli.board import make_emulated_package
from calculet_trio.packages.build import build_package
from calculet_trio.packages.build_options import BuildOptions, Progress
from calculet_trio.packages.calbin_writer import EmulatedShape
from calculet_trio.packages.manifest_parts import WeightForm
from calculet_trio.runtimes.calrt_library import CalrtLibrary, load
from tests.emulator import emulator_library
from tests.models import TinyModel

BATCHES = (1, 4, 8)
LANES = 8
MAX_SEQ = 64


class MakePackage(Protocol):
    """Builds a tiny model's package, with golden; what was asked for before is not built again."""

    def __call__(self, model: TinyModel, form: WeightForm, *, candidates: int = 0) -> Path: ...


def ignore_progress(_progress: Progress) -> None:
    """Nobody watches."""


@pytest.fixture(scope="session")
def make_package(tmp_path_factory: pytest.TempPathFactory) -> MakePackage:
    """See `MakePackage`. The GGUF lies beside."""
    pytest.importorskip("onnxruntime", reason="needs the host extra")
    from calculet_trio.runtimes.host_golden import record_golden

    built: dict[tuple[TinyModel, WeightForm, int], Path] = {}

    def make(model: TinyModel, form: WeightForm, *, candidates: int = 0) -> Path:
        if (model, form, candidates) not in built:
            directory = tmp_path_factory.mktemp(f"{model.family}-{model.quantization.lower()}-{form.value}")
            gguf = model.write(directory / "model.gguf")
            options = BuildOptions(
                weight_form=form, batches=BATCHES, lanes=LANES, max_seq=MAX_SEQ, candidates=candidates
            )
            build_package(
                gguf, directory / "package", name="tiny", options=options, report=ignore_progress, prove=record_golden
            )
            built[model, form, candidates] = directory / "package"
        return built[model, form, candidates]

    return make


@pytest.fixture(scope="session")
def emulated_package(tmp_path_factory: pytest.TempPathFactory) -> Callable[[EmulatedShape], Path]:
    """Makes a package for the emulator of the board's runtime; of one shape, one."""
    built: dict[str, Path] = {}

    def make(shape: EmulatedShape) -> Path:
        if repr(shape) not in built:
            directory = tmp_path_factory.mktemp("emulated") / "package"
            make_emulated_package(shape, directory, name="emulated", report=ignore_progress)
            built[repr(shape)] = directory
        return built[repr(shape)]

    return make


@pytest.fixture(scope="session")
def calrt_library() -> CalrtLibrary:
    return load(emulator_library(), ())
