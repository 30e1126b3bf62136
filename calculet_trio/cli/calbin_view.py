"""What ``package show FILE.calbin`` prints, for people and for programs."""

from __future__ import annotations

import json
from typing import Any

import attrs
import click

from calculet_trio.packages.calbin import FREE_EXTENT, Calbin, CalbinSubmodel
from calculet_trio.packages.calbin_defects import found_defects


def as_json(calbin: Calbin, target: str) -> str:
    """Everything, with the known defects by name."""
    shown: dict[str, Any] = {"target": target, **attrs.asdict(calbin)}
    shown["defects"] = [{"defect": found.defect.value, "submodels": found.submodels} for found in found_defects(calbin)]
    return json.dumps(shown, indent=1)


def print_calbin(calbin: Calbin, target: str) -> None:
    """Everything, as lines."""
    rows = (
        ("for", target),
        ("calbin version", calbin.version),
        ("compiler", f"{calbin.compiler} {calbin.compiler_version}".strip() or "not said"),
        ("CalcoreRT", calbin.calcore_rt or "not said"),
        ("chips", f"{calbin.chips} ({calbin.chip_mode})"),
        ("largest batch", f"{calbin.max_batch_size}"),
        ("longest sequence", f"{calbin.max_seq_len:,} tokens"),
        ("lanes", f"{calbin.lanes}, {calbin.kv_bytes_per_token:,} bytes of KV a token"),
        ("vocabulary", f"{calbin.vocab_size:,} tokens"),
        ("parameters", ", ".join(f"{size / 1e9:.2f} GB" for size in calbin.parameter_bytes)),
    )
    click.echo(click.style(calbin.name or "calbin", bold=True))
    for name, value in rows:
        click.echo(f"  {name:<17} {value}")
    for submodel in calbin.submodels:
        _print_submodel(submodel)
    defects = found_defects(calbin)
    for found in defects:
        click.echo(f"  known defect {found.defect.value}: a submodel {found.sentence}")
    if not defects:
        click.echo("  none of the known defects")


def _print_submodel(submodel: CalbinSubmodel) -> None:
    chips = f"{len(submodel.target_chips)} target chips" if submodel.target_chips else "no target chips"
    click.echo(
        f"  submodel {submodel.name}: typed {submodel.model_type}, batch {submodel.batch}, "
        f"workload {submodel.workload}, {chips}"
    )
    for tensor in submodel.tensors:
        extents = ", ".join("any" if extent == FREE_EXTENT else str(extent) for extent in tensor.extents)
        click.echo(f"    {tensor.direction:<8} {tensor.name} {tensor.dtype} [{extents}]")
    for csr in submodel.csrs:
        click.echo(f"    register {csr.name}, {csr.entries} entries")
