"""From a compiler's artefacts to a package: roles by exact name, defects by name, shards in pieces."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import attrs
import pytest
import yaml

from calculet_trio.errors import PackageError
from calculet_trio.packages.calbin import Calbin, read_calbin
from calculet_trio.packages.calbin_defects import found_defects
from calculet_trio.packages.calbin_package import Artefacts, PackageText, build_calbin_package
from calculet_trio.packages.calbin_plan import BY_EXACT_NAMES, CalbinPlan, check_plan, read_plan
from calculet_trio.packages.calbin_writer import EmulatedShape, write_calbin
from calculet_trio.packages.emulated_package import build_emulated_package
from calculet_trio.packages.hugging_face import HuggingFaceTokenizer
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.manifest_parts import Defect, MemoryBasis
from calculet_trio.packages.static_validation import validate
from tests.packages.tiny_tokenizer import write_tokenizer

SHAPE = EmulatedShape(batches=(1, 4), max_seq_len=64, vocab_size=300, kv_bytes_per_token=64)
ALL_DEFECTS = [defect.value for defect in Defect]
ROLES = {
    "schema": "calculet-roles/v1",
    "prefill": {"submodel": "prefill"},
    "decode": [{"submodel": "decode"}, {"submodel": "decode_b4", "lane_mask": "lane_valid"}],
    "overrides": ALL_DEFECTS,
}


def plan_of(tmp_path: Path, **changes: object) -> CalbinPlan:
    path = tmp_path / "roles.yaml"
    path.write_text(yaml.safe_dump({**ROLES, **changes}))
    return read_plan(path)


def renamed(calbin: Calbin, **names: str) -> Calbin:
    return attrs.evolve(
        calbin, submodels=tuple(attrs.evolve(each, name=names.get(each.name, each.name)) for each in calbin.submodels)
    )


def artefacts(tmp_path: Path, shape: EmulatedShape = SHAPE, **changes: object) -> Artefacts:
    shards = write_calbin(shape.calbin(), tmp_path)
    tokenizer = HuggingFaceTokenizer(write_tokenizer(tmp_path / "tokenizer"), vocab_size=300)
    text = PackageText(
        vocabulary=tokenizer.vocabulary(), special=tokenizer.special(), chat_template=tokenizer.chat_template()
    )
    given = {
        "shards": shards,
        "calbin": read_calbin(shards),
        "plan": plan_of(tmp_path),
        "architecture": tokenizer.architecture(),
        "text": text,
        "target": "calculet",
    }
    return Artefacts(**{**given, **changes})


def build(made_of: Artefacts, destination: Path) -> Manifest:
    return build_calbin_package(
        made_of, destination, name="board", report=lambda _progress: None, prove=lambda _directory: None
    )


# ---- the package --------------------------------------------------------------------------------------


def test_a_package_says_what_the_artefacts_say_and_contradicts_itself_nowhere(tmp_path: Path) -> None:
    manifest = build(artefacts(tmp_path), tmp_path / "package")
    assert validate(manifest).problems == ()
    assert manifest == Manifest.load(tmp_path / "package")
    assert (manifest.target, manifest.roles.prefill, manifest.roles.decode) == (
        "calculet",
        "prefill",
        ("decode", "decode_b4"),
    )
    assert manifest.binary is not None
    assert manifest.binary.shards == ("emulated.0.calbin", "emulated.1.calbin")
    assert (manifest.binary.version, manifest.binary.compiler) == ("0.1", "emulated-compiler 0.1")
    assert manifest.binary.overridden == tuple(Defect)
    assert [profile.mask for profile in manifest.profiles] == [None, "lane_valid"]
    assert (manifest.kv.lanes, manifest.kv.max_seq, manifest.kv.bytes_per_token) == (4, 64, 64)
    for name in ("emulated.0.calbin", "emulated.1.calbin"):
        assert (tmp_path / "package" / name).read_bytes() == (tmp_path / name).read_bytes()


def test_what_is_reserved_counts_and_rests_on_inference(tmp_path: Path) -> None:
    made_of = artefacts(tmp_path, plan=plan_of(tmp_path, reserved_bytes=1001, lanes=4, max_seq=32))
    memory = build(made_of, tmp_path / "package").memory
    assert memory is not None
    assert memory.basis is MemoryBasis.INFERRED
    assert [chip.reserved_bytes for chip in memory.chips] == [501, 500]
    assert sum(chip.kv_bytes for chip in memory.chips) == 4 * 32 * 64


def test_shards_are_copied_in_pieces_and_holes_stay_holes(tmp_path: Path) -> None:
    shape = attrs.evolve(SHAPE, parameter_bytes=(200_000_000, 150_000_000))
    made_of = artefacts(tmp_path, shape)
    with made_of.shards[1].open("r+b") as shard:
        shard.seek(100_000_003)
        shard.write(b"weights")
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    build(made_of, tmp_path / "package")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 100_000
    copy = tmp_path / "package" / "emulated.1.calbin"
    with copy.open("rb") as shard:
        shard.seek(100_000_000)
        assert shard.read(12) == b"\0\0\0weights\0\0"
    assert copy.stat().st_size == made_of.shards[1].stat().st_size
    assert copy.stat().st_blocks * 512 < 10_000_000


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()

    def refuse(_directory: Path) -> None:
        raise PackageError("no golden")

    with pytest.raises(PackageError, match="no golden"):
        build_calbin_package(
            artefacts(tmp_path), tmp_path / "store" / "p", name="board", report=lambda _progress: None, prove=refuse
        )
    assert list((tmp_path / "store").iterdir()) == []


def test_the_vocabulary_is_as_wide_as_the_rows_of_logits(tmp_path: Path) -> None:
    shape = attrs.evolve(SHAPE, vocab_size=301)
    with pytest.raises(PackageError, match="vocab_size is 300; the calbin has 301 rows of logits"):
        build(artefacts(tmp_path, shape), tmp_path / "package")


def test_an_emulated_package_contradicts_itself_nowhere(tmp_path: Path) -> None:
    for shape in (SHAPE, EmulatedShape(), attrs.evolve(SHAPE, defects=False)):
        directory = tmp_path / repr(hash(repr(shape)))
        manifest = build_emulated_package(
            shape, directory, name="emu", report=lambda _progress: None, prove=lambda _directory: None
        )
        assert validate(manifest).problems == ()
        assert manifest.target == "calrt-emulator"
        vocabulary = json.loads((directory / "vocabulary.json").read_bytes())
        assert len(vocabulary["tokens"]) == len(set(vocabulary["tokens"])) == shape.vocab_size


# ---- defects and roles --------------------------------------------------------------------------------


def test_each_known_defect_is_found_by_its_name() -> None:
    found = {each.defect: each.submodels for each in found_defects(SHAPE.calbin())}
    every = ("prefill", "decode", "decode_b4")
    assert found == {
        Defect.PREFILL_TYPED_DECODE: ("prefill",),
        Defect.WORKLOAD_ZERO: every,
        Defect.TARGET_CHIPS_EMPTY: every,
    }
    assert found_defects(attrs.evolve(SHAPE, defects=False).calbin()) == ()


def test_a_mistyped_prefill_is_known_by_its_inputs_and_not_by_its_name() -> None:
    calbin = renamed(SHAPE.calbin(), prefill="stage_one", decode="prefill_like")
    found = {each.defect: each.submodels for each in found_defects(calbin)}
    assert found[Defect.PREFILL_TYPED_DECODE] == ("stage_one",)


@pytest.mark.parametrize("left_out", ALL_DEFECTS)
def test_a_defect_that_the_roles_file_does_not_name_is_refused_by_name(tmp_path: Path, left_out: str) -> None:
    plan = plan_of(tmp_path, overrides=[defect for defect in ALL_DEFECTS if defect != left_out])
    with pytest.raises(PackageError, match=f"known defect {left_out}") as refused:
        check_plan(plan, SHAPE.calbin())
    assert left_out in (refused.value.hint or "")


@pytest.mark.parametrize("look_alike", ["prefill_v2", "Prefill", "my-prefill", "prefil"])
def test_a_similar_name_is_no_role(look_alike: str) -> None:
    calbin = renamed(attrs.evolve(SHAPE, defects=False).calbin(), prefill=look_alike)
    with pytest.raises(PackageError, match=f"exact name 'prefill' for the role prefill; it has {look_alike}, decode"):
        check_plan(BY_EXACT_NAMES, calbin)


def test_exact_names_are_enough_where_nothing_is_wrong() -> None:
    check_plan(BY_EXACT_NAMES, attrs.evolve(SHAPE, defects=False).calbin())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": "calculet-roles/v2"}, "this version reads 'calculet-roles/v1'"),
        ({"decode": []}, "decode has 0 entries; allowed: 1 to 16"),
        ({"overrides": ["everything"]}, "allowed: prefill_typed_decode, workload_zero, target_chips_empty"),
        ({"prefill": {"submodel": "prefill", "token": "x"}}, "prefill has unknown keys: token"),
        ({"lanes": 0}, "lanes is 0; allowed: 1 to 1024"),
        ({"prefill": {}}, "prefill.submodel is missing"),
    ],
)
def test_a_roles_file_is_refused_by_its_key(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(PackageError) as refused:
        plan_of(tmp_path, **changes)
    assert words in refused.value.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"decode": [{"submodel": "decode_b8"}]}, "exact name 'decode_b8' for the role decode"),
        ({"decode": [{"submodel": "prefill"}]}, "one submodel has two roles"),
        ({"prefill": {"submodel": "prefill", "tokens": "input[0]"}}, "'prefill' has no input 'input[0]'"),
        ({"prefill": {"submodel": "prefill", "logits": "inputs[0]"}}, "'prefill' has no output 'inputs[0]'"),
        ({"prefill": {"submodel": "prefill", "length": "seq_len"}}, "'prefill' has no register 'seq_len'"),
        ({"decode": [{"submodel": "decode", "lane_mask": "lane_valid"}]}, "'decode' has no input 'lane_valid'"),
    ],
)
def test_what_the_plan_names_must_be_in_the_calbin(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(PackageError) as refused:
        check_plan(plan_of(tmp_path, **changes), SHAPE.calbin())
    assert words in refused.value.message
