"""The manifest: what it refuses, with the path of the key, its value and what is allowed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from calculet_trio.core.profiles import InactiveLanePolicy
from calculet_trio.errors import PackageError
from calculet_trio.packages.manifest import MANIFEST_FILE, SCHEMA, Manifest
from calculet_trio.packages.manifest_parts import (
    Architecture,
    CoResidency,
    Csr,
    FailureIsolation,
    FileRecord,
    Golden,
    Kv,
    KvKind,
    Profile,
    Roles,
    Source,
    Special,
    Submodel,
    Tensor,
    Text,
    WeightForm,
)

SHA = "0" * 64


def example() -> Manifest:
    """A manifest with something in every key."""
    ids = Tensor(name="ids", dtype="i64", shape=(1, "tokens"), layout="sequence token")
    logits = Tensor(name="logits", dtype="f32", shape=(1, 300), layout="sequence vocabulary")
    count = Tensor(name="count", dtype="i32", shape=(4,), layout="lane")
    csr = Csr(name="past_kv_cur_seq_len", entries=1, meaning="committed tokens of the sequence")
    return Manifest(
        schema=SCHEMA,
        name="tiny",
        package_version="1.0",
        target="cpu",
        source=Source(kind="gguf", file="tiny.gguf", sha256=SHA, size_bytes=12),
        architecture=Architecture(
            family="qwen3",
            layers=2,
            width=64,
            feed_forward=96,
            query_heads=4,
            kv_heads=2,
            head_dim=16,
            vocab_size=300,
            context_tokens=512,
            rope_base=1e6,
            norm_epsilon=1e-6,
        ),
        weight_form=WeightForm.Q8Z,
        roles=Roles(prefill="prefill", decode=("decode_b4", "decode_b1")),
        submodels=(
            Submodel(name="prefill", graph="model.onnx", batch=1, inputs=(ids,), outputs=(logits,), csrs=(csr,)),
            Submodel(name="decode_b1", graph="model.onnx", batch=1, inputs=(ids,), outputs=(logits,)),
            Submodel(name="decode_b4", graph="model.onnx", batch=4, inputs=(ids, count), outputs=(logits,)),
        ),
        profiles=(
            Profile(
                submodel="decode_b4",
                compiled_batch=4,
                max_seq=32,
                inactive_lane=InactiveLanePolicy.VALID_MASK,
                mask="count",
            ),
            Profile(submodel="decode_b1", compiled_batch=1, max_seq=64, inactive_lane=InactiveLanePolicy.NONE),
        ),
        kv=Kv(
            kind=KvKind.CONTIGUOUS_LANES,
            layout="lane kv_head position head_dim",
            dtype="f32",
            lanes=4,
            max_seq=64,
            bytes_per_token=512,
        ),
        special=Special(bos=1, eos=2, end_of_turn=(2, 5), add_bos=True),
        text=Text(vocabulary="vocabulary.json", chat_template="chat_template.jinja"),
        failure_isolation=FailureIsolation.BATCH,
        co_residency=CoResidency.SHARED,
        golden=Golden(file="golden.json", logit_tolerance=2.0, decisive_gap=0.5),
        files={
            name: FileRecord(sha256=SHA, size_bytes=1)
            for name in ("model.onnx", "vocabulary.json", "chat_template.jinja", "golden.json")
        },
    )


def test_a_manifest_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    example().save(tmp_path)
    first = (tmp_path / MANIFEST_FILE).read_bytes()
    assert Manifest.load(tmp_path) == example()
    example().save(tmp_path)
    assert (tmp_path / MANIFEST_FILE).read_bytes() == first
    assert [file.name for file in tmp_path.iterdir()] == [MANIFEST_FILE]


def test_the_shape_lists_profiles_smallest_batch_first() -> None:
    shape = example().shape()
    assert [(p.submodel, p.compiled_batch, p.max_seq) for p in shape.decode] == [
        ("decode_b1", 1, 64),
        ("decode_b4", 4, 32),
    ]
    assert (shape.prefill.submodel, shape.prefill.max_seq) == ("prefill", 64)
    assert (shape.lanes, shape.max_seq, shape.vocab_size) == (4, 64, 300)


Damage = Callable[[dict[str, Any]], object]

DAMAGES: list[tuple[Damage, str]] = [
    (lambda m: m.update(surprise=1), "has unknown keys: surprise"),
    (lambda m: m["kv"].update(tile=16), "kv has unknown keys: tile"),
    (lambda m: m.pop("roles"), "roles is missing"),
    (lambda m: m["profiles"][1].pop("max_seq"), "profiles[1].max_seq is missing"),
    (lambda m: m["profiles"][1].update(max_seq=True), "profiles[1].max_seq is true; allowed: an integer"),
    (lambda m: m["kv"].update(lanes=2.0), "kv.lanes is 2.0; allowed: an integer"),
    (lambda m: m["kv"].update(lanes=0), "kv.lanes is 0; allowed: 1 to 1024"),
    (lambda m: m["kv"].update(lanes="4"), 'kv.lanes is "4"; allowed: an integer'),
    (lambda m: m["architecture"].update(layers=10**400), "architecture.layers is 1000"),
    (lambda m: m["architecture"].update(rope_base="x"), 'architecture.rope_base is "x"; allowed: a number'),
    (lambda m: m.update(weight_form="int2"), 'weight_form is "int2"; allowed: fp32, q8z, q4x, device'),
    (lambda m: m.update(name="../up"), 'name is "../up"; allowed: 1 to 64 of'),
    (lambda m: m["special"].update(add_bos=1), "special.add_bos is 1; allowed: true or false"),
    (lambda m: m["special"].update(bos="1"), "special.bos is"),
    (lambda m: m.update(profiles={}), "profiles"),
    (lambda m: m.update(profiles=5), "profiles"),
    (lambda m: m.update(files=[]), "files"),
    (lambda m: m["files"].update({"../etc": {"sha256": SHA, "size_bytes": 1}}), "files['../etc'] is"),
    (lambda m: m["files"]["golden.json"].update(sha256="abc"), "files['golden.json'].sha256 is \"abc\"; allowed: 64"),
    (lambda m: m.update(schema="calculet-model/v9"), "schema is 'calculet-model/v9'; this version reads"),
    (lambda m: m["roles"].update(prefill="decode_b4"), "roles.prefill is 'decode_b4' of batch 4; allowed: batch 1"),
    (lambda m: m["roles"].update(prefill="fill"), "roles.prefill is 'fill'; allowed: a submodel"),
    (lambda m: m["roles"].update(decode=[]), "roles.decode is empty"),
    (lambda m: m["profiles"][0].update(compiled_batch=2), "profiles[0].compiled_batch is 2; its submodel"),
    (lambda m: m["profiles"].pop(), "profiles: there must be exactly one for each"),
    (lambda m: m["profiles"][0].update(max_seq=65), "profiles[0].max_seq is 65; allowed: at most kv.max_seq, 64"),
    (lambda m: m["kv"].update(lanes=3), "profiles[0].compiled_batch is 4; allowed: at most kv.lanes, 3"),
    (lambda m: m["special"].update(eos=300), "special.eos is 300; allowed: below architecture.vocab_size, 300"),
    (lambda m: m["special"].update(end_of_turn=[2, 999]), "special.end_of_turn[1] is 999"),
    (lambda m: m["special"].update(bos=None), "special.add_bos is true, but special.bos is null"),
    (lambda m: m["files"].pop("model.onnx"), "submodels[0].graph is 'model.onnx'; allowed: a file listed"),
    (lambda m: m["files"].pop("golden.json"), "golden.file is 'golden.json'; allowed: a file listed"),
    (lambda m: m["submodels"].append(m["submodels"][0]), "submodels: names stand twice"),
    (lambda m: m.update({f"k\x1b{n}": 1 for n in range(20)}), "has unknown keys: k\\x1b0, k\\x1b1, k\\x1b10"),
    (
        lambda m: m["submodels"][0].update(name="\x1b[2J"),
        'submodels[0].name is "\\u001b[2J"; allowed: 1 to 256 printable',
    ),
    (lambda m: m["submodels"][0].update(name="a\u202eb"), 'submodels[0].name is "a\\u202eb"; allowed: 1 to 256 print'),
    (lambda m: m["submodels"][0].update(name="\ud800"), 'submodels[0].name is "\\ud800"; allowed: 1 to 256 printable'),
    (lambda m: m["submodels"][0]["inputs"][0].update(name="x" * 257), "submodels[0].inputs[0].name is"),
    (lambda m: m["submodels"][0]["inputs"][0].update(shape=[2**63, 1]), "submodels[0].inputs[0].shape[0] is 92233"),
    (
        lambda m: m["submodels"][0]["inputs"][0].update(shape=["a\n", 1]),
        'shape[0] is "a\\n"; allowed: an integer of 64',
    ),
    (lambda m: m.update(submodels=m["submodels"] * 100), "submodels is [{"),
    (lambda m: m["roles"].update(decode=["x"] * 257), "roles.decode is ["),
    (lambda m: m["roles"].update(prefill="x" * 100_000), "roles.prefill is"),
    (lambda m: m["special"].update(end_of_turn=[2] * 1025), "special.end_of_turn is [2, 2"),
    (lambda m: m["files"].update({"x" * 100_000: 1}), "files['xxxx"),
]


@pytest.mark.parametrize(("damage", "sentence"), DAMAGES, ids=[sentence[:40] for _, sentence in DAMAGES])
def test_a_damaged_manifest_is_refused_by_the_path_of_its_key(damage: Damage, sentence: str, tmp_path: Path) -> None:
    example().save(tmp_path)
    path = tmp_path / MANIFEST_FILE
    value = json.loads(path.read_text())
    damage(value)
    path.write_text(json.dumps(value))
    with pytest.raises(PackageError) as refusal:
        Manifest.load(tmp_path)
    assert sentence in str(refusal.value)
    assert str(path) in str(refusal.value)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 1000


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "not valid JSON"),
        (b"[]", "manifest.json: the whole"),
        (b"null", "manifest.json: the whole"),
        (b"\xff{}", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"name": NaN}', "NaN is not JSON"),
        (b'{"name": 1, "name": 2}', 'the key "name" stands twice'),
        (b" " * (4 * 1024 * 1024 + 1), "larger than"),
    ],
)
def test_what_is_no_manifest_is_refused(data: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / MANIFEST_FILE).write_bytes(data)
    with pytest.raises(PackageError, match="manifest") as refusal:
        Manifest.load(tmp_path)
    assert sentence in str(refusal.value)


def test_a_directory_without_a_manifest_is_no_package(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="not a package"):
        Manifest.load(tmp_path)


def test_a_manifest_that_would_not_load_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="name is"):
        attrs.evolve(example(), name="No Spaces").save(tmp_path)
    assert not list(tmp_path.iterdir())
