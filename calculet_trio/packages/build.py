"""From a model file to a package directory: graph and weights, vocabulary, template, manifest.

What is built cannot be served yet: its golden, what the model really says, is recorded by the runtime that
runs it, and packages know no runtime. The command line does both, and hands the second step in::

    build_package(source, destination, name=name, options=options, report=report, prove=record_golden)

with ``calculet_trio.runtimes.host_golden.record_golden``; or calls that on the directory afterwards.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from calculet_trio.core.profiles import InactiveLanePolicy
from calculet_trio.errors import PackageError, Unavailable
from calculet_trio.packages.build_options import BuildOptions, Progress
from calculet_trio.packages.digests import sha256_of
from calculet_trio.packages.gguf_source import GgufSource
from calculet_trio.packages.graph_writer import GraphWriter
from calculet_trio.packages.graphs import DecoderGraph
from calculet_trio.packages.manifest import SCHEMA, Manifest
from calculet_trio.packages.manifest_parts import (
    Architecture,
    CoResidency,
    FailureIsolation,
    FileRecord,
    Kv,
    KvKind,
    Profile,
    Roles,
    Source,
    Submodel,
    Tensor,
    Text,
    WeightForm,
)

GRAPH_FILE: Final = "model.onnx"
WEIGHTS_FILE: Final = "weights.bin"
VOCABULARY_FILE: Final = "vocabulary.json"
TEMPLATE_FILE: Final = "chat_template.jinja"
PREFILL: Final = "prefill"
LANE_MASK: Final = "count"
"""How many tokens a lane appends; none: the lane is idle, and nothing is written."""
BYTES_PER_ELEMENT: Final = {WeightForm.FP32: 4.0, WeightForm.Q8Z: 1.2, WeightForm.Q4X: 0.9}
"""Values with their scales and zero points; a bound for the free-disk check, not a promise."""
HEADROOM_BYTES: Final = 64 * 1024 * 1024
"""Graph, vocabulary, rotary tables, and room for the file system."""

Report = Callable[[Progress], None]


def build_package(
    source: Path,
    destination: Path,
    *,
    name: str,
    options: BuildOptions,
    report: Report,
    prove: Callable[[Path], object] | None = None,
) -> Manifest:
    """Build the GGUF file ``source`` into the package directory ``destination``.

    The work is done in a temporary sibling, which becomes ``destination`` by one rename or vanishes: nothing
    half is left. The same source and options give the same bytes (golden's floats apart).

    Args:
        source: a GGUF file of a supported architecture.
        destination: must not exist; its parent must.
        name: the package's name.
        options: weight form, batches, lanes, context.
        report: told of every step; must return quickly.
        prove: called with the temporary directory when all else is done, before the rename.

    Returns:
        The manifest as it stands in ``destination``.

    Raises:
        PackageError: the source cannot be read or is not supported, or ``destination`` exists.
        Unavailable: the disk has not enough room.
    """
    if destination.exists():
        raise PackageError(f"{destination} exists already", hint="remove it, or choose another name")
    model = GgufSource(source)
    _require_room(destination.parent, model, options)
    with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=destination.parent) as parent:
        directory = Path(parent, "package")
        directory.mkdir()
        _write_package(model, directory, name=name, options=options, report=report)
        if prove is not None:
            report(Progress("golden", 0, 1))
            prove(directory)
            report(Progress("golden", 1, 1))
        manifest = Manifest.load(directory)
        directory.rename(destination)
    return manifest


def _require_room(parent: Path, model: GgufSource, options: BuildOptions) -> None:
    needed_bytes = int(model.elements() * BYTES_PER_ELEMENT[options.weight_form]) + HEADROOM_BYTES
    free_bytes = shutil.disk_usage(parent).free
    if free_bytes < needed_bytes:
        raise Unavailable(
            f"{parent} has {free_bytes >> 20} MiB free; the package may need {needed_bytes >> 20} MiB",
            hint="free some space, or choose another store",
        )


def _write_package(model: GgufSource, directory: Path, *, name: str, options: BuildOptions, report: Report) -> None:
    numbers = model.architecture
    source = _describe_source(model.path, report)
    max_seq = min(options.max_seq, numbers.context_tokens)
    candidates = min(options.candidates, numbers.vocab_size)
    with (directory / WEIGHTS_FILE).open("wb") as weights:
        writer = GraphWriter(weights, WEIGHTS_FILE)
        graph = DecoderGraph(model, writer, form=options.weight_form, max_seq=max_seq, candidates=candidates)
        data = graph.build(lambda layers: report(Progress("weights", layers, numbers.layers)))
    (directory / GRAPH_FILE).write_bytes(data)
    _write_json(directory / VOCABULARY_FILE, model.vocabulary())
    template = model.chat_template()
    if template is not None:
        (directory / TEMPLATE_FILE).write_text(template, encoding="utf-8", newline="")
    batches = sorted(options.batches)
    describe = partial(_submodel, numbers, max_seq=max_seq, candidates=candidates)
    submodels = [describe(PREFILL, batch=1, tokens="tokens")]
    submodels += [describe(_decode(batch), batch=batch, tokens=1) for batch in batches]
    Manifest(
        schema=SCHEMA,
        name=name,
        package_version=options.package_version,
        target="cpu",
        source=source,
        architecture=numbers,
        weight_form=options.weight_form,
        roles=Roles(prefill=PREFILL, decode=tuple(_decode(batch) for batch in batches)),
        submodels=tuple(submodels),
        profiles=tuple(_profile(batch, max_seq) for batch in batches),
        kv=Kv(
            kind=KvKind.CONTIGUOUS_LANES,
            layout="lane kv_head position head_dim",
            dtype="f32",
            lanes=options.lanes,
            max_seq=max_seq,
            bytes_per_token=numbers.layers * 2 * numbers.kv_heads * numbers.head_dim * 4,
        ),
        special=model.special(),
        text=Text(vocabulary=VOCABULARY_FILE, chat_template=None if template is None else TEMPLATE_FILE),
        failure_isolation=FailureIsolation.BATCH,
        co_residency=CoResidency.SHARED,
        golden=None,
        files=_record_files(directory, report),
    ).save(directory)


def _describe_source(path: Path, report: Report) -> Source:
    size_bytes, done_bytes = path.stat().st_size, 0

    def on_bytes(count_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += count_bytes
        report(Progress("source", done_bytes, size_bytes))

    return Source(kind="gguf", file=path.name, sha256=sha256_of(path, on_bytes), size_bytes=size_bytes)


def _record_files(directory: Path, report: Report) -> dict[str, FileRecord]:
    paths = sorted(directory.iterdir())
    records = {}
    for index, path in enumerate(paths):
        records[path.name] = FileRecord(sha256=sha256_of(path), size_bytes=path.stat().st_size)
        report(Progress("files", index + 1, len(paths)))
    return records


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


# ---- what the manifest says of the graph ------------------------------------------------------------


def _decode(batch: int) -> str:
    return f"decode_b{batch}"


def _profile(batch: int, max_seq: int) -> Profile:
    return Profile(
        submodel=_decode(batch),
        compiled_batch=batch,
        max_seq=max_seq,
        inactive_lane=InactiveLanePolicy.VALID_MASK,
        mask=LANE_MASK,
    )


def _submodel(
    numbers: Architecture, name: str, *, batch: int, max_seq: int, tokens: int | str, candidates: int
) -> Submodel:
    """One use of the shared graph."""
    kv_shape = (batch, numbers.kv_heads, max_seq, numbers.head_dim)
    kv_layout = "lane kv_head position head_dim"
    parts = [f"{part}.{layer}" for layer in range(numbers.layers) for part in "kv"]
    past = [Tensor(name=f"past_{part}", dtype="f32", shape=kv_shape, layout=kv_layout) for part in parts]
    present = [Tensor(name=f"present_{part}", dtype="f32", shape=kv_shape, layout=kv_layout) for part in parts]
    return Submodel(
        name=name,
        graph=GRAPH_FILE,
        batch=batch,
        inputs=(
            Tensor(name="ids", dtype="i64", shape=(batch, tokens), layout="lane token"),
            Tensor(name="last", dtype="i32", shape=(batch,), layout="lane"),
            Tensor(name=LANE_MASK, dtype="i32", shape=(batch,), layout="lane"),
            Tensor(name="rows", dtype="i64", shape=("rows",), layout="row"),
            *past,
        ),
        outputs=(
            Tensor(name="logits", dtype="f32", shape=("rows", numbers.vocab_size), layout="row vocabulary"),
            *(_candidates(candidates) if candidates else ()),
            *present,
        ),
    )


def _candidates(count: int) -> tuple[Tensor, Tensor]:
    return (
        Tensor(name="candidate_ids", dtype="i32", shape=("rows", count), layout="row candidate"),
        Tensor(name="candidate_values", dtype="f32", shape=("rows", count), layout="row candidate"),
    )
