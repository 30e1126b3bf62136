"""``calculet-trio doctor``: is everything well with host, packages, board and service?

Source: CLI.md "Commands".
"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import click
import trio

from calculet_trio.cli import paths
from calculet_trio.cli.doctor_view import print_report
from calculet_trio.cli.exit_codes import ExitCode
from calculet_trio.doctor.account import Account
from calculet_trio.doctor.examination import examine
from calculet_trio.doctor.host_tree import HostTree
from calculet_trio.doctor.registry import UnknownCheck, chosen
from calculet_trio.doctor.report_json import as_object
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.packages.store import Store


@click.command()
@click.option("--only", multiple=True, metavar="NAME|GROUP", help="Only this check or group; may be given again.")
@click.option("--strict", is_flag=True, help="Let a ! fail, too.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where the service listens.")
@click.option("--port", type=click.IntRange(1, 65_535), default=8080, show_default=True, help="Its port.")
@click.option("--user", metavar="NAME", help="The account that serves. Default: yours.")
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default="/",
    help="Look at the host's files (/sys, /proc, /dev, /etc …) below this directory: a tree recorded on another host.",
)
def doctor(
    only: tuple[str, ...], strict: bool, as_json: bool, host: str, port: int, user: str | None, root: Path
) -> int:
    """Examine host, Python, packages, configuration, board and service.

    Each check says ✓, ! or ✗, what it saw, why that matters and what to do. Leaves with 1 if there is a ✗.

    \b
    Example:
      calculet-trio doctor
      calculet-trio doctor --only board --json
    """
    try:
        checks = chosen(only)
    except UnknownCheck as error:
        raise click.BadParameter(str(error), param_hint="--only") from error
    tree = HostTree(root)
    surroundings = Surroundings(
        tree=tree,
        account=Account.own(tree) if user is None else Account.named(user, tree),
        store=Store(paths.package_store()),
        directories={"packages": paths.package_store(), "downloads": paths.downloads()},
        environment=os.environ,
        host=host,
        port=port,
    )
    report = trio.run(partial(examine, checks, surroundings))
    if as_json:
        click.echo(json.dumps(as_object(report, strict=strict), indent=2))
    else:
        print_report(report, strict=strict)
    return ExitCode.DONE if report.passes(strict=strict) else ExitCode.FAIL
