"""``calculet-trio conformance``: cases, milestones and the evidence of them; each command is in a file of its own.

Source: CLI.md "Commands"; SPEC section 12, 13.
"""

from __future__ import annotations

import click

from calculet_trio.cli.conformance_evidence import evidence
from calculet_trio.cli.conformance_gate import gate
from calculet_trio.cli.conformance_run import run


@click.group()
def conformance() -> None:
    """Try what a package on a runtime can do, and keep the evidence."""


conformance.add_command(run)
conformance.add_command(gate)
conformance.add_command(evidence)
