"""Weight forms: how a linear layer of the source becomes constants and nodes of a graph.

============ ==========================================================================================
``fp32``     the dequantized values, one MatMul
``q8z``      8 bits in blocks of 32 with a zero point: ``scale · (u − zero)``. Q8_0 and Q4_0 become it
             exactly; of the rest the block's range, widened to hold 0, is cut into 255 steps, so nothing
             is clipped. For Q4_1 that step is d/17: its 4-bit grid survives, its minimum is rounded
``q4x``      Q4_0 and Q4_1 exactly: 4 bits with zero point 8, and Q4_1's ``m + 8d`` times the block's sum
             of activations as a second, small product. Tensors of other types take the q8z form
============ ==========================================================================================

Activations are rounded to int8 by the kernels of both quantized forms (``accuracy_level`` 4).
"""

from __future__ import annotations

from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from calculet_trio.packages.gguf_source import GgufSource
from calculet_trio.packages.graph_writer import MICROSOFT, GraphWriter
from calculet_trio.packages.manifest_parts import WeightForm

BLOCK: Final = 32
INT8_ACTIVATIONS: Final = 4
FOUR_BIT: Final = frozenset({"Q4_0", "Q4_1"})

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@attrs.frozen
class EightBit:
    """``scale · (value − zero)`` in blocks along the last axis: ``u8[..., K]``, ``f32/u8[..., K/32]``."""

    value: Bytes
    scale: Floats
    zero: Bytes


@attrs.frozen
class FourBit:
    """``scale · (value − 8) + shift``: ``u8[N, K/32, 16]`` (low nibble first), ``f32[N, K/32]`` twice."""

    value: Bytes
    scale: Floats
    shift: Floats


# ---- reading the source's blocks ------------------------------------------------------------------


def eight_bit(source: GgufSource, name: str) -> EightBit:
    """The tensor in q8z form; its last axis must be a multiple of 32."""
    kind = source.kind(name)
    if kind == "Q8_0":
        blocks, scale = _blocks(source.raw(name), 34)
        value = (blocks[..., 2:].view(np.int8).astype(np.int16) + 128).astype(np.uint8)
        return _eight_bit(value, scale, np.full(scale.shape, 128, np.uint8))
    if kind == "Q4_0":
        blocks, scale = _blocks(source.raw(name), 18)
        value = (_nibbles(blocks[..., 2:]) << 4).astype(np.uint8)
        return _eight_bit(value, scale * np.float32(1 / 16), np.full(scale.shape, 128, np.uint8))
    return quantize(source.array(name))


def quantize(values: Floats) -> EightBit:
    """Cut each block of 32 values, its range widened to hold 0, into 255 steps."""
    blocks = values.reshape(*values.shape[:-1], -1, BLOCK)
    low = np.minimum(blocks.min(axis=-1), 0)
    high = np.maximum(blocks.max(axis=-1), 0)
    scale = ((high - low) / 255).astype(np.float32)
    step = np.where(scale > 0, scale, 1)
    zero = np.rint(-low / step)
    value = np.clip(np.rint(blocks / step[..., None]) + zero[..., None], 0, 255).astype(np.uint8)
    return _eight_bit(value, scale, zero.astype(np.uint8))


def four_bit(source: GgufSource, name: str) -> FourBit:
    """A Q4_0 or Q4_1 matrix, exactly."""
    raw, has_minimum = source.raw(name), source.kind(name) == "Q4_1"
    blocks, scale = _blocks(raw, 20 if has_minimum else 18)
    nibbles = _nibbles(blocks[..., 4 if has_minimum else 2 :])
    value = (nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)).astype(np.uint8)
    shift = np.zeros_like(scale)
    if has_minimum:
        shift = _half(blocks[..., 2:4]) + 8 * scale
    return FourBit(value, scale, shift)


def _eight_bit(value: Bytes, scale: Floats, zero: Bytes) -> EightBit:
    return EightBit(value.reshape(*value.shape[:-2], -1), scale.astype(np.float32), zero)


def _blocks(raw: Bytes, block_bytes: int) -> tuple[Bytes, Floats]:
    blocks = raw.reshape(*raw.shape[:-1], -1, block_bytes)
    return blocks, _half(blocks[..., :2])


def _half(two_bytes: Bytes) -> Floats:
    return np.ascontiguousarray(two_bytes).view(np.float16)[..., 0].astype(np.float32)


def _nibbles(sixteen: Bytes) -> Bytes:
    """GGUF keeps elements 0–15 in the low nibbles and 16–31 in the high ones."""
    return np.concatenate([sixteen & 15, sixteen >> 4], axis=-1)


# ---- writing nodes ----------------------------------------------------------------------------------


class LinearWriter:
    """Linear layers, embedding and head of one source in one weight form."""

    def __init__(self, source: GgufSource, writer: GraphWriter, form: WeightForm) -> None:
        self._source = source
        self._writer = writer
        self._form = form

    def linear(self, x: str, names: list[str], out: str) -> str:
        """``x · concat(names)ᵀ``: several layers of the same input as one product."""
        outputs, inputs = 0, 0
        for name in names:
            rows, inputs = self._extent(name)
            outputs += rows
        form = self._form_of(names, inputs)
        if form is WeightForm.FP32:
            matrix = np.concatenate([self._source.array(name) for name in names])
            return self._writer.node("MatMul", [x, self._writer.constant(f"{out}.weight", matrix.T)], out)
        if form is WeightForm.Q4X:
            return self._four_bit_linear(x, names, out, outputs=outputs, inputs=inputs)
        parts = [eight_bit(self._source, name) for name in names]
        constants = self._eight_bit_constants(out, parts)
        return self._matmul_n_bits(x, constants, out, bits=8, outputs=outputs, inputs=inputs)

    def embedding(self, ids: str, out: str) -> str:
        """Rows of ``token_embd``."""
        name = "token_embd.weight"
        if self._form_of([name], self._extent(name)[1]) is WeightForm.FP32:
            return self._writer.node(
                "Gather", [self._writer.constant("token_embd", self._source.array(name)), ids], out
            )
        part = eight_bit(self._source, name)
        value, scale, zero = self._eight_bit_constants("token_embd", [part])
        table = self._writer.alias("token_embd.rows", value, part.value.shape)
        return self._writer.node(
            "GatherBlockQuantized",
            [table, ids, scale, zero],
            out,
            domain=MICROSOFT,
            bits=8,
            block_size=BLOCK,
            gather_axis=0,
            quantize_axis=1,
        )

    def head(self, x: str, out: str) -> str:
        """Logits; a tied head shares the embedding's bytes. Call after `embedding`."""
        name = "output.weight"
        if self._source.has(name):
            return self.linear(x, [name], out)
        outputs, inputs = self._extent("token_embd.weight")
        if self._form_of(["token_embd.weight"], inputs) is WeightForm.FP32:
            return self._writer.node("Gemm", [x, "token_embd"], out, transB=1)
        constants = [f"token_embd.{part}" for part in ("value", "scale", "zero")]
        return self._matmul_n_bits(x, constants, out, bits=8, outputs=outputs, inputs=inputs)

    def experts(self, x: str, router: str, prefix: str, out: str, *, used: int) -> str:
        """A mixture of SwiGLU experts chosen by raw router logits, renormalized over the chosen."""
        gate, up, down = (f"{prefix}.ffn_{part}_exps.weight" for part in ("gate", "up", "down"))
        attributes = {
            "k": used,
            "activation_type": "swiglu",
            "activation_alpha": 1.0,
            "activation_beta": 0.0,
            "swiglu_fusion": 1,
            "normalize_routing_weights": 1,
        }
        if self._form_of([gate, up, down], BLOCK) is WeightForm.FP32:
            first = _interleave(self._source.array(gate), self._source.array(up))
            weights = [self._writer.constant(f"{out}.first", first), ""]
            weights.append(self._writer.constant(f"{out}.second", self._source.array(down)))
            return self._writer.node("MoE", [x, router, *weights], out, domain=MICROSOFT, **attributes)
        gates, ups, downs = (eight_bit(self._source, name) for name in (gate, up, down))
        first_8 = EightBit(
            _interleave(gates.value, ups.value),
            _interleave(gates.scale, ups.scale),
            _interleave(gates.zero, ups.zero),
        )
        w1, s1, z1 = self._plain_constants(f"{out}.first", first_8)
        w2, s2, z2 = self._plain_constants(f"{out}.second", downs)
        inputs = [x, router, w1, s1, "", w2, s2, "", "", "", "", z1, z2]
        return self._writer.node(
            "QMoE", inputs, out, domain=MICROSOFT, expert_weight_bits=8, block_size=BLOCK, **attributes
        )

    # ---- within -----------------------------------------------------------------------------------

    def _extent(self, name: str) -> tuple[int, int]:
        """Outputs and inputs of a matrix."""
        outputs, inputs = self._source.shape(name)
        return outputs, inputs

    def _form_of(self, names: list[str], inputs: int) -> WeightForm:
        if self._form is WeightForm.FP32 or inputs % BLOCK:
            return WeightForm.FP32  # kernels of the quantized forms want whole blocks
        if self._form is WeightForm.Q4X and all(self._source.kind(name) in FOUR_BIT for name in names):
            return WeightForm.Q4X
        return WeightForm.Q8Z

    def _four_bit_linear(self, x: str, names: list[str], out: str, *, outputs: int, inputs: int) -> str:
        parts = [four_bit(self._source, name) for name in names]
        blocks = inputs // BLOCK
        constants = [
            self._writer.constant(f"{out}.value", np.concatenate([part.value for part in parts])),
            self._writer.constant(f"{out}.scale", np.concatenate([part.scale for part in parts])),
        ]
        shift = np.concatenate([part.shift for part in parts])
        if not shift.any():
            return self._matmul_n_bits(x, constants, out, bits=4, outputs=outputs, inputs=inputs)
        main = self._matmul_n_bits(x, constants, f"{out}.main", bits=4, outputs=outputs, inputs=inputs)
        rows = self._writer.constant("blocks.axis", np.array([-1], np.int64))
        split = self._writer.constant(f"blocks.{blocks}", np.array([0, 0, blocks, BLOCK], np.int64))
        blocked = self._writer.node("Reshape", [x, split], f"{out}.blocked")
        sums = self._writer.node("ReduceSum", [blocked, rows], f"{out}.sums", keepdims=0)
        shifts = self._writer.constant(f"{out}.shift", shift.T)
        return self._writer.node("Add", [main, self._writer.node("MatMul", [sums, shifts], f"{out}.shifted")], out)

    def _eight_bit_constants(self, name: str, parts: list[EightBit]) -> list[str]:
        value = np.concatenate([part.value for part in parts])
        blocked = (value.shape[0], value.shape[1] // BLOCK, BLOCK)
        return [
            self._writer.constant(f"{name}.value", value, shape=blocked),
            self._writer.constant(f"{name}.scale", np.concatenate([part.scale for part in parts])),
            self._writer.constant(f"{name}.zero", np.concatenate([part.zero for part in parts])),
        ]

    def _plain_constants(self, name: str, part: EightBit) -> list[str]:
        named: dict[str, npt.NDArray[Any]] = {"value": part.value, "scale": part.scale, "zero": part.zero}
        return [self._writer.constant(f"{name}.{key}", array) for key, array in named.items()]

    def _matmul_n_bits(self, x: str, constants: list[str], out: str, *, bits: int, outputs: int, inputs: int) -> str:
        return self._writer.node(
            "MatMulNBits",
            [x, *constants],
            out,
            domain=MICROSOFT,
            K=inputs,
            N=outputs,
            bits=bits,
            block_size=BLOCK,
            accuracy_level=INT8_ACTIVATIONS,
        )


def _interleave(gate: npt.NDArray[Any], up: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Rows ``gate 0, up 0, gate 1, up 1, …`` of each expert."""
    return np.stack([gate, up], axis=2).reshape(gate.shape[0], 2 * gate.shape[1], *gate.shape[2:])
