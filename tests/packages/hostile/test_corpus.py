"""Hostile packages: each is refused, with its reason, by a process that has little memory and little time."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from calculet_trio.errors import PackageError
from calculet_trio.packages.build import build_package
from calculet_trio.packages.build_options import BuildOptions
from calculet_trio.packages.manifest import MANIFEST_FILE
from calculet_trio.packages.package_signature import sign_package
from calculet_trio.packages.signing import SigningKey
from tests.models import TinyModel
from tests.packages.hostile.corpus import FILES, Case, cases

ALL = tuple(cases())
ROOT = Path(__file__).parents[3]
GOOD = "a-good-one"
EACH_S = 3
"""An endless template is given two; what takes a process longer than this for each of them hangs."""


def make_good(directory: Path, key: SigningKey) -> Path:
    """A whole, signed package of a tiny model."""
    pytest.importorskip("onnxruntime", reason="needs the host extra")
    from calculet_trio.runtimes.host_golden import record_golden

    gguf = TinyModel().write(directory / "tiny.gguf")
    options = BuildOptions(batches=(1, 4), lanes=4, max_seq=64)
    build_package(gguf, directory / GOOD, name="tiny", options=options, report=lambda _step: None, prove=record_golden)
    sign_package(directory / GOOD, key)
    gguf.unlink()
    return directory / GOOD


def make_hostile(good: Path, case: Case, key: SigningKey) -> None:
    package = good.with_name(case.name)
    shutil.copytree(good, package)
    case.change(package)
    if case.signed_again:
        with suppress(PackageError):  # a manifest that cannot be read cannot be signed either
            bring_up_to_date(good, package)
            sign_package(package, key)


def bring_up_to_date(good: Path, package: Path) -> None:
    """The manifest says of each file that changed what it is now; its other lies stay."""
    manifest = json.loads((package / MANIFEST_FILE).read_bytes())
    for name in FILES:
        if not (package / name).is_file() or (package / name).is_symlink():
            continue
        content = (package / name).read_bytes()
        if content != (good / name).read_bytes():
            manifest["files"][name] = {"sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}
    (package / MANIFEST_FILE).write_text(json.dumps(manifest))


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """What became of each package."""
    place = tmp_path_factory.mktemp("hostile")
    key = SigningKey.local(place / "keys")
    (place / "packages").mkdir()
    good = make_good(place / "packages", key)
    for case in ALL:
        make_hostile(good, case, key)
    answer = subprocess.run(
        [sys.executable, "-m", "tests.packages.hostile.refusals", str(place / "packages"), str(place / "keys")],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=EACH_S * len(ALL),
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return dict(json.loads(line) for line in answer.stdout.splitlines())


def test_the_good_one_is_accepted(refusals: dict[str, str | None]) -> None:
    assert refusals[GOOD] is None
    assert len({case.name for case in ALL}) == len(ALL)


@pytest.mark.parametrize("case", ALL, ids=[case.name for case in ALL])
def test_each_is_refused_for_what_it_is(refusals: dict[str, str | None], case: Case) -> None:
    refusal = refusals[case.name]
    assert refusal is not None
    assert case.is_refused_by(refusal), refusal
    assert len(refusal) < 2000
    assert refusal.isprintable()
