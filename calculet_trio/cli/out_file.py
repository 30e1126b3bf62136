"""Files that a command writes where it was told to: a report, a trace.

Work that takes minutes must not end in a directory that is not there, so that is found out before it begins.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from calculet_trio.errors import Unavailable


class OutFile(click.Path):
    """An option's value: a file that may be there, in a directory that must."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not path.parent.is_dir():
            self.fail(
                f"{click.format_filename(path)} cannot be written: there is no directory {path.parent}", param, ctx
            )
        return path


def write_out(path: Path, text: str) -> None:
    """Write a file that `OutFile` has named.

    Raises:
        calculet_trio.errors.Unavailable: the disk is full, say, or it may not be written to.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror}") from error
