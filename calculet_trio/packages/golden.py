"""Golden: what a model said when its package was made, to be compared with what it says now.

A recording is a few prompts and, after each, the likeliest tokens with their logits, step by step, each
step fed with the first of them. Whoever runs the model (packages know no runtime) records and replays it.

Another CPU may round int8 products differently: a logit may differ by the manifest's tolerance, and the
likeliest token must be the same where the recorded one led by more than the decisive gap.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from calculet_trio.errors import PackageError
from calculet_trio.packages import manifest_json
from calculet_trio.packages.digests import sha256_of
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.manifest_parts import FileRecord, Golden, TokenId, WeightForm

SCHEMA: Final = "calculet-golden/v1"
GOLDEN_FILE: Final = "golden.json"
TOP: Final = 8
"""Logits recorded of each step, the likeliest first."""
SEQUENCES: Final = 4
DECODE_STEPS: Final = 4
DECISIVE_GAP: Final = 0.5
TOLERANCE: Final = {WeightForm.FP32: 0.02, WeightForm.Q8Z: 3.0, WeightForm.Q4X: 3.0, WeightForm.DEVICE: 0.25}
"""Largest difference of a logit between two CPUs. fp32: order of additions. The quantized forms: int8
activations move a logit of the small reference model by up to 2.1 against fp32. device: a guess until a board was
seen: two units in the last place of a bf16 logit between 16 and 32; it is the same board that says it again."""

Row = npt.NDArray[np.float32]


@attrs.frozen
class GoldenLogit:
    token: TokenId
    logit: float


@attrs.frozen
class GoldenSequence:
    """A prompt, and the likeliest tokens after it (step 0) and after each following token."""

    prompt: tuple[TokenId, ...]
    steps: tuple[tuple[GoldenLogit, ...], ...]


@attrs.frozen
class GoldenRecording:
    schema: str
    sequences: tuple[GoldenSequence, ...]


@attrs.frozen
class Deviation:
    """How one replayed step differs: the largest difference of a recorded logit, and whether the choice changed."""

    logit: float
    decided_otherwise: bool


def prompts(manifest: Manifest) -> tuple[tuple[int, ...], ...]:
    """The prompts to record: ordinary tokens in no sensible order, each prompt longer than the one before."""
    room = manifest.kv.max_seq - DECODE_STEPS
    special = {*manifest.special.end_of_turn, manifest.special.bos}
    ordinary = [token for token in range(manifest.architecture.vocab_size) if token not in special]
    return tuple(
        tuple(ordinary[(7919 * (length + place) + 104_729 * index) % len(ordinary)] for place in range(length))
        for index, length in enumerate(max(1, min(4 * n + 3, room)) for n in range(SEQUENCES))
    )


def likeliest(row: Row) -> tuple[GoldenLogit, ...]:
    """The `TOP` likeliest tokens of a row of logits; ties by token id."""
    order = np.argsort(-row, kind="stable")[:TOP]
    return tuple(GoldenLogit(int(token), float(row[token])) for token in order)


def deviation(recorded: tuple[GoldenLogit, ...], row: Row, *, decisive_gap: float) -> Deviation:
    """How ``row`` differs from what was recorded; a row that is not finite differs infinitely."""
    if not np.isfinite(row).all():
        return Deviation(float("inf"), decided_otherwise=True)
    difference = max(abs(float(row[entry.token]) - entry.logit) for entry in recorded)
    decisive = len(recorded) < 2 or recorded[0].logit - recorded[1].logit > decisive_gap
    return Deviation(difference, decided_otherwise=decisive and int(row.argmax()) != recorded[0].token)


def save(directory: Path, manifest: Manifest, sequences: tuple[GoldenSequence, ...]) -> Manifest:
    """Write the recording into the package and enter it in its manifest, which is returned."""
    recording = GoldenRecording(SCHEMA, sequences)
    manifest_json.write(manifest_json.unstructure(recording), directory / GOLDEN_FILE)
    record = FileRecord(sha256=sha256_of(directory / GOLDEN_FILE), size_bytes=(directory / GOLDEN_FILE).stat().st_size)
    proven = attrs.evolve(
        manifest,
        golden=Golden(file=GOLDEN_FILE, logit_tolerance=TOLERANCE[manifest.weight_form], decisive_gap=DECISIVE_GAP),
        files={**manifest.files, GOLDEN_FILE: record},
    )
    proven.save(directory)
    return proven


def load(directory: Path, manifest: Manifest) -> tuple[GoldenSequence, ...]:
    """The package's recording.

    Raises:
        PackageError: there is none, or it does not fit the manifest.
    """
    if manifest.golden is None:
        raise PackageError(f"{directory} has no golden recording", hint=manifest_json.REBUILD_HINT)
    path = directory / manifest.golden.file
    recording = manifest_json.structure(manifest_json.read(path), GoldenRecording, path)
    if recording.schema != SCHEMA:
        raise PackageError(f"{path}: schema is {recording.schema!r}; this version reads {SCHEMA!r}")
    for index, sequence in enumerate(recording.sequences):
        tokens = [*sequence.prompt, *(entry.token for step in sequence.steps for entry in step)]
        total = len(sequence.prompt) + len(sequence.steps) - 1
        if not sequence.prompt or not sequence.steps or not all(sequence.steps) or total > manifest.kv.max_seq:
            raise PackageError(f"{path}: sequences[{index}] is empty, or longer than kv.max_seq")
        if max(tokens) >= manifest.architecture.vocab_size:
            raise PackageError(f"{path}: sequences[{index}] has a token beyond the vocabulary")
    return recording.sequences
