"""Static validation: what a manifest says of its model, held against itself before anything touches a device.

A pure function of the manifest. `calculet_trio.packages.manifest` has made sure that every key is of its kind; here
the parts are made to agree: shapes with the network, profiles with submodels, KV bytes with layers and heads, a
batch of several lanes with the mask that keeps idle ones out of it. What comes back names every disagreement, not
only the first. Whether the model then fits is `calculet_trio.packages.capacity`'s question.

Source: SPEC section 6 ("without a mask contract a B>1 profile is not Ready"), 8 step 3, 14 (S §7.3, §11 step 3).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Final

import attrs
from packaging.version import InvalidVersion, Version

from calculet_trio.core.profiles import InactiveLanePolicy
from calculet_trio.errors import PackageError
from calculet_trio.packages.capacity import DTYPE_BYTES, CapacityPlan, kv_bytes, kv_bytes_per_token
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.manifest_parts import Profile, Submodel, Tensor

HOST_TARGET: Final = "cpu"
PROBLEMS_SHOWN_MAX: Final = 4
TENSOR_BYTES_MAX: Final = 2**46
RANK_MAX: Final = 8
NAME_CHARACTERS_MAX: Final = 256
FILES_MAX: Final = 4096
TENSORS_MAX: Final = 16_384
"""Of one submodel: two for each layer's KV, and room for what a compiler splits."""
TEXT_BYTES_MAX: Final = {"text.vocabulary": 32 << 20, "text.chat_template": 1 << 20, "golden.file": 4 << 20}
"""These are read into memory whole, by processes that have other things to do."""
PICKLES: Final = frozenset({".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".joblib", ".dill", ".npy", ".npz", ".mar"})
"""Kinds of file that are, or may hold, programs; none of them is needed, and nothing here would read one."""


@attrs.frozen
class ValidationReport:
    """What was found.

    Args:
        name: the package.
        problems: why it must not be loaded; each begins with the key it is about.
        notes: what is worth knowing, and stops nothing.
        plan: what it takes of a device.
    """

    name: str
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    plan: CapacityPlan

    @property
    def ok(self) -> bool:
        return not self.problems

    def require(self) -> None:
        """Raises PackageError with the first problems, if there are any."""
        if self.problems:
            more = len(self.problems) - PROBLEMS_SHOWN_MAX
            shown = "; ".join(self.problems[:PROBLEMS_SHOWN_MAX]) + (f"; and {more} more" if more > 0 else "")
            raise PackageError(
                f"the package {self.name!r} contradicts itself: {shown}",
                hint="build or pull it again, or ask for another",
            )


def validate(manifest: Manifest) -> ValidationReport:
    """Everything that can be known of a package from its manifest alone."""
    return ValidationReport(
        name=manifest.name,
        problems=tuple(problem for rule in RULES for problem in rule(manifest)),
        notes=tuple(_notes(manifest)),
        plan=CapacityPlan.of(manifest),
    )


def _the_version_can_be_ordered(manifest: Manifest) -> Iterator[str]:
    try:
        Version(manifest.package_version)
    except InvalidVersion:
        yield f"package_version is {manifest.package_version!r}; allowed: a version as 1.2 or 2.0rc1, older or newer"


def _numbers_are_numbers(manifest: Manifest) -> Iterator[str]:
    numbers = {
        "architecture.rope_base": manifest.architecture.rope_base,
        "architecture.norm_epsilon": manifest.architecture.norm_epsilon,
    }
    if manifest.golden is not None:
        numbers["golden.logit_tolerance"] = manifest.golden.logit_tolerance
        numbers["golden.decisive_gap"] = manifest.golden.decisive_gap
    for key, value in numbers.items():
        if not (math.isfinite(value) and value >= 0):
            yield f"{key} is {value}; allowed: finite, 0 or more"


def _every_submodel_has_one_role(manifest: Manifest) -> Iterator[str]:
    for name, times in Counter((manifest.roles.prefill, *manifest.roles.decode)).items():
        if times > 1:
            yield f"roles: {name!r} stands {times} times; allowed: one role for each submodel"


def _tensors_fit_the_network(manifest: Manifest) -> Iterator[str]:
    for index, submodel in enumerate(manifest.submodels):
        for side, tensors in (("inputs", submodel.inputs), ("outputs", submodel.outputs)):
            where = f"submodels[{index}].{side}"
            if len(tensors) > TENSORS_MAX:
                yield f"{where} has {len(tensors)} entries; allowed: {TENSORS_MAX}"
                continue
            yield from _doubled(where, [tensor.name for tensor in tensors])
            for number, tensor in enumerate(tensors):
                problem = _tensor_problem(manifest, submodel, tensor)
                if problem is not None:
                    yield f"{where}[{number}] ({tensor.name[:NAME_CHARACTERS_MAX]}) {problem}"
        yield from _doubled(f"submodels[{index}].csrs", [csr.name for csr in submodel.csrs])
        logits = [tensor.name for tensor in submodel.outputs if "vocabulary" in tensor.layout.split()]
        if len(logits) != 1:
            yield f"submodels[{index}].outputs: {len(logits)} have an axis `vocabulary`; allowed: one, the logits"


def _tensor_problem(manifest: Manifest, submodel: Submodel, tensor: Tensor) -> str | None:
    """The first thing that is wrong with one tensor."""
    numbers = manifest.architecture
    extents = {
        "lane": submodel.batch,
        "kv_head": numbers.kv_heads,
        "head_dim": numbers.head_dim,
        "vocabulary": numbers.vocab_size,
    }
    axes = tensor.layout.split()
    if not 1 <= len(tensor.name) <= NAME_CHARACTERS_MAX:
        return f"has a name of {len(tensor.name)} characters; allowed: 1 to {NAME_CHARACTERS_MAX}"
    if tensor.dtype not in DTYPE_BYTES:
        return f"has dtype {tensor.dtype!r}; allowed: {', '.join(DTYPE_BYTES)}"
    if len(axes) != len(tensor.shape) or len(axes) > RANK_MAX:
        return f"has {len(tensor.shape)} extents and {len(axes)} axes; allowed: as many, at most {RANK_MAX}"
    for axis, extent in zip(axes, tensor.shape, strict=True):
        if isinstance(extent, int) and extent != extents.get(axis, extent):
            return f"has {extent} along {axis}; allowed: {extents[axis]}"
        if isinstance(extent, int) and axis == "position" and extent > manifest.kv.max_seq:
            return f"has {extent} positions; allowed: at most kv.max_seq, {manifest.kv.max_seq}"
        if isinstance(extent, int) and axis == "candidate" and extent > numbers.vocab_size:
            return f"has {extent} candidates; allowed: at most architecture.vocab_size, {numbers.vocab_size}"
    fixed = [extent for extent in tensor.shape if isinstance(extent, int)]
    if any(extent < 1 for extent in fixed) or math.prod(fixed) * DTYPE_BYTES[tensor.dtype] > TENSOR_BYTES_MAX:
        return f"has the shape {list(tensor.shape)}; allowed: extents of 1 or more, {TENSOR_BYTES_MAX} bytes in all"
    if tensor.layout == manifest.kv.layout and tensor.dtype != manifest.kv.dtype:
        return f"has dtype {tensor.dtype!r}; allowed: kv.dtype, {manifest.kv.dtype!r}, for a tensor of KV"
    return None


def _profiles_are_served_by_their_submodels(manifest: Manifest) -> Iterator[str]:
    for (batch, max_seq), times in Counter((each.compiled_batch, each.max_seq) for each in manifest.profiles).items():
        if times > 1:
            yield f"profiles: {times} are of batch {batch} and max_seq {max_seq}; nothing tells which is meant"
    for index, profile in enumerate(manifest.profiles):
        submodel = manifest.submodel(profile.submodel)
        for tensor in (*submodel.inputs, *submodel.outputs):
            held = dict(zip(tensor.layout.split(), tensor.shape, strict=False)).get("position")
            if tensor.layout == manifest.kv.layout and isinstance(held, int) and held < profile.max_seq:
                yield f"profiles[{index}].max_seq is {profile.max_seq}; {tensor.name} holds {held} positions"
                break
        problem = _mask_problem(profile, submodel)
        if problem is not None:
            yield f"profiles[{index}].mask {problem}"


def _mask_problem(profile: Profile, submodel: Submodel) -> str | None:
    """What is wrong with the contract for lanes without a sequence."""
    if profile.compiled_batch == 1:
        return None
    if profile.inactive_lane is InactiveLanePolicy.NONE:
        return f"is {profile.mask!r}, but inactive_lane is none; allowed: null" if profile.mask is not None else None
    if profile.mask is None:
        return (
            f"is missing; with inactive_lane {profile.inactive_lane.value} it names the input or register that says "
            f"which of {profile.compiled_batch} lanes count"
        )
    carriers = {tensor.name: tensor.shape for tensor in submodel.inputs if "lane" in tensor.layout.split()}
    carriers |= {csr.name: (csr.entries,) for csr in submodel.csrs}
    if profile.compiled_batch not in carriers.get(profile.mask, ()):
        return (
            f"is {profile.mask!r}; allowed: an input of {submodel.name!r} with an axis `lane`, or a register, of "
            f"{profile.compiled_batch} entries"
        )
    return None


def _one_profile_can_be_used(manifest: Manifest) -> Iterator[str]:
    if not any(profile.is_usable for profile in manifest.shape().decode):
        yield "profiles: none can be used; allowed: one of batch 1, or one with a mask contract (inactive_lane, mask)"


def _kv_is_what_the_network_needs(manifest: Manifest) -> Iterator[str]:
    kv, numbers = manifest.kv, manifest.architecture
    computed = kv_bytes_per_token(manifest)
    if computed is None:
        yield f"kv.dtype is {kv.dtype!r}; allowed: {', '.join(DTYPE_BYTES)}"
    elif kv.bytes_per_token != computed:
        yield (
            f"kv.bytes_per_token is {kv.bytes_per_token}; {numbers.layers} layers of {numbers.kv_heads} heads of "
            f"{numbers.head_dim}, K and V, in {kv.dtype} take {computed}"
        )
    if kv.max_seq > numbers.context_tokens:
        yield f"kv.max_seq is {kv.max_seq}; allowed: at most architecture.context_tokens, {numbers.context_tokens}"


def _memory_adds_up(manifest: Manifest) -> Iterator[str]:
    if manifest.memory is None:
        if manifest.target != HOST_TARGET:
            yield f"memory is missing; a package for {manifest.target} says what it takes of each chip"
        return
    declared = sum(chip.kv_bytes for chip in manifest.memory.chips)
    needed = kv_bytes(manifest)
    if declared != needed:
        yield (
            f"memory.chips: their kv_bytes are {declared} together; {manifest.kv.lanes} lanes of "
            f"{manifest.kv.max_seq} tokens at {manifest.kv.bytes_per_token} bytes take {needed}"
        )
    if not any(chip.parameters_bytes for chip in manifest.memory.chips):
        yield "memory.chips: none has parameters_bytes; a model has some"


def _files_are_harmless(manifest: Manifest) -> Iterator[str]:
    if len(manifest.files) > FILES_MAX:
        yield f"files has {len(manifest.files)} entries; allowed: {FILES_MAX}"
    for path in manifest.files:
        if PurePosixPath(path).suffix.lower() in PICKLES:
            yield f"files: {path} is of a kind that may be a program (pickle); no package needs one"
    golden = manifest.golden.file if manifest.golden is not None else None
    named = (manifest.text.vocabulary, manifest.text.chat_template, golden)
    for (key, bytes_max), name in zip(TEXT_BYTES_MAX.items(), named, strict=True):
        if name is not None and manifest.files[name].size_bytes > bytes_max:
            yield f"{key}: {name} has {manifest.files[name].size_bytes} bytes; allowed: {bytes_max}"


RULES: Final[tuple[Callable[[Manifest], Iterator[str]], ...]] = (
    _the_version_can_be_ordered,
    _numbers_are_numbers,
    _every_submodel_has_one_role,
    _tensors_fit_the_network,
    _profiles_are_served_by_their_submodels,
    _one_profile_can_be_used,
    _kv_is_what_the_network_needs,
    _memory_adds_up,
    _files_are_harmless,
)
"""All of them are asked, in this order."""


def _notes(manifest: Manifest) -> Iterator[str]:
    if manifest.golden is None:
        yield "golden is null: the package will not be served before it is recorded"
    for profile in manifest.shape().decode:
        if not profile.is_usable:
            yield f"{profile.submodel} (B={profile.compiled_batch}) has no mask contract and will not be used"
    used = {manifest.roles.prefill, *manifest.roles.decode}
    for submodel in manifest.submodels:
        if submodel.name not in used:
            yield f"{submodel.name} has no role"


def _doubled(where: str, names: list[str]) -> Iterator[str]:
    for name, times in Counter(names).items():
        if times > 1:
            yield f"{where}: {name[:NAME_CHARACTERS_MAX]!r} stands {times} times"
