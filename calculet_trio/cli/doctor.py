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
from calculet_trio.cli.board import LOCKS, library_places
from calculet_trio.cli.doctor_view import print_report
from calculet_trio.cli.exit_codes import ExitCode
from calculet_trio.cli.state_files import histories, state_directory
from calculet_trio.cli.timeouts import timeout_order
from calculet_trio.cli.trusted_store import evidence_store, trust_of
from calculet_trio.core.profiles import ModelShape
from calculet_trio.doctor.account import Account
from calculet_trio.doctor.examination import examine
from calculet_trio.doctor.host_tree import HostTree
from calculet_trio.doctor.native_library import LOCK, NativeLibrary
from calculet_trio.doctor.registry import UnknownCheck, chosen
from calculet_trio.doctor.report_json import as_object
from calculet_trio.doctor.surroundings import Shown, Surroundings
from calculet_trio.errors import PackageError
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.store import Store
from calculet_trio.settings.configuration import Configuration
from calculet_trio.settings.configuration import examine as read_configuration
from calculet_trio.settings.configuration import load as defaults
from calculet_trio.settings.service import RuntimeKind


@click.command()
@click.option("--only", multiple=True, metavar="NAME|GROUP", help="Only this check or group; may be given again.")
@click.option("--strict", is_flag=True, help="Let a ! fail, too.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    show_default="$XDG_CONFIG_HOME/calculet-trio/service.yaml, if there is one",
    help="The service's configuration: it is checked, and says where the service is.",
)
@click.option("--host", help="Where the service listens. Default: as configured.")
@click.option("--port", type=click.IntRange(1, 65_535), help="Its port. Default: as configured.")
@click.option("--user", metavar="NAME", help="The account that serves. Default: yours.")
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default="/",
    help="Look at the host's files (/sys, /proc, /dev, /etc …) below this directory: a tree recorded on another host.",
)
def doctor(
    only: tuple[str, ...],
    strict: bool,
    as_json: bool,
    config: Path | None,
    host: str | None,
    port: int | None,
    user: str | None,
    root: Path,
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
    config = config or paths.configuration_there()
    surroundings = _around(
        tree,
        account=Account.own(tree) if user is None else Account.named(user, tree),
        config=config,
        host=host,
        port=port,
    )
    report = trio.run(partial(examine, checks, surroundings))
    if as_json:
        click.echo(json.dumps(as_object(report, strict=strict), indent=2))
    else:
        print_report(report, strict=strict)
    return ExitCode.DONE if report.passes(strict=strict) else ExitCode.FAIL


def _around(
    tree: HostTree, *, account: Account, config: Path | None, host: str | None, port: int | None
) -> Surroundings:
    """What the configuration says, as far as it can be read; the check `settings` says what is wrong with it."""
    configuration = read_configuration(config)[0] or defaults(None)
    service = configuration.service
    packages = configuration.path(service.store) if service.store else paths.package_store()
    state = state_directory(configuration)
    return Surroundings(
        tree=tree,
        account=account,
        store=Store(packages),
        settings_file=config,
        directories={"packages": packages, "downloads": paths.downloads(), "state": state},
        environment=os.environ,
        host=service.listen.host if host is None else host,
        port=service.listen.port if port is None else port,
        asks_for_keys=bool(service.tenants),
        timeouts=timeout_order(service.timeouts, _shape_served(configuration, Store(packages))),
        trust=partial(trust_of, configuration),
        histories=histories(state),
        shown=partial(_shown, configuration),
        native_library=_native_library(configuration, tree),
        needs_board=service.device.runtime is RuntimeKind.CALRT,
        packages_elsewhere=_packages_elsewhere(configuration),
    )


def _native_library(configuration: Configuration, tree: HostTree) -> NativeLibrary:
    """Where a daemon would look; nowhere, for a host that was recorded."""
    device = configuration.service.device
    named = None if device.library is None else configuration.path(device.library)
    found = library_places(named) if tree.is_live else ()
    return NativeLibrary(found, lock=LOCK if device.path is None else LOCKS / f"{Path(device.path).name}.lock")


def _packages_elsewhere(configuration: Configuration) -> tuple[Path, ...]:
    """Packages that are named by their directory; the other runtimes' models are scripts and device files."""
    if configuration.service.device.runtime not in (RuntimeKind.HOST, RuntimeKind.CALRT):
        return ()
    named = (served.model.package for served in configuration.served)
    return tuple(configuration.path(package) for package in named if package is not None and "/" in package)


def _shown(configuration: Configuration) -> Shown:
    """What the records say; raises `calculet_trio.errors.ConfigurationRefused` where a key cannot be read."""
    found = evidence_store(configuration).found()
    combinations = dict.fromkeys(record.combination for record in found.records)
    return Shown(tuple(found.evidence(combination) for combination in combinations), found.unreadable)


def _shape_served(configuration: Configuration, store: Store) -> ModelShape | None:
    """The shape of the first package that would be served; None where that cannot be said without a runtime."""
    named = configuration.served[0].model.package if configuration.served else None
    if configuration.service.device.runtime is not RuntimeKind.HOST:
        return None
    try:
        package = store.only() if named is None else configuration.path(named) if "/" in named else store.resolve(named)
        return Manifest.load(package).shape()
    except PackageError:  # the checks of packages say what is wrong with it
        return None
