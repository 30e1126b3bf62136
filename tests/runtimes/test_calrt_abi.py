"""The mirror of the binding's header: every struct, constant and call is as a C compiler sees it."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from calculet_trio.runtimes import calrt_abi as abi

HEADER = Path(__file__).parents[2] / "binding" / "include" / "calculet_calrt.h"
TEXT = HEADER.read_text("utf-8")
CONSTANTS = {
    "CALCULET_CALRT_ABI": abi.ABI_VERSION,
    "CALCULET_NAME_BYTES": abi.NAME_BYTES,
    "CALCULET_TEXT_BYTES": abi.TEXT_BYTES,
    "CALCULET_ENGINES_MAX": abi.ENGINES_MAX,
    "CALCULET_RANK_MAX": abi.RANK_MAX,
    "CALCULET_PREFILL": abi.PREFILL,
    "CALCULET_DECODE": abi.DECODE,
    "CALCULET_OUTPUT": abi.OUTPUT,
    "CALCULET_SIZE_UNKNOWN": abi.SIZE_UNKNOWN,
    "CALCULET_WAIT_S_MAX": abi.WAIT_S_MAX,
    **{f"CALCULET_{code.name}": code.value for code in abi.Code},
}


def seen_by_c(tmp_path: Path, expressions: list[str]) -> list[float]:
    """The values of constant expressions over the header."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    lines = "\n".join(f'printf("%.17g\\n", (double)({expression}));' for expression in expressions)
    source = tmp_path / "seen.c"
    source.write_text(
        f'#include <stdio.h>\n#include <stddef.h>\n#include "{HEADER}"\nint main(void) {{ {lines} return 0; }}\n'
    )
    subprocess.run([compiler, "-std=c99", "-o", tmp_path / "seen", source], check=True, timeout=60)
    printed = subprocess.run([tmp_path / "seen"], check=True, capture_output=True, text=True, timeout=60).stdout
    return [float(line) for line in printed.split()]


def test_sizes_offsets_and_constants_are_the_headers(tmp_path: Path) -> None:
    expected: dict[str, float] = dict(CONSTANTS)
    for name, struct in abi.STRUCTS.items():
        expected[f"sizeof({name})"] = ctypes.sizeof(struct)
        for field, *_ in struct._fields_:
            expected[f"offsetof({name}, {field})"] = getattr(struct, field).offset
            expected[f"sizeof((({name} *)0)->{field})"] = getattr(struct, field).size
    assert dict(zip(expected, seen_by_c(tmp_path, list(expected)), strict=True)) == expected


def test_no_struct_field_or_code_of_the_header_is_left_out() -> None:
    structs = dict(re.findall(r"typedef struct (calculet_\w+) \{.*?\} (\1);", TEXT, re.DOTALL))
    assert set(structs) == set(abi.STRUCTS)
    for name, struct in abi.STRUCTS.items():
        body = re.search(rf"typedef struct {name} \{{(.*?)\}} {name};", TEXT, re.DOTALL)
        assert body is not None
        bare = re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL)
        assert re.findall(r"(\w+)(?:\[\w+\])?;", bare) == [field for field, *_ in struct._fields_]
    codes = re.findall(r"#define CALCULET_(\w+) (\d+)\s+/\*", TEXT.partition("/* any. The code's name")[0])
    assert {(name, int(number)) for name, number in codes} == {(c.name, c.value) for c in abi.Code if c}


def test_every_call_of_the_header_is_bound_with_as_many_arguments() -> None:
    bare = re.sub(r"/\*.*?\*/", "", TEXT, flags=re.DOTALL)
    declared = dict(re.findall(r"CALCULET_API [\w\s*]*?calculet_(\w+)\(([^)]*)\)", bare))
    counted = {name: 0 if takes == "void" else takes.count(",") + 1 for name, takes in declared.items()}
    assert counted == {name: len(call.takes) for name, call in abi.CALLS.items()}
