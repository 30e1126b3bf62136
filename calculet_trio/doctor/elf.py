"""What an ELF file says of itself by its headers: for which machine, whole or cut short, what it needs. Nothing is run.

Read before a library is loaded, since the loader's own words for a file that is cut or for another machine are few,
and since it maps a file that is cut in the middle and lets the process die at the first missing page.

Source: System V ABI, "Object Files" (gABI 4.1, ELF-64); elf(5).
"""

from __future__ import annotations

import os
import struct
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO, Final

import attrs

from calculet_trio.regular_file import open_regular

MAGIC: Final = b"\x7fELF"
IDENT_BYTES: Final = 16
HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
SEGMENT: Final = struct.Struct("<IIQQQQQQ")
ENTRY: Final = struct.Struct("<qQ")
WIDE: Final = 2
LITTLE: Final = 1
"""ELFCLASS64 and ELFDATA2LSB: all that CalRT and this program run on."""
SHARED: Final = 3
"""ET_DYN."""
SEGMENTS_MAX: Final = 128
DYNAMIC_BYTES_MAX: Final = 1 << 16
STRINGS_BYTES_MAX: Final = 16 << 20
"""The emulator's has 6 kB; a library of a hundred megabytes has a few."""
MACHINES: Final = {3: "x86 (32 bit)", 40: "ARM (32 bit)", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
OWN: Final = Path("/proc/self/exe")


class Kind(IntEnum):
    """Of a segment: ``p_type``."""

    LOAD = 1
    DYNAMIC = 2


class Tag(IntEnum):
    """Of an entry of the dynamic section: ``d_tag``."""

    NEEDED = 1
    STRTAB = 5
    STRSZ = 10
    SONAME = 14
    RPATH = 15
    RUNPATH = 29


class NoElf(Exception):
    """The file cannot be a library for this machine; the text says why, after the file's name."""


class OtherMachine(NoElf):
    """It is a library, for a machine that is not this one: where the loader searches, it passes that over."""


@attrs.frozen(kw_only=True)
class Elf:
    """A shared library, as its headers have it.

    Args:
        machine: its ``e_machine``.
        soname: what it calls itself; empty if it does not.
        needed: the libraries that it needs, by their sonames.
        search: the directories that it names for them, with ``$ORIGIN`` as its own.
        names: every name of its dynamic string table, each before a NUL: a symbol that is not here is not in it.
    """

    machine: int
    soname: str
    needed: tuple[str, ...]
    search: tuple[Path, ...]
    names: bytes

    def mentions(self, symbol: str) -> bool:
        """Whether the name is there at all; whether it is defined, only the loader knows."""
        return symbol.encode() + b"\0" in self.names  # linkers let a name be the end of another


def read_library(path: Path) -> Elf:
    """The library's headers.

    Raises:
        OSError: it cannot be read.
        NoElf: it is no library, one for another machine than this program's, or cut short.
    """
    with open_regular(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        header = _header(file.read(HEADER.size), size_bytes)
        _, kind, machine, _, _, at, sections_at, _, _, entry_bytes, count, section_bytes, sections, _ = header
        if kind != SHARED:
            raise NoElf(f"is an ELF file of type {kind}, not a shared library")
        _require_own(machine)
        if not (count <= SEGMENTS_MAX and entry_bytes == SEGMENT.size):
            raise NoElf(f"has damaged headers: {count} segments of {entry_bytes} bytes each")
        reader = _Reader(file, size_bytes)
        reader.reaches(sections_at + sections * section_bytes)
        segments = list(SEGMENT.iter_unpack(reader.take(at, count * SEGMENT.size)))
        for segment in segments:
            reader.reaches(segment[2] + segment[5])
        return _dynamic(reader, segments, machine, path)


def _header(data: bytes, size_bytes: int) -> tuple[int, ...]:
    if data[: len(MAGIC)] != MAGIC:
        raise NoElf(f"is not an ELF file: it begins with {data[:8]!r}" if data else "is empty")
    if len(data) < HEADER.size:
        raise NoElf(f"is cut short: it has {size_bytes} bytes; an ELF header has {HEADER.size}")
    if data[4] != WIDE or data[5] != LITTLE:
        width = {1: "32 bit", 2: "64 bit"}.get(data[4], "of no known width")
        order = {1: "little-endian", 2: "big-endian"}.get(data[5], "of no known byte order")
        raise OtherMachine(f"is for another machine: {width}, {order}; this program needs 64 bit, little-endian")
    return HEADER.unpack(data)


def _require_own(machine: int) -> None:
    """The machine of the interpreter that runs this: what it would load the library into."""
    try:
        with open_regular(OWN) as file:
            own = HEADER.unpack(file.read(HEADER.size))[2]
    except (OSError, struct.error):  # no /proc: the loader will say it in its own words
        return
    if machine != own:
        raise OtherMachine(f"is for another machine: {_machine(machine)}; this program runs on {_machine(own)}")


def _machine(number: int) -> str:
    return MACHINES.get(number, f"the ELF machine {number}")


@attrs.frozen
class _Reader:
    """Reads within the file, and knows when the headers speak of more than there is."""

    file: BinaryIO
    size_bytes: int

    def reaches(self, end: int) -> None:
        if end > self.size_bytes:
            raise NoElf(f"is cut short: it has {self.size_bytes} bytes, and its headers speak of {end}")

    def take(self, at: int, size_bytes: int) -> bytes:
        self.reaches(at + size_bytes)
        self.file.seek(at)
        return self.file.read(size_bytes)


def _dynamic(reader: _Reader, segments: list[tuple[int, ...]], machine: int, path: Path) -> Elf:
    found = next((segment for segment in segments if segment[0] == Kind.DYNAMIC), None)
    if found is None:
        raise NoElf("is an ELF file without a dynamic section, so it is no shared library")
    table = reader.take(found[2], min(found[5], DYNAMIC_BYTES_MAX) // ENTRY.size * ENTRY.size)
    entries = list(ENTRY.iter_unpack(table))
    values = dict(entries)
    names = _strings(reader, segments, values)

    def word(at: int) -> str:
        return os.fsdecode(names[at : names.find(b"\0", at)]) if 0 <= at < len(names) else ""

    search = word(values.get(Tag.RUNPATH) or values.get(Tag.RPATH) or 0)  # name 0 is empty
    origin = str(path.absolute().parent)
    return Elf(
        machine=machine,
        soname=word(values.get(Tag.SONAME, 0)),
        needed=tuple(word(value) for tag, value in entries if tag == Tag.NEEDED),
        search=tuple(
            Path(each.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)) for each in search.split(":") if each
        ),
        names=names,
    )


def _strings(reader: _Reader, segments: list[tuple[int, ...]], values: dict[int, int]) -> bytes:
    """The dynamic string table, which the headers name by its address in memory."""
    address, size_bytes = values.get(Tag.STRTAB, 0), values.get(Tag.STRSZ, 0)
    for kind, _, offset, start, _, in_file, _, _ in segments:
        if kind == Kind.LOAD and start <= address < start + in_file:
            return reader.take(offset + address - start, min(size_bytes, STRINGS_BYTES_MAX)) + b"\0"
    raise NoElf("has damaged headers: its names lie in no segment")
