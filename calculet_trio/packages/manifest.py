"""What a package says of itself: ``manifest.json``, schema ``calculet-model/v1``.

A package is a directory. Everything a runtime or the text side needs to know of its model stands in the
manifest and nowhere else: exact submodels by role, tensors, batch profiles, KV layout, special tokens, and
the sha256 and size of every other file. `Manifest.load` believes nothing it has not checked; whether the
files still match their hashes is `store`'s question.

Source: SPEC section 2, 14 (S §2 ``BatchProfile``, §20; A §9).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import attrs

from calculet_trio.core.profiles import BatchProfile, ModelShape, PrefillProfile
from calculet_trio.errors import PackageError
from calculet_trio.packages import manifest_json
from calculet_trio.packages.manifest_json import Entries
from calculet_trio.packages.manifest_parts import (
    SUBMODELS_MAX,
    Architecture,
    CoResidency,
    DeviceBinary,
    FailureIsolation,
    FilePath,
    FileRecord,
    Golden,
    Kv,
    Line,
    Memory,
    Name,
    Profile,
    Roles,
    Source,
    Special,
    Submodel,
    Target,
    Text,
    Version,
    WeightForm,
)

SCHEMA: Final = "calculet-model/v1"
MANIFEST_FILE: Final = "manifest.json"
SIGNATURE_FILE: Final = "model.sig"
"""Lies beside it, and cannot be named in it: what it signs is the manifest."""


@attrs.frozen(kw_only=True)
class Manifest:
    """The whole of ``manifest.json``.

    Args:
        target: the kind of device that the graphs are for, as `DeviceInfo.kind` says it (``cpu``, ``calculet``).
        binary: a board's calbin; None for devices that have none.
        golden: None until it has been recorded; a package without it must not be served.
        files: every other file of the package, by its path with ``/``; its signature is no part of it.
        memory: what the model takes of a device; None for the CPU, where files and KV say it.
    """

    schema: Line
    name: Name
    package_version: Version
    target: Target
    source: Source
    architecture: Architecture
    weight_form: WeightForm
    roles: Roles
    submodels: Annotated[tuple[Submodel, ...], Entries(0, SUBMODELS_MAX)]
    profiles: Annotated[tuple[Profile, ...], Entries(0, SUBMODELS_MAX)]
    kv: Kv
    special: Special
    text: Text
    failure_isolation: FailureIsolation
    co_residency: CoResidency
    golden: Golden | None
    files: dict[FilePath, FileRecord]
    memory: Memory | None = None
    binary: DeviceBinary | None = None

    @classmethod
    def load(cls, directory: Path) -> Manifest:
        """Read and check ``directory/manifest.json``.

        Raises:
            calculet_trio.errors.PackageError: missing, not JSON, a key that is unknown, absent, of a wrong
                type or out of range (its path, its value and what is allowed), or parts that contradict.
        """
        path = directory / MANIFEST_FILE
        manifest = manifest_json.structure(manifest_json.read(path), cls, path)
        manifest._check(path)
        return manifest

    def save(self, directory: Path) -> None:
        """Write ``directory/manifest.json``, whole or not at all; the same manifest gives the same bytes.

        Raises:
            calculet_trio.errors.PackageError: the manifest would not load again.
        """
        path = directory / MANIFEST_FILE
        value = manifest_json.unstructure(self)
        manifest_json.structure(value, Manifest, path)._check(path)
        manifest_json.write(value, path)

    def submodel(self, name: str) -> Submodel:
        """The submodel of that exact name, which `load` has made sure of."""
        return next(submodel for submodel in self.submodels if submodel.name == name)

    def shape(self) -> ModelShape:
        """What the scheduler may know, smallest batch first."""
        profiles = sorted(self.profiles, key=lambda profile: profile.compiled_batch)
        return ModelShape(
            prefill=PrefillProfile(self.roles.prefill, self.kv.max_seq),
            decode=tuple(
                BatchProfile(profile.submodel, profile.compiled_batch, profile.max_seq, profile.inactive_lane)
                for profile in profiles
            ),
            lanes=self.kv.lanes,
            max_seq=self.kv.max_seq,
            vocab_size=self.architecture.vocab_size,
        )

    # ---- what the parts must agree on -----------------------------------------------------------

    def _check(self, path: Path) -> None:
        problem = next(self._contradictions(), None)
        if problem is not None:
            raise PackageError(f"{path}: {problem}", hint=manifest_json.REBUILD_HINT)

    def _contradictions(self) -> Iterator[str]:
        if self.schema != SCHEMA:
            yield f"schema is {self.schema!r}; this version reads {SCHEMA!r}"
        yield from self._submodel_contradictions()
        yield from self._profile_contradictions()
        yield from self._token_contradictions()
        yield from self._file_contradictions()

    def _submodel_contradictions(self) -> Iterator[str]:
        batches = {submodel.name: submodel.batch for submodel in self.submodels}
        known = manifest_json.few(batches)
        if len(batches) != len(self.submodels):
            yield f"submodels: names stand twice; there are {known}"
        if self.roles.prefill not in batches:
            yield f"roles.prefill is {self.roles.prefill!r}; allowed: a submodel ({known})"
        elif batches[self.roles.prefill] != 1:
            yield f"roles.prefill is {self.roles.prefill!r} of batch {batches[self.roles.prefill]}; allowed: batch 1"
        if not self.roles.decode:
            yield "roles.decode is empty; allowed: one submodel or more"
        for index, name in enumerate(self.roles.decode):
            if name not in batches:
                yield f"roles.decode[{index}] is {name!r}; allowed: a submodel ({known})"

    def _profile_contradictions(self) -> Iterator[str]:
        batches = {submodel.name: submodel.batch for submodel in self.submodels}
        if sorted(profile.submodel for profile in self.profiles) != sorted(self.roles.decode):
            yield "profiles: there must be exactly one for each submodel of roles.decode"
        for index, profile in enumerate(self.profiles):
            where = f"profiles[{index}]"
            if profile.compiled_batch != batches.get(profile.submodel):
                yield (
                    f"{where}.compiled_batch is {profile.compiled_batch}; "
                    f"its submodel {profile.submodel!r} has batch {batches.get(profile.submodel)}"
                )
            if profile.compiled_batch > self.kv.lanes:
                yield f"{where}.compiled_batch is {profile.compiled_batch}; allowed: at most kv.lanes, {self.kv.lanes}"
            if profile.max_seq > self.kv.max_seq:
                yield f"{where}.max_seq is {profile.max_seq}; allowed: at most kv.max_seq, {self.kv.max_seq}"
        if all(profile.compiled_batch not in (1, self.kv.lanes) for profile in self.profiles):
            yield f"profiles: one must have compiled_batch 1 or kv.lanes ({self.kv.lanes}), so that any lane can decode"

    def _token_contradictions(self) -> Iterator[str]:
        vocab_size = self.architecture.vocab_size
        named = {"special.bos": self.special.bos, "special.eos": self.special.eos}
        named |= {f"special.end_of_turn[{i}]": token for i, token in enumerate(self.special.end_of_turn)}
        for key, token in named.items():
            if token is not None and token >= vocab_size:
                yield f"{key} is {token}; allowed: below architecture.vocab_size, {vocab_size}"
        if self.special.add_bos and self.special.bos is None:
            yield "special.add_bos is true, but special.bos is null"

    def _file_contradictions(self) -> Iterator[str]:
        named: dict[str, str | None] = {f"submodels[{i}].graph": s.graph for i, s in enumerate(self.submodels)}
        named |= {"text.vocabulary": self.text.vocabulary, "text.chat_template": self.text.chat_template}
        shards = self.binary.shards if self.binary is not None else ()
        named |= {f"binary.shards[{i}]": shard for i, shard in enumerate(shards)}
        named |= {"golden.file": self.golden.file if self.golden is not None else None}
        for key, file in named.items():
            if file is not None and file not in self.files:
                yield f"{key} is {file!r}; allowed: a file listed under files"
        for name in (MANIFEST_FILE, SIGNATURE_FILE):
            if name in self.files:
                yield f"files lists {name!r}, whose hash cannot be known while the manifest is written"
