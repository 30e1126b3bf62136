"""One model on the CPU: a session, its KV lanes, and the bindings that run it in place.

Like a board's, the graphs are static as seen from outside: prefill is one sequence into its lane, decode
is a batch of B adjacent lanes. Inside, one onnxruntime session serves all of them, because a second one
would prepack its own copy of the weights; the shapes it is run with come from the package's profiles.

KV of all lanes is allocated once, ``f32[lanes, heads, max_seq, head_dim]`` per layer for K and for V. A
window of adjacent lanes is a contiguous slice of it and is bound as past and as present, so the graph
writes where it reads. Each engine has bindings of its own, made once per window, and a buffer of its own for logits,
made once: a decode step allocates nothing that stays, and one engine's logits can be sampled while the other computes.

Source: onnxruntime 1.32, GroupQueryAttention; measured alternatives are in ``tools/bench_host``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from calculet_trio.core.jobs import EngineId
from calculet_trio.errors import PackageError
from calculet_trio.packages.manifest import Manifest
from calculet_trio.runtimes.pages import zeros_on_pages
from calculet_trio.runtimes.port import Candidates, Logits

SPIN_US: Final = "50"
"""Longer than what lies between two parallel operators (some 20 µs), much shorter than a time slice."""


@attrs.frozen
class LaneStep:
    """One token for the lane at ``index`` of a window, at ``position``."""

    index: int
    token: int
    position: int


class _Window:
    """Lanes ``first .. first + batch - 1``, bound in place; its small inputs are filled before each run."""

    def __init__(self, session: Any, kv: dict[str, npt.NDArray[np.float32]], *, first: int, batch: int) -> None:
        self.binding = session.io_binding()
        self.ids = np.zeros((batch, 1), np.int64)
        self.last = np.zeros(batch, np.int32)
        self.count = np.zeros(batch, np.int32)
        for name, buffer in kv.items():
            lanes = _shared(buffer[first : first + batch])
            self.binding.bind_ortvalue_input(f"past_{name}", lanes)
            self.binding.bind_ortvalue_output(f"present_{name}", lanes)
        self.binding.bind_ortvalue_input("last", _shared(self.last))
        self.binding.bind_ortvalue_input("count", _shared(self.count))
        self._ids = _shared(self.ids)

    def bind_ids(self, ids: npt.NDArray[np.int64] | None = None) -> None:
        """Tokens of this run: a chunk's, or (None) the window's own, one a lane."""
        self.binding.bind_ortvalue_input("ids", self._ids if ids is None else _shared(ids))


class _EngineBuffers:
    """What one engine's jobs are run with: bindings of windows, which rows go through the head, what it says."""

    def __init__(self, *, rows: int, vocab_size: int, candidates: int) -> None:
        self.windows: dict[tuple[int, int], _Window] = {}
        self.logits = zeros_on_pages((rows, vocab_size))
        self.said: dict[str, npt.NDArray[Any]] = {"logits": self.logits}
        self.candidates: Candidates | None = None
        if candidates:
            shape = (rows, candidates)
            self.candidates = Candidates(np.zeros(shape, np.int32), np.zeros(shape, np.float32))
            self.said |= {"candidate_ids": self.candidates.ids, "candidate_values": self.candidates.values}
        self.rows = np.zeros(rows, np.int64)
        self.heads = [
            (_shared(self.rows[:count]), {name: _shared(rows[:count]) for name, rows in self.said.items()})
            for count in range(1, rows + 1)
        ]


class HostModel:
    """A package's model, loaded. One run at a time; what it said stays in its engine's buffer until that engine's next.

    Args:
        directory: the package.
        manifest: its manifest.
        threads: threads of a run, the caller's included.

    Raises:
        PackageError: the graph cannot be loaded, or is not what the manifest says.
    """

    def __init__(self, directory: Path, manifest: Manifest, *, threads: int) -> None:
        self.directory = directory
        self.manifest = manifest
        numbers = manifest.architecture
        self.session = _open_session(directory / manifest.submodel(manifest.roles.prefill).graph, threads)
        self._require_tensors(directory)
        shape = (manifest.kv.lanes, numbers.kv_heads, manifest.kv.max_seq, numbers.head_dim)
        parts = [f"{part}.{layer}" for layer in range(numbers.layers) for part in "kv"]
        self.kv = {part: zeros_on_pages(shape) for part in parts}
        most = max(manifest.shape().decode[-1].compiled_batch, 1)
        self.names_candidates = manifest.submodel(manifest.roles.prefill).candidates
        self._buffers = {
            engine: _EngineBuffers(rows=most, vocab_size=numbers.vocab_size, candidates=self.names_candidates)
            for engine in EngineId
        }

    @property
    def kv_bytes(self) -> int:
        """Address space of the KV lanes."""
        return sum(buffer.nbytes for buffer in self.kv.values())

    def candidates(self, engine: EngineId) -> Candidates | None:
        """The largest logits of what ``engine``'s last run said, rows by index; None where the package names none."""
        return self._buffers[engine].candidates

    def prefill(
        self,
        lane: int,
        tokens: Sequence[int],
        *,
        position: int,
        engine: EngineId = EngineId.PING,
        options: Any = None,
    ) -> Logits:
        """Append ``tokens`` at ``position`` of ``lane``; logits ``f32[1, vocab]`` of the last one."""
        buffers = self._buffers[engine]
        window = self._window(buffers, lane, 1)
        window.bind_ids(np.array([tokens], np.int64))
        window.last[0] = position + len(tokens) - 1
        window.count[0] = len(tokens)
        buffers.rows[0] = len(tokens) - 1
        return self._run(buffers, window, rows=1, options=options)

    def decode(
        self,
        first: int,
        batch: int,
        steps: Sequence[LaneStep],
        *,
        engine: EngineId = EngineId.PING,
        options: Any = None,
    ) -> Logits:
        """One token for some lanes of the window at ``first``; logits ``f32[batch, vocab]`` by index.

        Args:
            first: the window's first lane.
            batch: lanes of the window, a profile's.
            steps: what to append where, by rising index; lanes without a step stay as they are.
            engine: whose buffers are used.
            options: onnxruntime run options, or None.
        """
        buffers = self._buffers[engine]
        window = self._window(buffers, first, batch)
        window.bind_ids()
        # An idle lane appends no token, whatever its length: position 0 keeps its attention trivial.
        window.last[:] = 0
        window.count[:] = 0
        for row, step in enumerate(steps):
            window.ids[step.index, 0] = step.token
            window.last[step.index] = step.position
            window.count[step.index] = 1
            buffers.rows[row] = step.index
        self._run(buffers, window, rows=len(steps), options=options)
        # The head ran for the active lanes alone; from the end backwards no row is overwritten unread.
        for row in range(len(steps) - 1, -1, -1):
            if steps[row].index != row:
                for said in buffers.said.values():
                    said[steps[row].index] = said[row]
        return buffers.logits[:batch]

    # ---- within -----------------------------------------------------------------------------------

    def _window(self, buffers: _EngineBuffers, first: int, batch: int) -> _Window:
        """An engine's bindings of a window; there are at most lanes · profiles of them."""
        window = buffers.windows.get((first, batch))
        if window is None:
            window = buffers.windows[first, batch] = _Window(self.session, self.kv, first=first, batch=batch)
        return window

    def _run(self, buffers: _EngineBuffers, window: _Window, *, rows: int, options: Any) -> Logits:
        rows_value, said = buffers.heads[rows - 1]
        window.binding.bind_ortvalue_input("rows", rows_value)
        for name, value in said.items():
            window.binding.bind_ortvalue_output(name, value)
        self.session.run_with_iobinding(window.binding, options)
        return buffers.logits[:rows]

    def _require_tensors(self, directory: Path) -> None:
        session, submodels = self.session, self.manifest.submodels
        sides = {
            "inputs": (session.get_inputs(), [tensor for each in submodels for tensor in each.inputs]),
            "outputs": (session.get_outputs(), [tensor for each in submodels for tensor in each.outputs]),
        }
        for side, (reported, declared) in sides.items():
            differing = {tensor.name for tensor in reported} ^ {tensor.name for tensor in declared}
            if differing:
                named = ", ".join(sorted(differing)[:4])
                raise PackageError(f"{directory}: graph and manifest disagree on {side}: {named}")


def _shared(array: npt.NDArray[Any]) -> Any:
    """An OrtValue over the array's own memory, which it keeps alive."""
    import onnxruntime

    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _open_session(graph: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Patterns are kept per input shape, and prompts come in every length.
    options.enable_mem_pattern = False
    # Threads rest between runs. Within one they spin from operator to operator, which is worth a third of
    # the speed of a small step; no longer, or a machine with other work to do slows down by ten.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.intra_op.spin_duration_us", SPIN_US)
    # Blocks of work shrink towards an operator's end, so that a thread held up elsewhere delays it less.
    options.add_session_config_entry("session.dynamic_block_base", "4")
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise PackageError(f"{graph} cannot be loaded: {error}", hint="build or pull the package again") from error
