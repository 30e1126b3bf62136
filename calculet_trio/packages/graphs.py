"""The decoder as one ONNX graph: a transformer over fixed KV lanes, any batch, any chunk length.

One graph serves every submodel of a package; which shapes it is run with, the runtime enforces. Its
inputs, for ``B`` lanes and a chunk of ``S`` tokens:

==================== ===================== ==========================================================
``ids``              ``i64[B, S]``         token ids; anything in padding and idle lanes
``last``             ``i32[B]``            position of the lane's last token, this chunk included; 0 if idle
``count``            ``i32[B]``            valid tokens of the chunk; 0: the lane is idle, writes nothing
``rows``             ``i64[R]``            which of the ``B·S`` positions go through the head
``past_{k,v}.N``     ``f32[B, KV, T, D]``  the lanes' KV; bound to the same memory as ``present_{k,v}.N``
==================== ===================== ==========================================================

and it returns ``logits f32[R, vocabulary]``; where candidates are asked for, also the K largest of each row, in no
order: ``candidate_ids i32[R, K]`` and ``candidate_values f32[R, K]``.

Source: the operators' own documentation in onnxruntime 1.32 (GroupQueryAttention, *right-padded query
chunks*); llama.cpp for the order of norms and the pairing of rotary dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper

from calculet_trio.packages.gguf_source import GgufSource
from calculet_trio.packages.graph_weights import LinearWriter
from calculet_trio.packages.graph_writer import MICROSOFT, GraphWriter
from calculet_trio.packages.manifest_parts import Architecture, WeightForm

INTERLEAVED_ROTARY: Final = {"llama": 1, "qwen3": 0, "qwen3moe": 0}
"""Which dimensions of a head turn together: neighbours (1), or the halves (0)."""


class DecoderGraph:
    """Builds the graph of one source.

    Args:
        source: the model.
        writer: where nodes and constants go.
        form: how linear layers are kept.
        max_seq: the longest context of a lane, in tokens.
        candidates: how many of a row's largest logits are named; 0 for none.
    """

    def __init__(
        self, source: GgufSource, writer: GraphWriter, *, form: WeightForm, max_seq: int, candidates: int = 0
    ) -> None:
        self._source = source
        self._numbers: Architecture = source.architecture
        self._writer = writer
        self._linear = LinearWriter(source, writer, form)
        self._max_seq = max_seq
        self._candidates = candidates

    def build(self, layer_done: Callable[[int], None]) -> bytes:
        """The serialized graph; ``layer_done(n)`` is called after each of its layers."""
        self._rotary_tables()
        x = self._linear.embedding("ids", "embedded")
        normed = self._norm(x, "blk.0.attn_norm.weight", "l0.attn_norm")
        for layer in range(self._numbers.layers):
            x, normed = self._layer(layer, x, normed)
            layer_done(layer + 1)
        width = self._writer.constant("flat", np.array([-1, self._numbers.width], np.int64))
        flat = self._writer.node("Reshape", [normed, width], "hidden")
        wanted = self._writer.node("Gather", [flat, "rows"], "wanted", axis=0)
        self._linear.head(wanted, "logits")
        if self._candidates:
            self._name_candidates()
        return self._writer.model(self._inputs(), self._outputs())

    def _name_candidates(self) -> None:
        count = self._writer.constant("candidates", np.array([self._candidates], np.int64))
        found = ["candidate_values", "candidate_places"]
        self._writer.nodes("TopK", ["logits", count], found, axis=-1, largest=1, sorted=0)
        self._writer.node("Cast", ["candidate_places"], "candidate_ids", to=TensorProto.INT32)

    # ---- layers -----------------------------------------------------------------------------------

    def _layer(self, layer: int, x: str, normed: str) -> tuple[str, str]:
        """One block; returns the residual stream and its norm for what comes next."""
        source, name = f"blk.{layer}", f"l{layer}"
        attended = self._attention(layer, normed)
        out = self._linear.linear(attended, [f"{source}.attn_output.weight"], f"{name}.attn_out")
        x, normed = self._add_norm(x, out, f"{source}.ffn_norm.weight", f"{name}.ffn_norm")
        out = self._experts(layer, normed) if self._numbers.experts else self._feed_forward(layer, normed)
        last = layer + 1 == self._numbers.layers
        following = "output_norm.weight" if last else f"blk.{layer + 1}.attn_norm.weight"
        return self._add_norm(x, out, following, "last_norm" if last else f"l{layer + 1}.attn_norm")

    def _attention(self, layer: int, normed: str) -> str:
        numbers, name = self._numbers, f"l{layer}"
        qkv = self._linear.linear(normed, [f"blk.{layer}.attn_{part}.weight" for part in "qkv"], f"{name}.qkv")
        packed = [qkv, "", ""]
        if numbers.family != "llama":
            packed = self._normed_heads(layer, qkv)
        inputs = [*packed, f"past_k.{layer}", f"past_v.{layer}", "last", "capacity", "cos", "sin"]
        inputs += [""] * 7 + ["count"]
        outputs = [f"{name}.attended", f"present_k.{layer}", f"present_v.{layer}"]
        return self._writer.nodes(
            "GroupQueryAttention",
            inputs,
            outputs,
            domain=MICROSOFT,
            num_heads=numbers.query_heads,
            kv_num_heads=numbers.kv_heads,
            do_rotary=1,
            rotary_interleaved=INTERLEAVED_ROTARY[numbers.family],
        )[0]

    def _normed_heads(self, layer: int, qkv: str) -> list[str]:
        """Q, K and V apart, each head of Q and K normed by itself (Qwen3)."""
        numbers, name = self._numbers, f"l{layer}"
        widths = [numbers.query_heads * numbers.head_dim, *[numbers.kv_heads * numbers.head_dim] * 2]
        sizes = self._writer.constant("qkv.widths", np.array(widths, np.int64))
        parts = self._writer.nodes("Split", [qkv, sizes], [f"{name}.{part}" for part in "qkv"], axis=-1)
        heads = self._writer.constant("heads", np.array([0, 0, -1, numbers.head_dim], np.int64))
        merged = self._writer.constant("merged", np.array([0, 0, -1], np.int64))
        for index, part in enumerate("qk"):
            apart = self._writer.node("Reshape", [parts[index], heads], f"{name}.{part}.heads")
            normed = self._norm(apart, f"blk.{layer}.attn_{part}_norm.weight", f"{name}.{part}_norm")
            parts[index] = self._writer.node("Reshape", [normed, merged], f"{name}.{part}.merged")
        return parts

    def _feed_forward(self, layer: int, normed: str) -> str:
        name = f"l{layer}"
        # One product for both: a tenth faster at one lane than two, the split included.
        both = [f"blk.{layer}.ffn_{part}.weight" for part in ("gate", "up")]
        gate_up = self._linear.linear(normed, both, f"{name}.gate_up")
        sizes = self._writer.constant("gate_up.widths", np.array([self._numbers.feed_forward] * 2, np.int64))
        gate, up = self._writer.nodes("Split", [gate_up, sizes], [f"{name}.gate", f"{name}.up"], axis=-1)
        silu = self._writer.node("QuickGelu", [gate], f"{name}.silu", domain=MICROSOFT, alpha=1.0)
        gated = self._writer.node("Mul", [silu, up], f"{name}.gated")
        return self._linear.linear(gated, [f"blk.{layer}.ffn_down.weight"], f"{name}.ffn_out")

    def _experts(self, layer: int, normed: str) -> str:
        name, prefix = f"l{layer}", f"blk.{layer}"
        flat = self._writer.constant("flat", np.array([-1, self._numbers.width], np.int64))
        tokens = self._writer.node("Reshape", [normed, flat], f"{name}.tokens")
        weight = self._source.array(f"{prefix}.ffn_gate_inp.weight")
        router = self._writer.node(
            "MatMul", [tokens, self._writer.constant(f"{name}.router.weight", weight.T)], f"{name}.router"
        )
        return self._linear.experts(normed, router, prefix, f"{name}.ffn_out", used=self._numbers.experts_used)

    def _norm(self, x: str, weight: str, out: str) -> str:
        scale = self._writer.constant(f"{out}.weight", self._source.array(weight))
        return self._writer.node(
            "SimplifiedLayerNormalization", [x, scale], out, axis=-1, epsilon=self._numbers.norm_epsilon
        )

    def _add_norm(self, x: str, added: str, weight: str, out: str) -> tuple[str, str]:
        scale = self._writer.constant(f"{out}.weight", self._source.array(weight))
        normed, _, _, residual = self._writer.nodes(
            "SkipSimplifiedLayerNormalization",
            [x, added, scale],
            [out, "", "", f"{out}.residual"],
            domain=MICROSOFT,
            epsilon=self._numbers.norm_epsilon,
        )
        return residual, normed

    def _rotary_tables(self) -> None:
        half = self._numbers.head_dim // 2
        frequency = self._numbers.rope_base ** -(np.arange(half, dtype=np.float64) / half)
        if self._source.has("rope_freqs.weight"):
            frequency = frequency / self._source.array("rope_freqs.weight").astype(np.float64)
        angle = np.arange(self._max_seq, dtype=np.float64)[:, None] * frequency
        self._writer.constant("cos", np.cos(angle).astype(np.float32))
        self._writer.constant("sin", np.sin(angle).astype(np.float32))
        self._writer.constant("capacity", np.array(self._max_seq, np.int32))

    # ---- what goes in and out ---------------------------------------------------------------------

    def _inputs(self) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["lanes", "tokens"]),
            helper.make_tensor_value_info("last", TensorProto.INT32, ["lanes"]),
            helper.make_tensor_value_info("count", TensorProto.INT32, ["lanes"]),
            helper.make_tensor_value_info("rows", TensorProto.INT64, ["rows"]),
            *self._kv("past"),
        ]

    def _outputs(self) -> list[onnx.ValueInfoProto]:
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", self._numbers.vocab_size])
        return [logits, *self._candidate_outputs(), *self._kv("present")]

    def _candidate_outputs(self) -> Iterator[onnx.ValueInfoProto]:
        if self._candidates:
            shape: list[str | int | None] = ["rows", self._candidates]
            yield helper.make_tensor_value_info("candidate_ids", TensorProto.INT32, shape)
            yield helper.make_tensor_value_info("candidate_values", TensorProto.FLOAT, shape)

    def _kv(self, when: str) -> Iterator[onnx.ValueInfoProto]:
        shape: list[str | int | None] = ["lanes", self._numbers.kv_heads, self._max_seq, self._numbers.head_dim]
        for layer in range(self._numbers.layers):
            for part in "kv":
                yield helper.make_tensor_value_info(f"{when}_{part}.{layer}", TensorProto.FLOAT, shape)
