"""The options of ``package build`` for a board's artefacts, and for the emulator's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import click

from calculet_trio.cli.board import make_calbin_package, make_emulated_package, shape_of_device
from calculet_trio.packages.build_options import BuildOptions, Progress
from calculet_trio.packages.calbin_plan import BY_EXACT_NAMES, read_plan
from calculet_trio.packages.calbin_writer import BYTE_VOCABULARY, EmulatedShape

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)


@attrs.frozen(kw_only=True)
class CalbinOptions:
    """What was given of them."""

    shards: tuple[Path, ...]
    tokenizer: Path | None
    roles: Path | None
    golden: Path | None
    is_emulated: bool
    device: Path | None

    @property
    def is_asked(self) -> bool:
        """Whether the package is to be one of a calbin."""
        return bool(self.shards) or self.is_emulated

    def build(
        self,
        more_shards: tuple[Path, ...],
        output: Path,
        *,
        name: str,
        options: BuildOptions,
        report: Callable[[Progress], None],
    ) -> None:
        """Make the package; ``more_shards`` are those that follow the first one's option."""
        if self.is_emulated:
            if self.shards or more_shards or self.tokenizer or self.roles or self.golden:
                raise click.UsageError("--emulated-calbin takes no SOURCE, --calbin, --tokenizer, --roles or --golden")
            make_emulated_package(
                self._shape(options), output, name=name, package_version=options.package_version, report=report
            )
            return
        if self.tokenizer is None:
            raise click.UsageError("--calbin needs --tokenizer DIR")
        make_calbin_package(
            (*self.shards, *more_shards),
            output,
            name=name,
            tokenizer=self.tokenizer,
            plan=BY_EXACT_NAMES if self.roles is None else read_plan(self.roles),
            recording=self.golden,
            package_version=options.package_version,
            report=report,
        )

    def _shape(self, options: BuildOptions) -> EmulatedShape:
        if self.device is not None:
            return shape_of_device(self.device)
        return EmulatedShape(
            batches=options.batches,
            lanes=options.lanes,
            max_seq_len=options.max_seq,
            vocab_size=BYTE_VOCABULARY,
            kv_bytes_per_token=4,
        )


def calbin_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a command: it gets these options, and is called with ``calbin``."""

    @functools.wraps(command)
    def call(
        *args: Any,
        shards: tuple[Path, ...],
        tokenizer: Path | None,
        roles: Path | None,
        golden: Path | None,
        is_emulated: bool,
        device: Path | None,
        **values: Any,
    ) -> Any:
        calbin = CalbinOptions(
            shards=shards, tokenizer=tokenizer, roles=roles, golden=golden, is_emulated=is_emulated, device=device
        )
        return command(*args, calbin=calbin, **values)

    decorated: Callable[..., Any] = call
    for option in (
        click.option("--device", type=_FILE, help="With --emulated-calbin: a device file, its shape and times."),
        click.option("--emulated-calbin", "is_emulated", is_flag=True, help="An empty calbin, for the emulator."),
        click.option("--golden", type=_DIRECTORY, help="With --calbin: has golden.json. Else the board records it."),
        click.option("--roles", type=_FILE, help="With --calbin: which submodel does what, calculet-roles/v1."),
        click.option("--tokenizer", type=_DIRECTORY, help="With --calbin: a Hugging Face tokenizer's directory."),
        click.option("--calbin", "shards", multiple=True, type=_FILE, help="A shard of a calbin; others follow it."),
    ):
        decorated = option(decorated)
    return decorated
