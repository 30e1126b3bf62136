"""An ONNX graph in the making: nodes in order, large constants in one file beside it.

Constants go to disk as they come, so that a build needs memory for one tensor at a time. Names and
offsets follow from the order of the calls alone: the same model gives the same bytes.
"""

from __future__ import annotations

from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

MICROSOFT: Final = "com.microsoft"
INLINE_BYTES_MAX: Final = 1024
"""Smaller constants stay in the graph: ONNX tools want shapes and scalars there."""
ALIGNMENT_BYTES: Final = 4096
"""Constants begin on a page, so that a runtime can map them."""
OPSET: Final = 21
IR_VERSION: Final = 10


class GraphWriter:
    """Collects one graph.

    Args:
        weights: where large constants are written.
        weights_name: its file's name, as the graph is to find it.
    """

    def __init__(self, weights: BinaryIO, weights_name: str) -> None:
        self._weights = weights
        self._weights_name = weights_name
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}

    def node(self, op: str, inputs: list[str], name: str, *, domain: str = "", **attributes: Any) -> str:
        """Append a node with the single output ``name``."""
        return self.nodes(op, inputs, [name], domain=domain, **attributes)[0]

    def nodes(
        self, op: str, inputs: list[str], outputs: list[str], *, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Append a node with several outputs; an empty name stands for one that is not wanted."""
        self._nodes.append(helper.make_node(op, inputs, outputs, name=outputs[0], domain=domain, **attributes))
        return outputs

    def constant(self, name: str, array: npt.NDArray[Any], *, shape: tuple[int, ...] | None = None) -> str:
        """A constant; a second call with the same name shares the first one's bytes under another shape.

        Args:
            name: the name to use in nodes.
            array: its values, C order.
            shape: the shape to declare; the array's own by default.
        """
        if name not in self._constants:
            self._constants[name] = self._store(name, np.ascontiguousarray(array), shape or array.shape)
        return name

    def alias(self, name: str, of: str, shape: tuple[int, ...]) -> str:
        """Another name and shape for the bytes of the constant ``of``."""
        twin = onnx.TensorProto()
        twin.CopyFrom(self._constants[of])
        twin.name = name
        del twin.dims[:]
        twin.dims.extend(shape)
        self._constants[name] = twin
        return name

    def model(self, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]) -> bytes:
        """The finished graph, serialized."""
        graph = helper.make_graph(self._nodes, "decoder", inputs, outputs, initializer=list(self._constants.values()))
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="calculet-trio")
        data: bytes = model.SerializeToString(deterministic=True)
        return data

    def _store(self, name: str, array: npt.NDArray[Any], shape: tuple[int, ...]) -> onnx.TensorProto:
        tensor = onnx.TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=shape)
        if array.nbytes <= INLINE_BYTES_MAX:
            tensor.raw_data = array.tobytes()
            return tensor
        self._weights.write(b"\0" * (-self._weights.tell() % ALIGNMENT_BYTES))
        offset = self._weights.tell()
        self._weights.write(array.data)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self._weights_name), ("offset", offset), ("length", array.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor
