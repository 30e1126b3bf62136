"""Checks of the group Python, on environments that are said to hold this or that."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from calculet_trio.doctor.finding import Mark
from calculet_trio.doctor.host_tree import HostTree
from calculet_trio.doctor.installation import Installation
from calculet_trio.doctor.requirements import fits
from calculet_trio.doctor.surroundings import Surroundings
from tests.doctor.recorded import FakeInstallation, assert_found, copy_of, found_by, surroundings


@pytest.fixture
def around(tmp_path: Path) -> Surroundings:
    return surroundings(HostTree(tmp_path), tmp_path)


def having(around: Surroundings, **versions: str | None) -> Surroundings:
    """The environment with other versions; None takes a library out."""
    present = FakeInstallation().present | versions
    there = {name: version for name, version in present.items() if version is not None}
    return attrs.evolve(around, installation=FakeInstallation(present=there))


@pytest.mark.parametrize(("version", "mark"), [("3.11.0", Mark.OK), ("3.13.0rc1", Mark.OK), ("3.10.14", Mark.FAILURE)])
def test_the_interpreter_is_within_its_bounds(around: Surroundings, version: str, mark: Mark) -> None:
    installation = FakeInstallation(python=version)
    assert_found("interpreter", attrs.evolve(around, installation=installation), mark, version)


@pytest.mark.parametrize(
    ("version", "mark"),
    [
        ("0.35.0", Mark.OK),
        ("0.35.1", Mark.OK),
        ("0.36.0", Mark.FAILURE),
        ("0.34.9", Mark.FAILURE),
        (None, Mark.FAILURE),
    ],
)
def test_a_library_is_within_its_bounds(around: Surroundings, version: str | None, mark: Mark) -> None:
    assert_found("libraries", having(around, trio=version), mark)


def test_a_wrong_library_is_named_with_what_is_needed(around: Surroundings) -> None:
    finding = found_by("libraries", having(around, trio="0.36.0", numpy=None))
    assert finding.seen == "trio 0.36.0 (needed: <0.36,>=0.35), numpy missing (needed: >=2.0)"
    assert finding.todo == "`python -m pip install 'trio<0.36,>=0.35' 'numpy>=2.0'`"


def test_the_cpu_runtime_missing_is_a_failure_unless_there_is_a_board(tmp_path: Path) -> None:
    without = surroundings(copy_of("no_board", tmp_path), tmp_path)
    with_board = surroundings(copy_of("board", tmp_path), tmp_path)
    assert_found("cpu-runtime", without, Mark.OK, "onnxruntime 1.32.0")
    assert_found("cpu-runtime", having(without, onnxruntime=None), Mark.FAILURE, "onnxruntime missing")
    assert_found("cpu-runtime", having(with_board, onnxruntime=None), Mark.WARNING, "onnxruntime missing")


def test_another_cpu_runtime_is_a_failure(around: Surroundings) -> None:
    assert_found("cpu-runtime", having(around, onnxruntime="1.33.0"), Mark.FAILURE, "onnxruntime 1.33.0")


def test_requirements_of_other_extras_and_platforms_are_left_out() -> None:
    installation = FakeInstallation(
        wanted=(
            "trio>=0.35",
            'winlib>=1; sys_platform == "win32"',
            'onnx>=1.18; extra == "host"',
            'other>=1; extra == "host" and sys_platform == "win32"',
            'pytest>=8; extra == "check"',
            'always>=1; python_version >= "3"',
        )
    )
    assert [fit.requirement.name for fit in fits(installation)] == ["trio", "always"]
    assert [fit.requirement.name for fit in fits(installation, extra="host")] == ["onnx"]


def test_this_environment_is_read_and_fits() -> None:
    installation = Installation()
    assert installation.python_bounds().startswith(">=3.")
    found = fits(installation)
    assert {"trio", "hypercorn", "cattrs"} <= {fit.requirement.name for fit in found}
    assert [fit.described for fit in found if not fit.is_met] == []
    assert {fit.requirement.name for fit in fits(installation, extra="host")} == {"onnxruntime", "onnx", "gguf"}
    assert installation.version_of("no-such-distribution-here") is None
