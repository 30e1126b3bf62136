"""The options of commands that build a CPU's package: how its graph is made.

Source: CLI.md "Commands".
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import click

from calculet_trio.packages.build_options import GRAPH_FORMS, BuildOptions
from calculet_trio.packages.manifest_parts import WeightForm

DEFAULTS: Final = BuildOptions()


def graph_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a command that builds: it gets these options, and is called with ``options``."""

    @functools.wraps(command)
    def call(
        *args: Any, weights: str, lanes: int, max_seq: int, candidates: int, package_version: str, **values: Any
    ) -> Any:
        # Decode batches are the default ones that fit the lanes, and the lanes themselves.
        fitting = {batch for batch in DEFAULTS.batches if batch <= lanes}
        options = BuildOptions(
            package_version=package_version,
            weight_form=WeightForm(weights),
            lanes=lanes,
            max_seq=max_seq,
            candidates=candidates,
            batches=tuple(sorted(fitting | {lanes})) if lanes > 0 else DEFAULTS.batches,
        )
        return command(*args, options=options, **values)

    forms = click.Choice([form.value for form in GRAPH_FORMS])
    choices = (
        click.option(
            "--weights", type=forms, default=DEFAULTS.weight_form.value, show_default=True, help="Weight form."
        ),
        click.option("--lanes", type=int, default=DEFAULTS.lanes, show_default=True, help="Sequences held at once."),
        click.option(
            "--max-seq", type=int, default=DEFAULTS.max_seq, show_default=True, help="Longest context, in tokens."
        ),
        click.option(
            "--candidates",
            type=int,
            default=DEFAULTS.candidates,
            show_default=True,
            help="Largest logits of a row that the graph names, so that choosing need not look for them; 0: none.",
        ),
        click.option(
            "--package-version",
            default=DEFAULTS.package_version,
            show_default=True,
            help="What the package calls itself; an older one does not replace it.",
        ),
    )
    decorated: Callable[..., Any] = call
    for choice in reversed(choices):
        decorated = choice(decorated)
    return decorated
