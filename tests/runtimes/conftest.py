"""Tiny packages, built once for all tests of the runtimes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from calculet_trio.packages.build import build_package
from calculet_trio.packages.build_options import BuildOptions, Progress
from calculet_trio.packages.manifest_parts import WeightForm
from tests.models import TinyModel

BATCHES = (1, 4, 8)
LANES = 8
MAX_SEQ = 64

MakePackage = Callable[[TinyModel, WeightForm], Path]


def ignore_progress(_progress: Progress) -> None:
    """Nobody watches."""


@pytest.fixture(scope="session")
def make_package(tmp_path_factory: pytest.TempPathFactory) -> MakePackage:
    """Builds a tiny model's package, with golden; the same model and form are built once. The GGUF lies beside."""
    pytest.importorskip("onnxruntime", reason="needs the host extra")
    from calculet_trio.runtimes.host_golden import record_golden

    built: dict[tuple[TinyModel, WeightForm], Path] = {}

    def make(model: TinyModel, form: WeightForm) -> Path:
        if (model, form) not in built:
            directory = tmp_path_factory.mktemp(f"{model.family}-{model.quantization.lower()}-{form.value}")
            gguf = model.write(directory / "model.gguf")
            options = BuildOptions(weight_form=form, batches=BATCHES, lanes=LANES, max_seq=MAX_SEQ)
            build_package(
                gguf, directory / "package", name="tiny", options=options, report=ignore_progress, prove=record_golden
            )
            built[model, form] = directory / "package"
        return built[model, form]

    return make
