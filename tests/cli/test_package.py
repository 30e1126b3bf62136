"""``calculet-trio package``: what it prints, what it leaves, and with which code."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from calculet_trio.cli import package as package_commands
from calculet_trio.cli import paths
from calculet_trio.cli.main import run
from calculet_trio.errors import PackageError
from calculet_trio.packages.build_options import BuildOptions, Progress
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.package_signature import sign_package
from calculet_trio.packages.signing import SigningKey
from calculet_trio.packages.store import Store
from tests.models import TinyModel
from tests.packages.fake_hub import running_hub
from tests.packages.tiny_package import write_package

RUN_S = 120


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def store(home: Path) -> Store:
    assert paths.package_store().is_relative_to(home)
    return Store(paths.package_store())


def install(store: Store, name: str) -> Path:
    with store.staging() as scratch:
        write_package(scratch / "built", name)
        sign_package(scratch / "built", SigningKey.local(paths.keys()))
        return store.install(scratch / "built")


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    found = run(["package", *arguments])
    captured = capsys.readouterr()
    assert found == code, captured.err
    return captured.err if code > 1 else captured.out


# ---- looking --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("store")
def test_an_empty_store_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert "calculet-trio package pull smollm2" in answer(capsys, "list")
    assert json.loads(answer(capsys, "list", "--json")) == []
    assert "empty" in answer(capsys, "verify")


def test_list_shows_every_package(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    install(store, "one")
    (install(store, "two") / "manifest.json").write_text("{")
    shown = answer(capsys, "list")
    assert "one" in shown
    assert "qwen3" in shown
    assert "two cannot be used: " in shown
    one, two = json.loads(answer(capsys, "list", "--json"))
    assert (one["name"], one["family"], one["lanes"], one["problem"]) == ("one", "qwen3", 4, None)
    assert "not" in two["problem"]


def test_show_says_what_a_package_is(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    directory = install(store, "one")
    shown = answer(capsys, "show", "one")
    assert str(directory) in shown
    assert "qwen3: 2 layers, width 64" in shown
    assert json.loads(answer(capsys, "show", "one", "--json"))["name"] == "one"


def test_what_is_not_there_is_said_with_what_is(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    install(store, "one")
    assert "hint: it has: one" in answer(capsys, "show", "two", code=78)


def test_verify_says_which_file_is_damaged_and_leaves_with_1(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    install(store, "one")
    directory = install(store, "two")
    signed = f"whole, signed by this machine's key {SigningKey.local(paths.keys()).public.key_id[:16]}…\n"
    assert answer(capsys, "verify") == f"one: {signed}two: {signed}"
    path = directory / "model.onnx"
    path.write_bytes(bytes(reversed(path.read_bytes())))
    assert answer(capsys, "verify", "one") == f"one: {signed}"
    assert "two: the package 'two' is damaged: model.onnx" in answer(capsys, "verify", code=1)
    verdicts = json.loads(answer(capsys, "verify", "--json", code=1))
    assert [(each["name"], each["ok"]) for each in verdicts] == [("one", True), ("two", False)]


# ---- making, with a builder that writes tiny files ------------------------------------------------------------


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "Some Model.gguf"
    path.write_bytes(b"GGUF and so on")
    return path


@pytest.fixture
def built_with(monkeypatch: pytest.MonkeyPatch) -> list[BuildOptions]:
    """The options of each build; a package of the real manifest format is written."""
    asked: list[BuildOptions] = []

    def make(
        gguf: Path,
        destination: Path,
        *,
        name: str,
        options: BuildOptions,
        report: Callable[[Progress], None],
        earn_under: object,
    ) -> None:
        report(Progress("weights", 1, 2))
        asked.append(options)
        manifest = write_package(destination, name, version=options.package_version)
        source = attrs.evolve(manifest.source, sha256=hashlib.sha256(gguf.read_bytes()).hexdigest())
        attrs.evolve(manifest, source=source, weight_form=options.weight_form).save(destination)
        sign_package(destination, SigningKey.local(paths.keys()))

    monkeypatch.setattr(package_commands, "make_package", make)
    return asked


SHAPE = ("--lanes", "4", "--max-seq", "64")
"""What the tiny package has."""


def test_pull_makes_a_package_of_a_file(
    store: Store, gguf: Path, built_with: list[BuildOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = json.loads(answer(capsys, "pull", str(gguf), *SHAPE, "--weights", "fp32", "--json"))
    assert shown == {"name": "some-model", "directory": str(store.root / "some-model"), "made": True}
    [options] = built_with
    assert (options.lanes, options.max_seq, options.weight_form.value, options.batches) == (4, 64, "fp32", (1, 4))
    store.check(store.resolve("some-model"), thorough=True)


def test_a_step_back_is_refused_before_anything_is_built(
    store: Store, gguf: Path, built_with: list[BuildOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    store.histories.bring_in("some-model", "1.2")
    assert "is version 1.1, and 1.2 was here" in answer(
        capsys, "pull", str(gguf), *SHAPE, "--package-version", "1.1", code=78
    )
    assert built_with == []
    answer(capsys, "pull", str(gguf), *SHAPE, "--package-version", "1.2")
    assert [options.package_version for options in built_with] == ["1.2"]


def test_pulling_mends_what_would_not_be_served(
    store: Store, gguf: Path, built_with: list[BuildOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "pull", str(gguf), *SHAPE)
    (store.resolve("some-model") / "model.sig").unlink()
    assert "some-model is ready" in answer(capsys, "pull", str(gguf), *SHAPE)
    assert len(built_with) == 2
    assert "was there already" in answer(capsys, "pull", str(gguf), *SHAPE)


def test_pulling_twice_is_no_error_and_no_work(
    gguf: Path, built_with: list[BuildOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "pull", str(gguf), *SHAPE)
    assert "was there already" in answer(capsys, "pull", str(gguf), *SHAPE)
    assert len(built_with) == 1


def test_another_package_of_the_same_name_needs_force(
    store: Store, gguf: Path, built_with: list[BuildOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "pull", str(gguf), *SHAPE)
    assert "--force replaces it" in answer(capsys, "pull", str(gguf), *SHAPE, "--weights", "fp32", code=78)
    gguf.write_bytes(b"GGUF and another end")
    assert "--name gives another" in answer(capsys, "pull", str(gguf), *SHAPE, code=78)
    answer(capsys, "pull", str(gguf), *SHAPE, "--force")
    answer(capsys, "pull", str(gguf), *SHAPE, "--name", "other")
    assert store.names() == ("other", "some-model")
    assert len(built_with) == 3


def test_a_build_that_fails_leaves_nothing(
    store: Store, gguf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_gguf: Path, destination: Path, **_options: Any) -> None:
        write_package(destination)
        raise PackageError("the architecture 'gemma3' is not supported")

    monkeypatch.setattr(package_commands, "make_package", fail)
    assert answer(capsys, "pull", str(gguf), code=78).splitlines()[-1].startswith("error: the architecture 'gemma3'")
    assert [path.name for path in store.root.iterdir()] == [".lock"]


@pytest.mark.usefixtures("built_with")
def test_build_writes_where_it_is_told(gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    answer(capsys, "build", str(gguf), "-o", str(output), "--name", "mine", *SHAPE)
    assert Manifest.load(output).name == "mine"
    assert "exists already" in answer(capsys, "build", str(gguf), "-o", str(output), *SHAPE, code=78)


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["pull", "smollm3"], 78, "no model source"),
        (["pull", "{gguf}", "--name", "../x"], 78, "a name is 1 to 64"),
        (["pull", "{gguf}", "--lanes", "0"], 78, "lanes"),
        (["pull", "{gguf}", "--max-seq", "1000000"], 78, "max_seq"),
        (["pull", "{gguf}", "--weights", "q2"], 2, "'q8z'"),
        (["pull", "{gguf}", "--package-version", "final"], 78, "package_version is final; allowed: as 1.2"),
        (["build", "{gguf}"], 2, "--output"),
        (["build", "nowhere.gguf", "-o", "x"], 78, "cannot be read"),
    ],
)
def test_what_is_wrong_is_named(
    gguf: Path, arguments: list[str], code: int, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [str(gguf) if argument == "{gguf}" else argument for argument in arguments]
    assert why in answer(capsys, *filled, code=code)


def test_without_the_host_extra_it_says_what_to_install(gguf: Path) -> None:
    script = (
        "import importlib.abc, sys\n"
        "class Absent(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name in ('gguf', 'onnx', 'onnxruntime'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from calculet_trio.cli.main import run\n"
        "sys.exit(run(sys.argv[1:]))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script, "package", "pull", str(gguf)],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert found.returncode == 78, found.stderr
    assert "hint: pip install 'calculet-trio[host]'" in found.stderr


WAITING_BUILD = """
import signal
import sys
from calculet_trio.cli import package
from calculet_trio.cli.main import run

def wait(gguf, destination, **options):
    destination.mkdir()
    print("building", flush=True)
    sys.stdin.read()

package.make_package = wait
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore it
sys.exit(run(["package", "pull", sys.argv[1]]))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_during_a_build_leaves_nothing(
    store: Store, gguf: Path, home: Path, number: signal.Signals, code: int
) -> None:
    environment = os.environ | {"HOME": str(home)}
    with subprocess.Popen(
        [sys.executable, "-c", WAITING_BUILD, str(gguf)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "building\n"
        assert (store.root / ".staging").exists()
        process.send_signal(number)
        _, shown = process.communicate(timeout=RUN_S)
    assert process.returncode == code
    assert "Traceback" not in shown
    assert [path.name for path in store.root.iterdir()] == [".lock"]


# ---- the whole way, with the real builder and the CPU runtime ---------------------------------------------------


def test_a_tiny_model_comes_from_a_hub_into_the_store(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = TinyModel().write(tmp_path / "tiny.gguf").read_bytes()
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        hub.add("someone/tiny/Tiny.gguf", model)
        small = ("--lanes", "2", "--max-seq", "64")
        shown = json.loads(answer(capsys, "pull", "hf:someone/tiny/Tiny.gguf", *small, "--json"))
        assert shown == {"name": "tiny", "directory": str(store.root / "tiny"), "made": True}
        assert "was there already" in answer(capsys, "pull", "hf:someone/tiny/Tiny.gguf", *small)
        assert "--force" in answer(capsys, "pull", "hf:someone/tiny/Tiny.gguf", code=78), "other lanes were asked for"
    manifest = Manifest.load(store.only())
    assert manifest.golden is not None
    assert manifest.source.sha256 == hashlib.sha256(model).hexdigest()
    assert [profile.compiled_batch for profile in manifest.shape().decode] == [1, 2]
    assert answer(capsys, "verify").startswith("tiny: whole, signed by this machine's key")


def test_an_architecture_that_cannot_be_built_is_named(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = TinyModel(family="gemma3").write(tmp_path / "gemma.gguf")
    shown = answer(capsys, "pull", str(path), code=78)
    assert "gemma3" in shown
    assert "llama, qwen3" in shown
    assert store.names() == ()
