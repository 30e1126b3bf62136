"""Writes the emulator's container: what a board's compiler would have made, with nothing in it.

Source: binding/emulator/CALBIN.md.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs

from calculet_trio.errors import ConfigurationRefused
from calculet_trio.packages.calbin import (
    BATCH_MAX,
    CHIP_MODES,
    FREE_EXTENT,
    HEADER,
    HEADER_CRC_BYTES,
    MAGIC,
    NO_TIME,
    SHARDS_MAX,
    TOKENS_MAX,
    VERSION,
    Calbin,
    CalbinCsr,
    CalbinSubmodel,
    CalbinTensor,
    StepTime,
    parse_metadata,
)

PREFILL: Final = "prefill"
TOKENS: Final = "inputs[0]"
POSITIONS: Final = "inputs[1]"
LANE_VALID: Final = "lane_valid"
LOGITS: Final = "outputs[0]"
PAST_LENGTH: Final = "past_kv_cur_seq_len"
LENGTH: Final = "cur_seq_len"
BYTE_VOCABULARY: Final = 300
"""The byte tokenizer's tokens, and a few that stand for nothing."""


def decode_name(batch: int) -> str:
    """What the decode submodel of that batch is called; the only one of today's calbins is plain ``decode``."""
    return "decode" if batch == 1 else f"decode_b{batch}"


@attrs.frozen(kw_only=True)
class EmulatedShape:
    """What an emulated calbin is to be like.

    Args:
        batches: decode batches compiled, each at most ``lanes``.
        lanes: KV sequences resident at once.
        parameter_bytes: of each shard; as many shards as entries. They are holes in the files.
        prefill: what a job takes; zero for a device without time.
        decode: likewise, by batch; zero for those that are not named.
        defects: with the known faults of today's compiler (A §4): all typed ``llm_decode``, workload 0, no chips.

    Raises:
        ConfigurationRefused: out of range, by name.
    """

    name: str = "emulated"
    batches: tuple[int, ...] = (1,)
    lanes: int = 4
    max_seq_len: int = 40_960
    vocab_size: int = 151_936
    kv_bytes_per_token: int = 98_304
    parameter_bytes: tuple[int, ...] = (0, 0)
    prefill: StepTime = NO_TIME
    decode: Mapping[int, StepTime] = attrs.field(factory=dict)
    defects: bool = True

    def __attrs_post_init__(self) -> None:
        _require("lanes", self.lanes, 1 <= self.lanes <= BATCH_MAX, f"1 to {BATCH_MAX}")
        fits = bool(self.batches) and all(1 <= batch <= self.lanes for batch in self.batches)
        fits = fits and list(self.batches) == sorted(set(self.batches))
        _require("batches", self.batches, fits, f"rising numbers from 1 to lanes ({self.lanes})")
        reaches_all = 1 in self.batches or self.lanes in self.batches
        _require("batches", self.batches, reaches_all, f"1 or lanes ({self.lanes}) among them")
        _require("max_seq_len", self.max_seq_len, 2 <= self.max_seq_len <= TOKENS_MAX, f"2 to {TOKENS_MAX}")
        lowest = BYTE_VOCABULARY
        _require("vocab_size", self.vocab_size, lowest <= self.vocab_size <= TOKENS_MAX, f"{lowest} to {TOKENS_MAX}")
        kv_bytes = self.kv_bytes_per_token
        _require("kv_bytes_per_token", kv_bytes, kv_bytes > 0 and kv_bytes % 4 == 0, "a multiple of 4: K and V in bf16")
        shards = len(self.parameter_bytes)
        _require("parameter_bytes", shards, 1 <= shards <= SHARDS_MAX, f"1 to {SHARDS_MAX} shards")
        sized = all(0 <= size <= 1 << 50 for size in self.parameter_bytes)
        _require("parameter_bytes", self.parameter_bytes, sized, f"0 to {1 << 50} each")

    def calbin(self) -> Calbin:
        """The metadata of it."""
        return Calbin(
            version=f"{VERSION[0]}.{VERSION[1]}",
            name=self.name,
            compiler="emulated-compiler",
            compiler_version="0.1",
            calcore_rt="emulated",
            chip_mode=CHIP_MODES[len(self.parameter_bytes) > 1],
            chips=min(len(self.parameter_bytes), 16),
            max_batch_size=max(self.batches),
            max_seq_len=self.max_seq_len,
            lanes=self.lanes,
            vocab_size=self.vocab_size,
            kv_bytes_per_token=self.kv_bytes_per_token,
            submodels=(self._submodel(PREFILL, 1, FREE_EXTENT), *(self._decode(batch) for batch in self.batches)),
            parameter_bytes=self.parameter_bytes,
        )

    def _decode(self, batch: int) -> CalbinSubmodel:
        return self._submodel(decode_name(batch), batch, 1)

    def _submodel(self, name: str, batch: int, tokens: int) -> CalbinSubmodel:
        mask = (CalbinTensor("input", LANE_VALID, "uint8", (batch,)),) if batch > 1 else ()
        is_prefill = tokens == FREE_EXTENT
        rows = FREE_EXTENT if is_prefill else batch
        return CalbinSubmodel(
            name=name,
            model_type="llm_prefill" if is_prefill and not self.defects else "llm_decode",
            batch=batch,
            workload=0 if self.defects else 1,
            target_chips=() if self.defects else tuple(range(min(len(self.parameter_bytes), 16))),
            tensors=(
                CalbinTensor("input", TOKENS, "int32", (batch, tokens)),
                CalbinTensor("input", POSITIONS, "int32", (batch, tokens)),
                *mask,
                CalbinTensor("output", LOGITS, "bfloat16", (rows, self.vocab_size)),
            ),
            csrs=(CalbinCsr(PAST_LENGTH, batch), CalbinCsr(LENGTH, batch)),
            time=self.prefill if is_prefill else self.decode.get(batch, NO_TIME),
        )


def _require(name: str, value: object, holds: bool, allowed: str) -> None:
    if not holds:
        raise ConfigurationRefused(f"{name} is {value}; allowed: {allowed}")


def write_calbin(calbin: Calbin, directory: Path) -> tuple[Path, ...]:
    """Write the set's shards, ``NAME.0.calbin`` and so on, into ``directory``; parameters become holes.

    Returns:
        The files, by shard.

    Raises:
        calculet_trio.errors.PackageError: what is described could not be read again.
    """
    metadata = "".join(f"{line}\n" for line in _lines(calbin)).encode("ascii")
    paths = tuple(directory / f"{calbin.name}.{index}.calbin" for index in range(len(calbin.parameter_bytes)))
    parse_metadata(metadata, paths[0])
    for index, (path, parameter_bytes) in enumerate(zip(paths, calbin.parameter_bytes, strict=True)):
        own = metadata if index == 0 else b""
        header = HEADER.pack(
            MAGIC,
            *VERSION,
            index,
            len(paths),
            len(own),
            parameter_bytes,
            hashlib.sha256(metadata).digest()[:16],
            zlib.crc32(metadata),
            0,
        )
        crc = zlib.crc32(header[:HEADER_CRC_BYTES]).to_bytes(4, "little")
        with path.open("wb") as file:
            file.write(header[:HEADER_CRC_BYTES] + crc + header[HEADER_CRC_BYTES + 4 :] + own)
            file.truncate(HEADER.size + len(own) + parameter_bytes)
    return paths


def _lines(calbin: Calbin) -> Iterator[str]:
    yield f"name {calbin.name}"
    yield f"compiler {calbin.compiler} {calbin.compiler_version}"
    for key in ("calcore_rt", "chip_mode", "chips", "max_batch_size", "max_seq_len", "lanes", "vocab_size"):
        yield f"{key} {getattr(calbin, key)}"
    yield f"kv_bytes_per_token {calbin.kv_bytes_per_token}"
    for submodel in calbin.submodels:
        yield f"submodel {submodel.name}"
        yield f"model_type {submodel.model_type}"
        yield f"batch {submodel.batch}"
        yield f"workload {submodel.workload}"
        yield " ".join(("target_chips", *map(str, submodel.target_chips)))
        for tensor in submodel.tensors:
            yield " ".join(("tensor", tensor.direction, tensor.name, tensor.dtype, *map(str, tensor.extents)))
        for csr in submodel.csrs:
            yield f"csr {csr.name} {csr.entries}"
        yield f"time {submodel.time.base_ns} {submodel.time.unit_ns} {submodel.time.pair_ps}"
    yield "end"
