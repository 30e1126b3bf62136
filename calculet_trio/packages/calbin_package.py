"""From a board's artefacts to a package: shards, a tokenizer directory, roles; or from nothing, for the emulator.

Shards are gigabytes: they are copied and hashed in pieces, in one pass, and never held.

Source: SPEC section 14; A §4, §9; S §11.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from calculet_trio.core.profiles import InactiveLanePolicy
from calculet_trio.errors import PackageError, Unavailable
from calculet_trio.packages import calbin_roles
from calculet_trio.packages.build_options import Progress
from calculet_trio.packages.calbin import Calbin, CalbinSubmodel
from calculet_trio.packages.calbin_plan import CalbinPlan, PlannedSubmodel, check_plan
from calculet_trio.packages.digests import CHUNK_BYTES, sha256_of
from calculet_trio.packages.manifest import SCHEMA, Manifest
from calculet_trio.packages.manifest_parts import (
    Architecture,
    ChipMemory,
    CoResidency,
    Csr,
    DeviceBinary,
    FailureIsolation,
    FileRecord,
    Kv,
    KvKind,
    Memory,
    MemoryBasis,
    Profile,
    Roles,
    Source,
    Special,
    Submodel,
    Tensor,
    Text,
    WeightForm,
)

VOCABULARY_FILE: Final = "vocabulary.json"
TEMPLATE_FILE: Final = "chat_template.jinja"
DTYPES: Final = {"int32": "i32", "uint8": "u8", "bfloat16": "bf16", "float32": "f32", "float16": "f16"}
"""A calbin's word for an element's kind → a manifest's."""
KV_BYTES: Final = 2
"""Of an element: bf16 (A §4)."""
DEFAULT_LANES: Final = 1
"""Where neither calbin nor plan says how many sequences fit: what today's server uses."""

Report = Callable[[Progress], None]


@attrs.frozen(kw_only=True)
class PackageText:
    """The text side of a package: what it is made of does not matter here."""

    vocabulary: dict[str, Any]
    special: Special
    chat_template: str | None


@attrs.frozen(kw_only=True)
class Artefacts:
    """What a compiler has delivered.

    Args:
        shards: the calbin's files, in their order.
        calbin: what they say of themselves.
        plan: which submodel does what.
        architecture: the network's numbers.
        text: its text side.
        target: the kind of device that it is for.
        package_version: what the package calls itself.
    """

    shards: tuple[Path, ...]
    calbin: Calbin
    plan: CalbinPlan
    architecture: Architecture
    text: PackageText
    target: str
    package_version: str = "1"


def build_calbin_package(
    artefacts: Artefacts,
    destination: Path,
    *,
    name: str,
    report: Report,
    prove: Callable[[Path], object],
) -> Manifest:
    """Make the package directory ``destination``, whole or not at all.

    Args:
        artefacts: what it is made of.
        destination: must not exist; its parent must.
        name: the package's name.
        report: told of every step.
        prove: called with the directory when all else is done: it records golden there.

    Raises:
        PackageError: the plan does not fit the calbin, numbers contradict each other, or ``destination`` exists.
        Unavailable: the disk has not enough room.
    """
    if destination.exists():
        raise PackageError(f"{destination} exists already", hint="remove it, or choose another name")
    check_plan(artefacts.plan, artefacts.calbin)
    _require_numbers(artefacts)
    _require_room(destination.parent, artefacts.shards)
    with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=destination.parent) as parent:
        directory = Path(parent, "package")
        directory.mkdir()
        records = _copy_shards(artefacts.shards, directory, report)
        records |= _write_text(artefacts.text, directory)
        _manifest(artefacts, name, records).save(directory)
        report(Progress("golden", 0, 1))
        prove(directory)
        report(Progress("golden", 1, 1))
        manifest = Manifest.load(directory)
        directory.rename(destination)
    return manifest


def _require_numbers(artefacts: Artefacts) -> None:
    calbin, said = artefacts.calbin, artefacts.architecture.vocab_size
    if calbin.vocab_size not in (0, said):
        raise PackageError(f"config.json: vocab_size is {said}; the calbin has {calbin.vocab_size} rows of logits")
    names = [path.name for path in artefacts.shards]
    if len(set(names)) != len(names):
        raise PackageError(f"two shards have the same file name: {', '.join(names)}")


def _require_room(parent: Path, shards: Sequence[Path]) -> None:
    # blocks, since the emulator's shards are holes
    needed_bytes = sum(path.stat().st_blocks * 512 for path in shards)
    free_bytes = shutil.disk_usage(parent).free
    if free_bytes < needed_bytes:
        raise Unavailable(
            f"{parent} has {free_bytes >> 20} MiB free; the shards have {needed_bytes >> 20} MiB",
            hint="free some space, or choose another store",
        )


def _copy_shards(shards: Sequence[Path], directory: Path, report: Report) -> dict[str, FileRecord]:
    total_bytes, done_bytes = sum(path.stat().st_size for path in shards), 0
    records = {}
    buffer = memoryview(bytearray(CHUNK_BYTES))
    for path in shards:
        digest, size_bytes = hashlib.sha256(), 0
        try:
            with path.open("rb", buffering=0) as source, (directory / path.name).open("wb", buffering=0) as copy:
                while count_bytes := source.readinto(buffer):
                    piece = buffer[:count_bytes]
                    digest.update(piece)
                    _write_or_skip(copy, piece)
                    size_bytes += count_bytes
                    done_bytes += count_bytes
                    report(Progress("shards", done_bytes, total_bytes))
                copy.truncate(size_bytes)
        except OSError as error:
            raise PackageError(f"{path} cannot be copied: {error.strerror}") from error
        records[path.name] = FileRecord(sha256=digest.hexdigest(), size_bytes=size_bytes)
    return records


def _write_or_skip(copy: Any, piece: memoryview) -> None:
    """A piece of nothing but zeros becomes a hole, as it may have been one."""
    if any(piece[:16]) or piece.nbytes < CHUNK_BYTES or piece != _ZEROS:
        written = 0
        while written < piece.nbytes:
            written += copy.write(piece[written:])
    else:
        copy.seek(piece.nbytes, 1)


_ZEROS: Final = bytes(CHUNK_BYTES)


def _write_text(text: PackageText, directory: Path) -> dict[str, FileRecord]:
    data = json.dumps(text.vocabulary, ensure_ascii=False, separators=(",", ":"))
    (directory / VOCABULARY_FILE).write_text(f"{data}\n", encoding="utf-8")
    if text.chat_template is not None:
        (directory / TEMPLATE_FILE).write_text(text.chat_template, encoding="utf-8", newline="")
    written = [VOCABULARY_FILE] + ([TEMPLATE_FILE] if text.chat_template is not None else [])
    return {
        name: FileRecord(sha256=sha256_of(directory / name), size_bytes=(directory / name).stat().st_size)
        for name in written
    }


# ---- the manifest -------------------------------------------------------------------------------------


def _manifest(artefacts: Artefacts, name: str, records: dict[str, FileRecord]) -> Manifest:
    calbin, plan, numbers = artefacts.calbin, artefacts.plan, artefacts.architecture
    shards = tuple(path.name for path in artefacts.shards)
    found = {submodel.name: submodel for submodel in calbin.submodels}
    max_seq = min(plan.max_seq or calbin.max_seq_len, calbin.max_seq_len)
    planned = sorted(plan.decode, key=lambda each: found[each.submodel].batch)
    lanes = plan.lanes or calbin.lanes or DEFAULT_LANES
    token_bytes = calbin.kv_bytes_per_token or numbers.layers * 2 * numbers.kv_heads * numbers.head_dim * KV_BYTES
    return Manifest(
        schema=SCHEMA,
        name=name,
        package_version=artefacts.package_version,
        target=artefacts.target,
        source=Source(
            kind="calbin",
            file=shards[0],
            sha256=records[shards[0]].sha256,
            size_bytes=sum(records[shard].size_bytes for shard in shards),
        ),
        architecture=numbers,
        weight_form=WeightForm.DEVICE,
        roles=Roles(prefill=plan.prefill.submodel, decode=tuple(each.submodel for each in planned)),
        submodels=tuple(_submodel(each, found[each.submodel], shards[0]) for each in (plan.prefill, *planned)),
        profiles=tuple(_profile(each, found[each.submodel], max_seq) for each in planned),
        kv=Kv(
            kind=KvKind.CONTIGUOUS_LANES,
            layout="of the board",
            dtype="bf16",
            lanes=lanes,
            max_seq=max_seq,
            bytes_per_token=token_bytes,
        ),
        special=artefacts.text.special,
        text=Text(
            vocabulary=VOCABULARY_FILE,
            chat_template=None if artefacts.text.chat_template is None else TEMPLATE_FILE,
        ),
        failure_isolation=FailureIsolation.BATCH,
        co_residency=CoResidency.EXCLUSIVE,
        golden=None,
        files=records,
        memory=_memory(artefacts, records, kv_bytes=lanes * max_seq * token_bytes),
        binary=DeviceBinary(
            version=calbin.version,
            compiler=f"{calbin.compiler} {calbin.compiler_version}".strip(),
            calcore_rt=calbin.calcore_rt,
            shards=shards,
            overridden=plan.overrides,
        ),
    )


def _memory(artefacts: Artefacts, records: dict[str, FileRecord], *, kv_bytes: int) -> Memory:
    """Each chip's shard, and its even share of everything else: no artefact says how the rest is divided."""
    chips = len(artefacts.shards)
    kv_shares, reserved_shares = _evenly(kv_bytes, chips), _evenly(artefacts.plan.reserved_bytes, chips)
    return Memory(
        chips=tuple(
            ChipMemory(
                parameters_bytes=records[path.name].size_bytes,
                kv_bytes=kv_share,
                buffers_bytes=0,
                reserved_bytes=reserved_share,
            )
            for path, kv_share, reserved_share in zip(artefacts.shards, kv_shares, reserved_shares, strict=True)
        ),
        basis=MemoryBasis.INFERRED if artefacts.plan.reserved_bytes else MemoryBasis.DECLARED,
    )


def _evenly(count_bytes: int, chips: int) -> list[int]:
    share, rest = divmod(count_bytes, chips)
    return [share + (index < rest) for index in range(chips)]


def _submodel(planned: PlannedSubmodel, found: CalbinSubmodel, graph: str) -> Submodel:
    """Tensors and registers by what the plan says they are; others of the calbin are left out."""
    layouts = {
        planned.tokens: calbin_roles.TOKENS,
        planned.positions: calbin_roles.POSITIONS,
        planned.logits: calbin_roles.LOGITS,
        planned.lane_mask: calbin_roles.LANE_MASK,
    }
    meanings = {planned.past_length: calbin_roles.PAST_LENGTH, planned.length: calbin_roles.LENGTH}
    tensors = {
        direction: tuple(
            Tensor(
                name=tensor.name,
                dtype=DTYPES.get(tensor.dtype, tensor.dtype),
                shape=tuple(extent if extent >= 0 else "tokens" for extent in tensor.extents),
                layout=layouts[tensor.name],
            )
            for tensor in found.tensors
            if tensor.direction == direction and tensor.name in layouts
        )
        for direction in ("input", "output")
    }
    return Submodel(
        name=found.name,
        graph=graph,
        batch=found.batch,
        inputs=tensors["input"],
        outputs=tensors["output"],
        csrs=tuple(
            Csr(name=csr.name, entries=csr.entries, meaning=meanings[csr.name])
            for csr in found.csrs
            if csr.name in meanings
        ),
    )


def _profile(planned: PlannedSubmodel, found: CalbinSubmodel, max_seq: int) -> Profile:
    policy = InactiveLanePolicy.NONE if planned.lane_mask is None else InactiveLanePolicy.VALID_MASK
    return Profile(
        submodel=found.name, compiled_batch=found.batch, max_seq=max_seq, inactive_lane=policy, mask=planned.lane_mask
    )
