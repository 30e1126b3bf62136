"""Weight forms: what of the source survives in each, element by element."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

pytest.importorskip("gguf", reason="needs the host extra")
pytest.importorskip("onnx", reason="needs the host extra")

from calculet_trio.packages.gguf_source import GgufSource
from calculet_trio.packages.graph_weights import BLOCK, EightBit, FourBit, eight_bit, four_bit, quantize
from tests.models import TinyModel

MATRIX = "blk.0.ffn_up.weight"


def source(tmp_path: Path, quantization: str) -> GgufSource:
    return GgufSource(TinyModel(family="llama", quantization=quantization).write(tmp_path / "model.gguf"))


def values_of(part: EightBit) -> npt.NDArray[np.float64]:
    blocks = part.value.reshape(*part.scale.shape, BLOCK).astype(np.float64)
    values = part.scale[..., None].astype(np.float64) * (blocks - part.zero[..., None])
    return values.reshape(part.value.shape)


def values_of_four(part: FourBit) -> npt.NDArray[np.float64]:
    nibbles = np.stack([part.value & 15, part.value >> 4], axis=-1).reshape(*part.scale.shape, BLOCK)
    values = part.scale[..., None].astype(np.float64) * (nibbles.astype(np.float64) - 8) + part.shift[..., None]
    return values.reshape(part.value.shape[0], -1)


@pytest.mark.parametrize("quantization", ["Q8_0", "Q4_0"])
def test_eight_bits_hold_symmetric_types_exactly(tmp_path: Path, quantization: str) -> None:
    model = source(tmp_path, quantization)
    np.testing.assert_allclose(values_of(eight_bit(model, MATRIX)), model.array(MATRIX), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("quantization", ["Q4_0", "Q4_1"])
def test_four_bits_hold_the_source_s_own_four_exactly(tmp_path: Path, quantization: str) -> None:
    model = source(tmp_path, quantization)
    np.testing.assert_allclose(values_of_four(four_bit(model, MATRIX)), model.array(MATRIX), rtol=1e-5, atol=1e-5)


def test_eight_bits_keep_the_grid_of_q4_1_and_round_its_minimum(tmp_path: Path) -> None:
    model = source(tmp_path, "Q4_1")
    found = values_of(eight_bit(model, MATRIX)).reshape(-1, BLOCK)
    wanted = model.array(MATRIX).astype(np.float64).reshape(-1, BLOCK)
    error = found - wanted
    # One shift for the whole block (its minimum, rounded to a seventeenth of a step): differences stay exact.
    spans = wanted.max(axis=1) - wanted.min(axis=1)
    np.testing.assert_allclose(error - error[:, :1], 0, atol=1e-5 * spans.max())
    assert (np.abs(error).max(axis=1) <= spans / 255 / 2 * 1.001).all()


@settings(max_examples=200, deadline=None)
@given(
    hnp.arrays(
        np.float32,
        (3, 2 * BLOCK),
        elements=st.floats(-1e4, 1e4, width=32, allow_subnormal=False) | st.just(0.0),
    )
)
def test_quantizing_clips_nothing_and_errs_by_half_a_step(values: npt.NDArray[np.float32]) -> None:
    part = quantize(values)
    error = np.abs(values_of(part) - values).reshape(*part.scale.shape, BLOCK)
    # Value and zero point are each rounded once.
    assert (error <= part.scale[..., None] * 1.001 + 1e-30).all()
    zeros = values.reshape(*part.scale.shape, BLOCK) == 0
    assert (error[zeros] == 0).all(), "zero is on the grid"


@pytest.mark.parametrize("constant", [0.0, 3.0, -3.0])
def test_a_constant_block_survives(constant: float) -> None:
    values = np.full((1, BLOCK), constant, np.float32)
    np.testing.assert_allclose(values_of(quantize(values)), values, rtol=1e-6)
