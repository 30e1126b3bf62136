"""Static validation: each contradiction of a manifest is named by its key, and all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculet_trio.core.profiles import InactiveLanePolicy
from calculet_trio.errors import PackageError
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.manifest_parts import (
    ChipMemory,
    Csr,
    FileRecord,
    Memory,
    MemoryBasis,
    Profile,
    Roles,
    Submodel,
    Tensor,
)
from calculet_trio.packages.static_validation import PICKLES, TEXT_BYTES_MAX, validate
from tests.packages.test_manifest import SHA, example

Change = Callable[[Manifest], Manifest]


def of(part: str, **changes: Any) -> Change:
    """A change of some keys of one part of the manifest."""
    return lambda manifest: attrs.evolve(manifest, **{part: attrs.evolve(getattr(manifest, part), **changes)})


def whole(**changes: Any) -> Change:
    return lambda manifest: attrs.evolve(manifest, **changes)


def submodel(index: int, **changes: Any) -> Change:
    def change(manifest: Manifest) -> Manifest:
        found = list(manifest.submodels)
        found[index] = attrs.evolve(found[index], **changes)
        return attrs.evolve(manifest, submodels=tuple(found))

    return change


def profile(index: int, **changes: Any) -> Change:
    def change(manifest: Manifest) -> Manifest:
        found = list(manifest.profiles)
        found[index] = attrs.evolve(found[index], **changes)
        return attrs.evolve(manifest, profiles=tuple(found))

    return change


def file(name: str, size_bytes: int) -> Change:
    record = FileRecord(sha256=SHA, size_bytes=size_bytes)
    return lambda manifest: attrs.evolve(manifest, files=manifest.files | {name: record})


def inputs(*tensors: Tensor) -> Change:
    return submodel(1, inputs=tensors)


def tensor(name: str = "x", dtype: str = "f32", shape: tuple[int | str, ...] = (1,), layout: str = "any") -> Tensor:
    return Tensor(name=name, dtype=dtype, shape=shape, layout=layout)


KV_LAYOUT = "lane kv_head position head_dim"
IDS, LOGITS = example().submodels[0].inputs[0], example().submodels[0].outputs[0]


def chips(*kv_bytes: int, parameters_bytes: int = 1) -> Change:
    found = tuple(
        ChipMemory(parameters_bytes=parameters_bytes, kv_bytes=each, buffers_bytes=0, reserved_bytes=0)
        for each in kv_bytes
    )
    return whole(memory=Memory(chips=found, basis=MemoryBasis.DECLARED))


CONTRADICTIONS: list[tuple[str, Change, str]] = [
    ("version", whole(package_version="final"), "package_version is 'final'; allowed: a version"),
    ("infinite", of("architecture", rope_base=float("inf")), "architecture.rope_base is inf"),
    ("no number", of("golden", logit_tolerance=float("nan")), "golden.logit_tolerance is nan"),
    ("negative", of("golden", decisive_gap=-1.0), "golden.decisive_gap is -1.0"),
    (
        "prefill decodes",
        whole(roles=Roles(prefill="decode_b1", decode=("decode_b4", "decode_b1"))),
        "roles: 'decode_b1' stands 2 times",
    ),
    ("input twice", inputs(tensor(), tensor()), "submodels[1].inputs: 'x' stands 2 times"),
    (
        "register twice",
        submodel(1, csrs=(Csr(name="c", entries=1, meaning=""),) * 2),
        "submodels[1].csrs: 'c' stands 2 times",
    ),
    ("no name", inputs(tensor(name="")), "submodels[1].inputs[0] () has a name of 0 characters"),
    ("dtype", inputs(tensor(dtype="q3")), "(x) has dtype 'q3'; allowed: bool"),
    ("rank", inputs(tensor(shape=(1, 2))), "(x) has 2 extents and 1 axes"),
    ("deep", inputs(tensor(shape=(1,) * 9, layout="a " * 9)), "allowed: as many, at most 8"),
    ("negative extent", inputs(tensor(shape=(-1,))), "has the shape [-1]"),
    ("huge", inputs(tensor(shape=(2**40, 2**40), layout="a b")), "allowed: extents of 1 or more"),
    ("lanes", inputs(tensor(shape=(4,), layout="lane")), "has 4 along lane; allowed: 1"),
    ("heads", inputs(tensor(shape=(3,), layout="kv_head")), "has 3 along kv_head; allowed: 2"),
    ("vocabulary", submodel(0, outputs=(attrs.evolve(LOGITS, shape=(1, 299)),)), "has 299 along vocabulary; allowed"),
    ("no logits", submodel(0, outputs=()), "submodels[0].outputs: 0 have an axis `vocabulary`"),
    ("two logits", submodel(0, outputs=(LOGITS, attrs.evolve(LOGITS, name="b"))), "2 have an axis `vocabulary`"),
    ("positions", inputs(tensor(shape=(65,), layout="position")), "has 65 positions; allowed: at most kv.max_seq, 64"),
    ("kv dtype", inputs(tensor(dtype="f16", shape=(1, 2, 64, 16), layout=KV_LAYOUT)), "allowed: kv.dtype, 'f32'"),
    (
        "short kv",
        inputs(tensor(shape=(1, 2, 16, 16), layout=KV_LAYOUT)),
        "profiles[1].max_seq is 64; x holds 16 positions",
    ),
    ("alike", profile(0, submodel="decode_b1", compiled_batch=1, max_seq=64), "profiles: 2 are of batch 1"),
    ("no mask", profile(0, mask=None), "profiles[0].mask is missing; with inactive_lane valid_mask it names"),
    ("foreign mask", profile(0, mask="other"), "profiles[0].mask is 'other'; allowed: an input of 'decode_b4'"),
    ("mask of one", profile(0, mask="ids"), "profiles[0].mask is 'ids'"),
    ("mask for none", profile(0, inactive_lane=InactiveLanePolicy.NONE), "but inactive_lane is none"),
    ("kv bytes", of("kv", bytes_per_token=511), "kv.bytes_per_token is 511; 2 layers of 2 heads of 16"),
    ("kv unknown", of("kv", dtype="q4"), "kv.dtype is 'q4'; allowed: bool"),
    ("context", of("architecture", context_tokens=63), "kv.max_seq is 64; allowed: at most architecture.context"),
    ("memory missing", whole(target="calculet"), "memory is missing; a package for calculet says"),
    ("kv of chips", chips(65_536, 65_535), "their kv_bytes are 131071 together; 4 lanes of 64 tokens at 512 bytes"),
    ("no parameters", chips(131_072, parameters_bytes=0), "none has parameters_bytes"),
    *((f"pickle {kind}", file(f"a{kind.upper()}", 1), "of a kind that may be a program") for kind in sorted(PICKLES)),
    ("vocabulary size", file("vocabulary.json", TEXT_BYTES_MAX["text.vocabulary"] + 1), "text.vocabulary: vocab"),
    ("template size", file("chat_template.jinja", TEXT_BYTES_MAX["text.chat_template"] + 1), "text.chat_template: "),
    ("golden size", file("golden.json", TEXT_BYTES_MAX["golden.file"] + 1), "golden.file: golden.json has"),
]


def test_what_does_not_contradict_itself_is_let_through() -> None:
    report = validate(example())
    assert report.problems == ()
    assert report.notes == ()
    report.require()


@pytest.mark.parametrize(
    ("change", "problem"), [each[1:] for each in CONTRADICTIONS], ids=[each[0] for each in CONTRADICTIONS]
)
def test_each_contradiction_is_named(change: Change, problem: str) -> None:
    report = validate(change(example()))
    assert any(problem in found for found in report.problems), report.problems
    with pytest.raises(PackageError, match="contradicts itself"):
        report.require()


def test_all_are_named_and_few_are_shown() -> None:
    changed = example()
    for change in (whole(package_version="x"), *(each[1] for each in CONTRADICTIONS if each[0].startswith("pickle"))):
        changed = change(changed)
    report = validate(changed)
    assert len(report.problems) == 1 + len(PICKLES)
    with pytest.raises(PackageError, match=rf"and {len(PICKLES) - 3} more") as caught:
        report.require()
    assert len(caught.value.message) < 1000


def test_a_register_may_be_the_mask() -> None:
    csr = Csr(name="lane_valid", entries=4, meaning="1 where a lane counts")
    change = submodel(2, inputs=(IDS,), csrs=(csr,))
    assert validate(profile(0, mask="lane_valid")(change(example()))).ok
    short = submodel(2, inputs=(IDS,), csrs=(attrs.evolve(csr, entries=3),))
    assert not validate(profile(0, mask="lane_valid")(short(example()))).ok


def test_a_batch_without_a_contract_is_noted_and_not_refused() -> None:
    """The B=1 profile is served; the other one is never Ready (S §7.3)."""
    report = validate(profile(0, inactive_lane=InactiveLanePolicy.NONE, mask=None)(example()))
    assert report.ok
    assert report.notes == ("decode_b4 (B=4) has no mask contract and will not be used",)


def test_without_any_usable_profile_it_is_refused() -> None:
    only = Profile(submodel="decode_b4", compiled_batch=4, max_seq=32, inactive_lane=InactiveLanePolicy.NONE)
    changed = attrs.evolve(example(), profiles=(only,), roles=Roles(prefill="prefill", decode=("decode_b4",)))
    assert any("none can be used" in problem for problem in validate(changed).problems)


def test_what_is_unfinished_or_unused_is_noted() -> None:
    extra = Submodel(name="embedding", graph="model.onnx", batch=1, inputs=(IDS,), outputs=(LOGITS,))
    changed = attrs.evolve(example(), golden=None, submodels=(*example().submodels, extra))
    report = validate(changed)
    assert report.ok
    assert report.notes == (
        "golden is null: the package will not be served before it is recorded",
        "embedding has no role",
    )


extents = st.one_of(st.integers(), st.text(max_size=3))
tensors = st.builds(
    Tensor,
    name=st.text(max_size=300),
    dtype=st.sampled_from(["f32", "q3", "", "i64"]),
    shape=st.lists(extents, max_size=10).map(tuple),
    layout=st.lists(st.sampled_from(["lane", "position", "vocabulary", "x"]), max_size=10).map(" ".join),
)


@given(st.lists(tensors, max_size=3), st.lists(tensors, max_size=2))
def test_no_tensor_breaks_it(some: list[Tensor], others: list[Tensor]) -> None:
    report = validate(submodel(2, inputs=tuple(some), outputs=tuple(others))(example()))
    assert all(len(problem) < 1000 for problem in report.problems)
