"""Building a package: whole or not at all, the same bytes twice, and with a word on how far it is."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="needs the host extra")

from calculet_trio.core.profiles import InactiveLanePolicy
from calculet_trio.errors import ConfigurationRefused, PackageError, Unavailable
from calculet_trio.packages import build
from calculet_trio.packages.build import build_package
from calculet_trio.packages.build_options import BuildOptions, Progress
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.manifest_parts import WeightForm
from calculet_trio.packages.static_validation import validate
from calculet_trio.runtimes.host_golden import record_golden
from tests.models import TEMPLATE, TinyModel, vocabulary

OPTIONS = BuildOptions(batches=(4, 1), lanes=4, max_seq=48)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel().write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def construct(
    gguf: Path,
    destination: Path,
    *,
    options: BuildOptions = OPTIONS,
    report: Callable[[Progress], None] = lambda _: None,
    prove: Callable[[Path], object] | None = None,
) -> Manifest:
    return build_package(gguf, destination, name="tiny", options=options, report=report, prove=prove)


def test_a_package_says_what_it_is(gguf: Path, tmp_path: Path) -> None:
    manifest = construct(gguf, tmp_path / "tiny")
    assert Manifest.load(tmp_path / "tiny") == manifest
    assert (manifest.name, manifest.target, manifest.weight_form) == ("tiny", "cpu", WeightForm.Q8Z)
    assert manifest.source.sha256 == hashlib.sha256(gguf.read_bytes()).hexdigest()
    assert manifest.source.file == "tiny.gguf"
    assert (manifest.roles.prefill, manifest.roles.decode) == ("prefill", ("decode_b1", "decode_b4"))
    assert all(profile.inactive_lane is InactiveLanePolicy.VALID_MASK for profile in manifest.profiles)
    assert (manifest.kv.lanes, manifest.kv.max_seq) == (4, 48)
    assert manifest.kv.bytes_per_token == 2 * 2 * 2 * 32 * 4
    by_name = {tensor.name: tensor for tensor in manifest.submodel("decode_b4").inputs}
    assert (by_name["ids"].dtype, by_name["ids"].shape) == ("i64", (4, 1))
    assert by_name["past_k.1"].shape == (4, 2, 48, 32)
    assert validate(manifest).problems == ()


def test_every_file_is_listed_with_its_hash_and_size(gguf: Path, tmp_path: Path) -> None:
    manifest = construct(gguf, tmp_path / "tiny", prove=record_golden)
    assert manifest.golden is not None, "what proves the package is in it, and is listed too"
    there = {path.name: path for path in (tmp_path / "tiny").iterdir() if path.name != "manifest.json"}
    assert set(there) == set(manifest.files)
    for name, record in manifest.files.items():
        data = there[name].read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (record.sha256, record.size_bytes)


def test_the_text_side_s_files_are_the_source_s(gguf: Path, tmp_path: Path) -> None:
    construct(gguf, tmp_path / "tiny")
    found = json.loads((tmp_path / "tiny" / "vocabulary.json").read_text(encoding="utf-8"))
    assert set(found) == {"model", "pre", "tokens", "token_types", "merges"}
    assert found["tokens"] == vocabulary()
    assert (tmp_path / "tiny" / "chat_template.jinja").read_text(encoding="utf-8") == TEMPLATE


@pytest.mark.parametrize("form", [WeightForm.Q8Z, WeightForm.Q4X, WeightForm.FP32])
def test_the_same_source_gives_the_same_bytes(tmp_path: Path, form: WeightForm) -> None:
    gguf = TinyModel(quantization="Q4_1").write(tmp_path / "tiny.gguf")
    options = BuildOptions(weight_form=form, batches=(1,), lanes=2, max_seq=16)
    for name in ("one", "two"):
        construct(gguf, tmp_path / name, options=options)
    for path in sorted((tmp_path / "one").iterdir()):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_a_lane_is_no_longer_than_what_the_model_was_trained_for(gguf: Path, tmp_path: Path) -> None:
    options = BuildOptions(batches=(1,), lanes=1, max_seq=100_000)
    assert construct(gguf, tmp_path / "tiny", options=options).kv.max_seq == TinyModel().context_tokens


def test_progress_comes_in_steps_that_end_full(gguf: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    construct(gguf, tmp_path / "tiny", report=seen.append, prove=record_golden)
    steps = list(dict.fromkeys(progress.step for progress in seen))
    assert steps == ["source", "weights", "files", "golden"]
    for step in steps:
        last = [progress for progress in seen if progress.step == step][-1]
        assert last.done == last.total > 0


# ---- whole or not at all --------------------------------------------------------------------------------


class Stopped(Exception):
    """Somebody pressed control-C."""


@pytest.mark.parametrize("step", ["source", "weights", "files", "golden"])
def test_a_build_that_is_stopped_leaves_nothing(gguf: Path, tmp_path: Path, step: str) -> None:
    def report(progress: Progress) -> None:
        if progress.step == step:
            raise Stopped

    with pytest.raises(Stopped):
        construct(gguf, tmp_path / "tiny", report=report, prove=record_golden)
    assert not list(tmp_path.iterdir())


def test_a_source_that_turns_out_wrong_leaves_nothing(tmp_path: Path) -> None:
    gguf = TinyModel(family="gemma3").write(tmp_path / "tiny.gguf")
    (tmp_path / "store").mkdir()
    with pytest.raises(PackageError, match="'gemma3' model"):
        construct(gguf, tmp_path / "store" / "tiny")
    assert not list((tmp_path / "store").iterdir())


def test_what_exists_is_not_overwritten(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    with pytest.raises(PackageError, match="exists already"):
        construct(gguf, tmp_path / "tiny")


def test_a_full_disk_is_noticed_before_anything_is_written(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(build.shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    with pytest.raises(Unavailable, match=r"has 1 MiB free; the package may need \d+ MiB"):
        construct(gguf, tmp_path / "tiny")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", [WeightForm.FP32, WeightForm.Q8Z, WeightForm.Q4X])
def test_the_room_asked_for_is_enough(tmp_path: Path, form: WeightForm) -> None:
    gguf = TinyModel(width=256, feed_forward=1024, layers=8, quantization="Q4_1").write(tmp_path / "tiny.gguf")
    manifest = construct(gguf, tmp_path / "tiny", options=BuildOptions(weight_form=form, max_seq=16))
    weights_bytes = manifest.files["weights.bin"].size_bytes
    elements = sum(tensor.n_elements for tensor in _tensors(gguf))
    assert weights_bytes <= elements * build.BYTES_PER_ELEMENT[form] + build.HEADROOM_BYTES


def _tensors(gguf: Path) -> list:
    from gguf import GGUFReader

    return GGUFReader(gguf).tensors


# ---- options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"lanes": 0}, "lanes is 0; allowed: 1 to 64"),
        ({"lanes": 65}, "lanes is 65; allowed: 1 to 64"),
        ({"max_seq": 1}, "max_seq is 1; allowed: 2 to"),
        ({"candidates": -1}, "candidates is -1; allowed: 0 to 4096"),
        ({"batches": ()}, "batches is (); allowed:"),
        ({"batches": (1, 17)}, "batches is (1, 17); allowed: different numbers from 1 to lanes (16)"),
        ({"batches": (1, 1)}, "batches is (1, 1); allowed: different"),
        ({"batches": (4, 8)}, "batches is (4, 8); allowed: 1 or lanes (16) among them"),
        ({"weight_form": WeightForm.DEVICE}, "weight_form is device; allowed: fp32, q8z or q4x"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict, sentence: str) -> None:
    with pytest.raises(ConfigurationRefused) as refusal:
        BuildOptions(**options)
    assert sentence in str(refusal.value)
