"""The emulator's container: written and read back, damaged anywhere, bounded everywhere."""

from __future__ import annotations

import hashlib
import resource
import zlib
from contextlib import suppress
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculet_trio.errors import ConfigurationRefused, PackageError
from calculet_trio.packages.calbin import HEADER, MAGIC, Calbin, is_emulated, parse_metadata, read_calbin
from calculet_trio.packages.calbin_writer import EmulatedShape, write_calbin

SMALL = EmulatedShape(batches=(1, 4), max_seq_len=64, vocab_size=300, kv_bytes_per_token=64)


def test_what_is_written_is_read_again_in_any_order(tmp_path: Path) -> None:
    calbin = SMALL.calbin()
    paths = write_calbin(calbin, tmp_path)
    assert len(paths) == 2
    assert read_calbin(paths) == read_calbin(paths[::-1]) == calbin
    assert read_calbin(paths[:1], whole=False) == attrs.evolve(calbin, parameter_bytes=(0,))


def test_the_bytes_are_as_the_document_says(tmp_path: Path) -> None:
    first, second = (path.read_bytes() for path in write_calbin(SMALL.calbin(), tmp_path))
    metadata = first[64:]
    assert first[:16] == MAGIC + bytes((0, 0, 1, 0, 0, 0, 2, 0))
    assert int.from_bytes(first[16:24], "little") == len(metadata)
    assert first[32:48] == second[32:48] == hashlib.sha256(metadata).digest()[:16]
    assert int.from_bytes(first[48:52], "little") == zlib.crc32(metadata)
    assert int.from_bytes(second[52:56], "little") == zlib.crc32(second[:52])
    assert (second[12:14], len(second)) == (bytes((1, 0)), HEADER.size)
    assert metadata.startswith(b"name emulated\ncompiler emulated-compiler 0.1\ncalcore_rt emulated\nchip_mode MCHIP\n")
    assert b"\nsubmodel prefill\nmodel_type llm_decode\nbatch 1\nworkload 0\ntarget_chips\n" in metadata
    assert metadata.endswith(b"csr cur_seq_len 4\ntime 0 0 0\nend\n")


def test_gigabytes_of_parameters_are_not_read(tmp_path: Path) -> None:
    sizes = (9_400_000_000, 8_780_000_000)
    paths = write_calbin(attrs.evolve(SMALL, parameter_bytes=sizes).calbin(), tmp_path)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert read_calbin(paths).parameter_bytes == sizes
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 100_000


def test_every_damaged_byte_of_a_shard_is_seen(tmp_path: Path) -> None:
    paths = write_calbin(SMALL.calbin(), tmp_path)
    whole = paths[0].read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        paths[0].write_bytes(damaged)
        with pytest.raises(PackageError, match=str(paths[0])):
            read_calbin(paths)


def test_every_cut_of_a_shard_is_seen(tmp_path: Path) -> None:
    paths = write_calbin(SMALL.calbin(), tmp_path)
    whole = paths[0].read_bytes()
    for length in (*range(len(whole)), len(whole) + 1):
        paths[0].write_bytes((whole + b"\0")[:length])
        with pytest.raises(PackageError, match=str(paths[0])):
            read_calbin(paths)


def test_a_set_is_whole_and_of_one_make(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first, second = write_calbin(SMALL.calbin(), tmp_path)
    stranger = write_calbin(attrs.evolve(SMALL, lanes=5).calbin(), tmp_path / "other")[1]
    for paths, words in (
        ([first], "has 2 shards; given were"),
        ([first, first], "given were"),
        ([second], "shard 0, which is missing"),
        ([first, stranger], "is of another set"),
        ([], "0 shards were given; allowed: 1 to 64"),
    ):
        with pytest.raises(PackageError, match=words):
            read_calbin(paths)


def test_another_format_is_named_and_not_guessed(tmp_path: Path) -> None:
    real = tmp_path / "qwen3.calbin"
    real.write_bytes(b"\x7fCALBIN and whatever follows")
    assert not is_emulated(real)
    with pytest.raises(PackageError, match="not an emulated calbin") as refused:
        read_calbin([real])
    assert "binding build" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("line", "instead", "words"),
    [
        ("lanes 4", "lanes 0", "lanes is '0'; allowed: 1 to 1024"),
        ("lanes 4", "lanes four", "lanes is 'four'"),
        ("lanes 4", "lanes 4 4", "lanes has 2 words"),
        ("lanes 4", "lines 4", "is 'lines'; allowed here: lanes"),
        ("chip_mode MCHIP", "chip_mode XCHIP", "allowed: SCHIP, MCHIP"),
        ("max_batch_size 4", "max_batch_size 8", "max_batch_size is 8; its submodels go up to 4"),
        ("submodel decode_b4", "submodel decode", "no name twice"),
        ("tensor input inputs[0] int32 1 -1", "tensor inout inputs[0] int32 1 -1", "allowed: input, output"),
        ("csr cur_seq_len 4", "csr cur_seq_len -4", "csr cur_seq_len is '-4'"),
        ("end", "end\nlanes 4", "follows the end"),
        ("name emulated", "name ", "none empty"),
        ("name emulated", f"name {'n' * 129}", "none empty or long"),
        ("csr cur_seq_len 4", "\n".join(["csr cur_seq_len 4"] * 64), "csr stands more than 64 times"),
    ],
)
def test_metadata_is_refused_by_its_line(tmp_path: Path, line: str, instead: str, words: str) -> None:
    metadata = write_calbin(SMALL.calbin(), tmp_path)[0].read_bytes()[64:].decode()
    assert f"{line}\n" in metadata
    with pytest.raises(PackageError) as refused:
        parse_metadata(metadata.replace(f"{line}\n", f"{instead}\n", 1).encode(), Path("x.calbin"))
    assert words in refused.value.message


@given(st.binary(max_size=400) | st.text(max_size=400).map(str.encode))
def test_any_bytes_are_metadata_or_a_package_error(data: bytes) -> None:
    with suppress(PackageError):
        assert isinstance(parse_metadata(data, Path("x.calbin")), Calbin)


@pytest.mark.parametrize(
    "wrong",
    [
        {"lanes": 0},
        {"batches": ()},
        {"batches": (2,)},
        {"batches": (1, 8)},
        {"vocab_size": 299},
        {"parameter_bytes": ()},
    ],
)
def test_a_shape_that_cannot_be_is_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationRefused, match=rf"^{next(iter(wrong))} is .*; allowed: "):
        EmulatedShape(**wrong)
