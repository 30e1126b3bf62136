"""What the ``package`` commands show of a package, to people and to programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import click
from rich import box
from rich.console import Console
from rich.table import Table

from calculet_trio.packages.build_options import BuildOptions
from calculet_trio.packages.capacity import CapacityPlan
from calculet_trio.packages.digests import sha256_of
from calculet_trio.packages.manifest import MANIFEST_FILE, Manifest
from calculet_trio.packages.package_signature import package_signer
from calculet_trio.packages.signing import SignatureRefused
from calculet_trio.packages.store import PULL_HINT, StoredPackage
from calculet_trio.packages.store_collection import Collection
from calculet_trio.packages.trust import Trust

PIPED_COLUMNS: Final = 200


def is_made_of(manifest: Manifest, gguf: Path, options: BuildOptions) -> bool:
    """Whether building ``gguf`` with ``options`` would make this package again."""
    numbers = manifest.architecture
    max_seq, candidates = min(options.max_seq, numbers.context_tokens), min(options.candidates, numbers.vocab_size)
    asked = (options.weight_form, options.lanes, max_seq, candidates)
    named = manifest.submodel(manifest.roles.prefill).candidates
    return (manifest.weight_form, manifest.kv.lanes, manifest.kv.max_seq, named) == asked and (
        manifest.source.sha256 == sha256_of(gguf)
    )


def summary(stored: StoredPackage) -> dict[str, Any]:
    """One package of a list, for programs."""
    manifest = stored.manifest
    shown: dict[str, Any] = {"name": stored.name, "directory": str(stored.directory), "problem": stored.problem}
    if manifest is not None:
        shown |= {
            "package_version": manifest.package_version,
            "target": manifest.target,
            "family": manifest.architecture.family,
            "weight_form": manifest.weight_form.value,
            "max_seq_tokens": manifest.kv.max_seq,
            "lanes": manifest.kv.lanes,
            "size_bytes": size_bytes(manifest),
        }
    return shown


def size_bytes(manifest: Manifest) -> int:
    """What the package takes on the disk, by its manifest."""
    return sum(record.size_bytes for record in manifest.files.values())


def as_json(directory: Path) -> str:
    """The manifest itself, which `Manifest.load` has just found right."""
    return (directory / MANIFEST_FILE).read_text(encoding="utf-8").rstrip("\n")


def print_table(root: Path, found: Sequence[StoredPackage]) -> None:
    """The packages of a store, for people."""
    if not found:
        click.echo(f"the store {root} is empty; {PULL_HINT}")
        return
    table = Table("name", "version", "family", "weights", "context", "lanes", "size", "for", box=box.SIMPLE)
    for stored in found:
        if (manifest := stored.manifest) is not None:
            table.add_row(
                stored.name,
                manifest.package_version,
                manifest.architecture.family,
                manifest.weight_form.value,
                f"{manifest.kv.max_seq:,}",
                str(manifest.kv.lanes),
                f"{size_bytes(manifest) / 1e6:,.0f} MB",
                manifest.target,
            )
    console = Console()
    # Where no terminal says how wide it is, nothing is cut: the reader is a program or a file.
    console.print(table, width=None if console.is_terminal else PIPED_COLUMNS, crop=console.is_terminal)
    for stored in found:
        if stored.problem is not None:
            click.echo(f"{stored.name} cannot be used: {stored.problem}")


def signed_by(directory: Path, manifest: Manifest, trust: Trust) -> str:
    """Whose signature the package bears, or why it counts for nothing."""
    try:
        return trust.describe(package_signer(directory, manifest, trust))
    except SignatureRefused as error:
        return f"nobody who is trusted: {error.message}"


def verdict_sentence(verdict: Mapping[str, Any]) -> str:
    """A package that may be served."""
    return "; ".join([f"whole, signed by {verdict['signer']}", *verdict["notes"]])


def collection(found: Collection) -> dict[str, Any]:
    """What a garbage collection came to, for programs."""
    return {
        "kept": [{"name": each.name, "digest": each.digest, "reason": each.reason.name.lower()} for each in found.kept],
        "removed": [attrs.asdict(each) for each in found.removed],
        "freed_bytes": found.freed_bytes,
    }


def print_collection(found: Collection, *, dry_run: bool) -> None:
    """The same, for people."""
    for kept in found.kept:
        click.echo(f"kept    {kept.name} {kept.digest[:16]}… ({kept.reason.value})")
    for removed in found.removed:
        verb = "would go" if dry_run else "removed"
        click.echo(f"{verb} {removed.name} {removed.digest[:16]}… ({removed.size_bytes / 1e6:,.0f} MB)")
    click.echo(f"{found.freed_bytes / 1e6:,.0f} MB {'would be ' if dry_run else ''}freed")


def print_package(directory: Path, manifest: Manifest, trust: Trust) -> None:
    """One package, for people."""
    network = manifest.architecture
    experts = f", {network.experts_used} of {network.experts} experts" if network.experts else ""
    rows = (
        ("directory", str(directory)),
        ("digest", sha256_of(directory / MANIFEST_FILE)),
        ("version", manifest.package_version),
        ("for", manifest.target),
        ("network", f"{network.family}: {network.layers} layers, width {network.width}{experts}"),
        ("vocabulary", f"{network.vocab_size:,} tokens"),
        ("context", f"{manifest.kv.max_seq:,} tokens (trained for {network.context_tokens:,})"),
        ("lanes", f"{manifest.kv.lanes}, {manifest.kv.bytes_per_token:,} bytes of KV a token"),
        ("decode batches", ", ".join(str(profile.compiled_batch) for profile in manifest.shape().decode)),
        (
            "weights",
            f"{manifest.weight_form.value}, {size_bytes(manifest) / 1e6:,.0f} MB in {len(manifest.files)} files",
        ),
        ("takes", CapacityPlan.of(manifest).sentence),
        ("built from", f"{manifest.source.file} (sha256 {manifest.source.sha256})"),
        ("signed by", signed_by(directory, manifest, trust)),
        ("golden", "recorded" if manifest.golden else "missing: this package will not be served"),
    )
    click.echo(click.style(manifest.name, bold=True))
    for name, value in rows:
        click.echo(f"  {name:<15} {value}")
