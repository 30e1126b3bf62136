"""What a calbin says of itself, and what is wrong with it.

The real format is not public: a board's own library reads it (`calculet_trio.runtimes.calrt_library`), and
what it says is handed here as a `Calbin`. The emulator's container, in bytes of our own, is read here, by its
header and metadata alone: parameters are gigabytes and stay where they are.

Source: binding/emulator/CALBIN.md; A §4 (version, shards, known defects).
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import attrs

from calculet_trio.errors import PackageError
from calculet_trio.regular_file import open_regular

T = TypeVar("T")

MAGIC: Final = b"CALBINEM"
VERSION: Final = (0, 1)
HEADER: Final = struct.Struct("<8sHHHHQQ16sII8x")
HEADER_CRC_BYTES: Final = 52
SHARDS_MAX: Final = 64
METADATA_BYTES_MAX: Final = 1 << 20
SUBMODELS_MAX: Final = 64
LINES_MAX: Final = 64
"""Tensors of a submodel, and registers."""
NAME_CHARACTERS_MAX: Final = 128
CHIP_MODES: Final = ("SCHIP", "MCHIP")
TOKENS_MAX: Final = 1 << 24
BATCH_MAX: Final = 1024
FREE_EXTENT: Final = -1


@attrs.frozen
class CalbinTensor:
    """One input or output; an extent of `FREE_EXTENT` is free within the longest sequence."""

    direction: str
    name: str
    dtype: str
    extents: tuple[int, ...]


@attrs.frozen
class CalbinCsr:
    name: str
    entries: int


@attrs.frozen
class StepTime:
    """What a job of the emulator takes, see CALBIN.md."""

    base_ns: int = 0
    unit_ns: int = 0
    pair_ps: int = 0


NO_TIME: Final = StepTime()


@attrs.frozen
class CalbinSubmodel:
    """One compiled graph, as the file has it: ``model_type`` and ``workload`` may be wrong (A §4)."""

    name: str
    model_type: str
    batch: int
    workload: int
    target_chips: tuple[int, ...]
    tensors: tuple[CalbinTensor, ...]
    csrs: tuple[CalbinCsr, ...] = ()
    time: StepTime = NO_TIME


@attrs.frozen(kw_only=True)
class Calbin:
    """The metadata of one set of shards.

    Args:
        version: of the container's schema, as it calls itself (``0.1``).
        chips: chips that the parameters are split over.
        lanes: KV sequences resident at once.
        parameter_bytes: of each shard.
    """

    version: str
    name: str
    compiler: str
    compiler_version: str
    calcore_rt: str
    chip_mode: str
    chips: int
    max_batch_size: int
    max_seq_len: int
    lanes: int
    vocab_size: int
    kv_bytes_per_token: int
    submodels: tuple[CalbinSubmodel, ...]
    parameter_bytes: tuple[int, ...] = ()


@attrs.frozen
class _Shard:
    """A header that was believed."""

    path: Path
    index: int
    count: int
    metadata_bytes: int
    parameter_bytes: int
    set_id: bytes
    metadata_crc: int


def is_emulated(path: Path) -> bool:
    """Whether the file begins as the emulator's container does.

    Raises:
        PackageError: it cannot be read.
    """
    return _begin(path, len(MAGIC)) == MAGIC


def read_calbin(paths: Sequence[Path], *, whole: bool = True) -> Calbin:
    """The metadata of the set of shards ``paths``, in any order.

    Args:
        paths: the shards.
        whole: every shard of the set must be among them; otherwise the one with the metadata is enough.

    Raises:
        PackageError: naming the file, the field, its value and what is allowed.
    """
    if not 1 <= len(paths) <= SHARDS_MAX:
        raise PackageError(f"{len(paths)} shards were given; allowed: 1 to {SHARDS_MAX}")
    shards = sorted((_read_header(path) for path in paths), key=lambda shard: shard.index)
    first = shards[0]
    if first.index != 0:
        raise PackageError(f"{first.path} is shard {first.index}; the metadata stands in shard 0, which is missing")
    for shard in shards[1:]:
        if (shard.set_id, shard.count) != (first.set_id, first.count):
            raise PackageError(f"{shard.path} is of another set than {first.path}")
    indices = [shard.index for shard in shards]
    if len(set(indices)) != len(indices) or (whole and len(indices) != first.count):
        raise PackageError(f"the set of {first.path} has {first.count} shards; given were {indices}")
    metadata = _begin(first.path, HEADER.size + first.metadata_bytes)[HEADER.size :]
    if zlib.crc32(metadata) != first.metadata_crc or hashlib.sha256(metadata).digest()[:16] != first.set_id:
        raise PackageError(f"{first.path}: the metadata is damaged: its checksum does not fit")
    return attrs.evolve(
        parse_metadata(metadata, first.path), parameter_bytes=tuple(shard.parameter_bytes for shard in shards)
    )


def _begin(path: Path, size_bytes: int) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(size_bytes)
    except OSError as error:
        raise PackageError(f"{path} cannot be read: {error.strerror}") from error


def _read_header(path: Path) -> _Shard:
    data = _begin(path, HEADER.size)
    if data[: len(MAGIC)] != MAGIC:
        raise PackageError(
            f"{path} is not an emulated calbin: it begins with {data[:8]!r}, not {MAGIC!r}",
            hint="a real calbin is read by the board's library: calculet-trio binding build --calrt DIR",
        )
    if len(data) < HEADER.size:
        raise PackageError(f"{path} has {len(data)} bytes; a header has {HEADER.size}")
    _, major, minor, index, count, metadata_bytes, parameter_bytes, set_id, metadata_crc, crc = HEADER.unpack(data)
    if zlib.crc32(data[:HEADER_CRC_BYTES]) != crc or any(data[HEADER_CRC_BYTES + 4 :]):
        raise PackageError(f"{path}: the header is damaged: its checksum does not fit")
    if (major, minor) != VERSION:
        raise PackageError(f"{path}: version is {major}.{minor}; this version reads {VERSION[0]}.{VERSION[1]}")
    if not (1 <= count <= SHARDS_MAX and index < count):
        raise PackageError(f"{path}: shard_index is {index} of {count}; allowed: below shard_count, 1 to {SHARDS_MAX}")
    allowed = range(1, METADATA_BYTES_MAX + 1) if index == 0 else range(1)
    if metadata_bytes not in allowed:
        raise PackageError(f"{path}: metadata_bytes is {metadata_bytes}; allowed: {allowed[0]} to {allowed[-1]}")
    size_bytes = path.stat().st_size
    if size_bytes != HEADER.size + metadata_bytes + parameter_bytes:
        raise PackageError(
            f"{path} has {size_bytes} bytes; its header says {HEADER.size + metadata_bytes + parameter_bytes}",
            hint="the copy is incomplete: get the shard again",
        )
    return _Shard(path, index, count, metadata_bytes, parameter_bytes, set_id, metadata_crc)


# ---- metadata ---------------------------------------------------------------------------------------


class _Lines:
    """The metadata's lines, taken one by one by the key they must have."""

    def __init__(self, data: bytes, path: Path) -> None:
        self._path = path
        self._number = 0
        if not data.endswith(b"\n") or not all(byte == 10 or 32 <= byte <= 126 for byte in data):
            raise PackageError(f"{path}: the metadata is not lines of visible ASCII")
        self._lines = data.decode("ascii")[:-1].split("\n")

    def next_key(self) -> str:
        """The first word of the next line; empty at the end."""
        return self._lines[self._number].split(" ")[0] if self._number < len(self._lines) else ""

    def take(self, key: str, least: int, most: int) -> list[str]:
        """The words after ``key`` of the next line, which must have between ``least`` and ``most`` of them."""
        if self.next_key() != key:
            raise self.refusal(f"is {self.next_key()!r}; allowed here: {key}")
        words = self._lines[self._number].split(" ")[1:]
        self._number += 1
        if not least <= len(words) <= most or not all(0 < len(word) <= NAME_CHARACTERS_MAX for word in words):
            raise self.refusal(f"{key} has {len(words)} words; allowed: {least} to {most}, none empty or long")
        return words

    def word(self, key: str, allowed: tuple[str, ...] = ()) -> str:
        [word] = self.take(key, 1, 1)
        if allowed and word not in allowed:
            raise self.refusal(f"{key} is {word!r}; allowed: {', '.join(allowed)}")
        return word

    def whole(self, key: str, least: int, most: int) -> int:
        return self.number(self.word(key), key, least, most)

    def number(self, word: str, key: str, least: int, most: int) -> int:
        if not (word.removeprefix("-").isdigit() and len(word) <= 20 and least <= int(word) <= most):
            raise self.refusal(f"{key} is {word!r}; allowed: {least} to {most}")
        return int(word)

    def several(self, key: str, most: int, take: Callable[[], T]) -> Iterator[T]:
        """``take`` for each line with that key, up to ``most``."""
        for taken in range(most + 1):
            if self.next_key() != key:
                return
            if taken == most:
                raise self.refusal(f"{key} stands more than {most} times")
            yield take()

    def refusal(self, sentence: str) -> PackageError:
        return PackageError(f"{self._path}: metadata line {self._number + 1}: {sentence}")

    def done(self) -> None:
        self.take("end", 0, 0)
        if self.next_key() or self._number != len(self._lines):
            raise self.refusal("follows the end")


def parse_metadata(data: bytes, path: Path) -> Calbin:
    """The metadata of an emulated calbin.

    Raises:
        PackageError: the first line that does not fit, by its number and key.
    """
    lines = _Lines(data, path)
    name = lines.word("name")
    compiler, compiler_version = lines.take("compiler", 2, 2)
    calbin = Calbin(
        version=f"{VERSION[0]}.{VERSION[1]}",
        name=name,
        compiler=compiler,
        compiler_version=compiler_version,
        calcore_rt=lines.word("calcore_rt"),
        chip_mode=lines.word("chip_mode", CHIP_MODES),
        chips=lines.whole("chips", 1, 16),
        max_batch_size=lines.whole("max_batch_size", 1, BATCH_MAX),
        max_seq_len=lines.whole("max_seq_len", 1, TOKENS_MAX),
        lanes=lines.whole("lanes", 1, BATCH_MAX),
        vocab_size=lines.whole("vocab_size", 1, TOKENS_MAX),
        kv_bytes_per_token=lines.whole("kv_bytes_per_token", 0, 1 << 50),
        submodels=tuple(lines.several("submodel", SUBMODELS_MAX, lambda: _submodel(lines))),
    )
    lines.done()
    names = [submodel.name for submodel in calbin.submodels]
    if not names or len(set(names)) != len(names):
        raise PackageError(f"{path}: submodels are {names}; allowed: 1 to {SUBMODELS_MAX}, no name twice")
    largest = max(submodel.batch for submodel in calbin.submodels)
    if largest != calbin.max_batch_size:
        raise PackageError(f"{path}: max_batch_size is {calbin.max_batch_size}; its submodels go up to {largest}")
    return calbin


def _submodel(lines: _Lines) -> CalbinSubmodel:
    return CalbinSubmodel(
        name=lines.word("submodel"),
        model_type=lines.word("model_type"),
        batch=lines.whole("batch", 1, BATCH_MAX),
        workload=lines.whole("workload", 0, 1 << 31),
        target_chips=tuple(lines.number(word, "target_chips", 0, 15) for word in lines.take("target_chips", 0, 16)),
        tensors=tuple(lines.several("tensor", LINES_MAX, lambda: _tensor(lines))),
        csrs=tuple(lines.several("csr", LINES_MAX, lambda: _csr(lines))),
        time=StepTime(*(lines.number(word, "time", 0, 1 << 50) for word in lines.take("time", 3, 3))),
    )


def _tensor(lines: _Lines) -> CalbinTensor:
    direction, name, dtype, *extents = lines.take("tensor", 4, 11)
    if direction not in ("input", "output"):
        raise lines.refusal(f"tensor {name} is {direction!r}; allowed: input, output")
    return CalbinTensor(
        direction, name, dtype, tuple(lines.number(word, f"tensor {name}", FREE_EXTENT, TOKENS_MAX) for word in extents)
    )


def _csr(lines: _Lines) -> CalbinCsr:
    name, entries = lines.take("csr", 2, 2)
    return CalbinCsr(name, lines.number(entries, f"csr {name}", 1, BATCH_MAX))
