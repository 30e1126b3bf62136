"""Whether a manifest was written of this calbin, and of no other; asked before a board takes it, and by the doctor.

Source: SPEC section 14 (A §4, §9); S §11 step 8.
"""

from __future__ import annotations

from pathlib import Path

from calculet_trio.errors import PackageError
from calculet_trio.packages.calbin import Calbin, CalbinSubmodel
from calculet_trio.packages.calbin_defects import found_defects
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.manifest_parts import Submodel


def require_agreement(manifest: Manifest, calbin: Calbin, package: Path) -> None:
    """Make sure that the calbin has what its manifest names, and no known defect that the manifest does not override.

    Raises:
        PackageError: the first thing in which they differ.
    """
    found = {submodel.name: submodel for submodel in calbin.submodels}
    for name in (manifest.roles.prefill, *manifest.roles.decode):
        if name not in found:
            raise PackageError(
                f"{package}: the calbin has no submodel of the exact name {name!r}; it has {', '.join(found)}"
            )
        _require_submodel(manifest.submodel(name), found[name], package)
    pairs = (
        ("kv.max_seq", manifest.kv.max_seq, calbin.max_seq_len),
        ("kv.lanes", manifest.kv.lanes, calbin.lanes),
    )
    for key, said, most in pairs:
        if most and said > most:
            raise PackageError(f"{package}: {key} is {said}; allowed: at most the calbin's {most}")
    vocab_size = manifest.architecture.vocab_size
    if calbin.vocab_size and calbin.vocab_size != vocab_size:
        raise PackageError(
            f"{package}: architecture.vocab_size is {vocab_size}; allowed: the calbin's, {calbin.vocab_size}"
        )
    _require_overrides(manifest, calbin, package)


def _require_submodel(said: Submodel, found: CalbinSubmodel, package: Path) -> None:
    if said.batch != found.batch:
        raise PackageError(f"{package}: submodel {said.name!r} has batch {said.batch}; the calbin has {found.batch}")
    tensors = {tensor.name for tensor in found.tensors}
    missing = [tensor.name for tensor in (*said.inputs, *said.outputs) if tensor.name not in tensors]
    missing += [csr.name for csr in said.csrs if csr.name not in {each.name for each in found.csrs}]
    if missing:
        raise PackageError(f"{package}: submodel {said.name!r} of the calbin has no {missing[0]!r}")


def _require_overrides(manifest: Manifest, calbin: Calbin, package: Path) -> None:
    overridden = manifest.binary.overridden if manifest.binary is not None else ()
    for found in found_defects(calbin):
        if found.defect not in overridden:
            raise PackageError(
                f"{package}: the calbin has the known defect {found.defect.value}, which binary.overridden does not "
                f"name: a submodel {found.sentence}",
                hint=f"build the package again with --roles FILE, and overrides: [{found.defect.value}] in it",
            )
