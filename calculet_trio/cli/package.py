"""``calculet-trio package``: the store on this machine; no daemon is needed, and none is disturbed."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click

from calculet_trio.cli import calbin_view, package_view, paths
from calculet_trio.cli.board import describe_calbin
from calculet_trio.cli.calbin_options import CalbinOptions, calbin_options
from calculet_trio.cli.exit_codes import ExitCode
from calculet_trio.cli.graph_options import graph_options
from calculet_trio.cli.making import make_package
from calculet_trio.cli.progress import ProgressDisplay
from calculet_trio.cli.trusted_store import own_configuration, store_of, trust_of
from calculet_trio.errors import PackageError
from calculet_trio.packages.acceptance import accept
from calculet_trio.packages.build_options import BuildOptions, Progress
from calculet_trio.packages.digests import OnBytes
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.package_signature import package_signer, sign_package
from calculet_trio.packages.pull import ModelSource
from calculet_trio.packages.signing import SignatureRefused, SigningKey
from calculet_trio.packages.static_validation import validate
from calculet_trio.packages.store import Store, name_from_file, require_name, taken
from calculet_trio.packages.store_collection import collect
from calculet_trio.packages.store_import import take_in
from calculet_trio.packages.trust import Trust

TERMINATED: Final = 128 + signal.SIGTERM

EARN_OPTION = click.option(
    "--earn/--no-earn",
    "earns",
    default=True,
    show_default=True,
    help="Show, once, what the package may do on this machine (batches); else its first start does.",
)
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@click.group()
def package() -> None:
    """Get, build, list, show, sign, verify and remove model packages."""
    # A package half made is removed on the way out; SIGTERM's default would skip that.
    signal.signal(signal.SIGTERM, _leave)


def _leave(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)


@package.command()
@click.argument("source")
@click.option("--name", help="What the package is called; else it follows from the source.")
@click.option("--force", is_flag=True, help="Replace a package of that name.")
@EARN_OPTION
@graph_options
@JSON_OPTION
def pull(source: str, name: str | None, force: bool, earns: bool, as_json: bool, options: BuildOptions) -> None:
    """Fetch SOURCE, build a package of it and put it into the store.

    \b
    SOURCE is one of
      smollm2                 a small model for a first try (98 MB)
      PATH/FILE.gguf          a model on this machine
      hf:OWNER/REPO/FILE.gguf a model of a Hugging Face hub

    \b
    Example:
      calculet-trio package pull smollm2
    """
    model = ModelSource.parse(source)
    name = require_name(name) if name else model.name
    configuration = own_configuration()
    store, trust = store_of(configuration), trust_of(configuration)
    with ProgressDisplay() as display:
        gguf = model.fetch(paths.downloads(), display.report)
        same = name in store.names() and not force and _is_same(store, name, gguf, options)
        made = not (same and _is_acceptable(store, name, trust))
        if made:
            store.histories.require_no_step_back(name, options.package_version)  # before minutes of building
            with store.staging() as scratch:
                make_package(
                    gguf,
                    scratch / name,
                    name=name,
                    options=options,
                    report=display.report,
                    earn_under=configuration if earns else None,
                )
                store.install(scratch / name, replace=force or same)
    _announce(name, store.root / name, made=made, as_json=as_json)


def _is_same(store: Store, name: str, gguf: Path, options: BuildOptions) -> bool:
    """True, for pulling twice is no error; raises where another package has the name."""
    if not package_view.is_made_of(Manifest.load(store.resolve(name)), gguf, options):
        raise taken(name)
    return True


def _is_acceptable(store: Store, name: str, trust: Trust) -> bool:
    """Whether it would be served; one that an earlier version made, or that was damaged, is made again."""
    try:
        accept(store, store.resolve(name), trust, thorough=False)
    except PackageError:
        return False
    return True


def _announce(name: str, directory: Path, *, made: bool, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"name": name, "directory": str(directory), "made": made}))
    elif made:
        click.echo(f"{name} is ready: {directory}")
    else:
        click.echo(f"{name} was there already: {directory}")


@package.command()
@click.argument("sources", nargs=-1, metavar="[SOURCE]", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The package's directory; it must not exist."
)
@click.option("--name", help="What the package is called; else it follows from the file's name.")
@EARN_OPTION
@graph_options
@calbin_options
@JSON_OPTION
def build(
    sources: tuple[Path, ...],
    output: Path,
    name: str | None,
    earns: bool,
    as_json: bool,
    options: BuildOptions,
    calbin: CalbinOptions,
) -> None:
    """Build a package outside the store: of the GGUF file SOURCE, or of what a board's compiler has made.

    \b
    Example:
      calculet-trio package build Qwen3-0.6B-Q8_0.gguf -o qwen3
      calculet-trio serve --model ./qwen3
      calculet-trio package build -o qwen3-board --calbin q.0.calbin q.1.calbin --tokenizer Qwen3-30B-A3B --roles r.yaml
      calculet-trio package build -o small --emulated-calbin --lanes 4 --max-seq 256
    """
    if output.exists():
        raise PackageError(f"{output} exists already", hint="remove it, or choose another --output")
    if calbin.is_asked:
        name = require_name(name) if name else name_from_file(output.absolute())
        with ProgressDisplay() as display:
            calbin.build(sources, output, name=name, options=options, report=display.report)
        _announce(name, output, made=True, as_json=as_json)
        return
    if len(sources) != 1:
        raise click.UsageError("name one SOURCE, or --calbin with its shards, or --emulated-calbin")
    model = ModelSource.parse(str(sources[0].expanduser().absolute()))
    name = require_name(name) if name else model.name
    configuration = own_configuration() if earns else None
    with ProgressDisplay() as display:
        gguf = model.fetch(paths.downloads(), display.report)
        make_package(gguf, output, name=name, options=options, report=display.report, earn_under=configuration)
    _announce(name, output, made=True, as_json=as_json)


@package.command("import")
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace a package of that name.")
@JSON_OPTION
def import_(path: Path, force: bool, as_json: bool) -> None:
    """Copy the package in the directory PATH into the store, if it is whole and signed by somebody who is trusted.

    \b
    Example:
      calculet-trio package import /media/usb/qwen3-30b-a3b
    """
    configuration = own_configuration()
    store = store_of(configuration)
    manifest = Manifest.load(path)
    with ProgressDisplay() as display:
        copying = _hashing(manifest.name, manifest, display.report, doing="import", times=2)
        take_in(store, path, trust_of(configuration), replace=force, on_bytes=copying)
    _announce(manifest.name, store.root / manifest.name, made=True, as_json=as_json)


@package.command()
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@JSON_OPTION
def gc(dry_run: bool, as_json: bool) -> None:
    """Remove packages that were replaced: that no name stands for, no process holds and no rollback needs.

    \b
    Example:
      calculet-trio package gc --dry-run
    """
    found = collect(store_of(own_configuration()), dry_run=dry_run)
    if as_json:
        click.echo(json.dumps(package_view.collection(found), indent=2))
    else:
        package_view.print_collection(found, dry_run=dry_run)


@package.command("list")
@JSON_OPTION
def list_(as_json: bool) -> None:
    """List the packages of the store.

    \b
    Example:
      calculet-trio package list --json
    """
    store = store_of(own_configuration())
    found = store.packages()
    if as_json:
        click.echo(json.dumps([package_view.summary(each) for each in found], indent=2))
    else:
        package_view.print_table(store.root, found)


@package.command()
@click.argument("name")
@JSON_OPTION
def show(name: str, as_json: bool) -> None:
    """Show what the package NAME (or a package's directory, or a calbin's file) is.

    \b
    Example:
      calculet-trio package show smollm2
      calculet-trio package show qwen3.0.calbin
    """
    if name.endswith(".calbin"):
        calbin, target = describe_calbin([Path(name)], whole=False)
        if as_json:
            click.echo(calbin_view.as_json(calbin, target))
        else:
            calbin_view.print_calbin(calbin, target)
        return
    configuration = own_configuration()
    directory = store_of(configuration).resolve(name)
    manifest = Manifest.load(directory)
    if as_json:
        click.echo(package_view.as_json(directory))
    else:
        package_view.print_package(directory, manifest, trust_of(configuration))


@package.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--key", type=click.Path(path_type=Path), help="The private key, a PEM file. Default: this machine's own."
)
@click.option("--force", is_flag=True, help="Replace a signature that is trusted here.")
def sign(names: tuple[str, ...], key: Path | None, force: bool) -> None:
    """Sign the packages NAME (or packages' directories), once every file has been checked.

    This machine's own key, made when it is first needed, is believed for packages that run on the CPU. For a board's
    the configuration names the key: trusted_keys.

    \b
    Example:
      calculet-trio package sign smollm2
    """
    configuration = own_configuration()
    store, trust = store_of(configuration), trust_of(configuration)
    signing_key = SigningKey.local(paths.keys()) if key is None else SigningKey.load(key)
    with ProgressDisplay() as display:
        for name in names:
            directory = store.resolve(name)
            manifest = Manifest.load(directory)
            validate(manifest).require()
            if not force:
                _require_unsigned(directory, manifest, trust)
            store.check(directory, thorough=True, on_bytes=_hashing(name, manifest, display.report))
            sign_package(directory, signing_key)
            click.echo(f"{name} is signed by the key {signing_key.public.key_id[:16]}…")


def _require_unsigned(directory: Path, manifest: Manifest, trust: Trust) -> None:
    try:
        signer = package_signer(directory, manifest, trust)
    except SignatureRefused:
        return
    raise PackageError(
        f"the package {manifest.name!r} is signed already, by {trust.describe(signer)}", hint="--force replaces it"
    )


@package.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@JSON_OPTION
def verify(names: tuple[str, ...], as_json: bool) -> int:
    """Verify the packages NAME (all, if none is named): signature, every file's hash, and what the manifest says.

    Leaves with 1 if one must not be served, and says why.

    \b
    Example:
      calculet-trio package verify smollm2
    """
    configuration = own_configuration()
    store, trust = store_of(configuration), trust_of(configuration)
    directories = {name: store.resolve(name) for name in names or store.names()}
    verdicts: list[dict[str, Any]] = []
    with ProgressDisplay() as display:
        for name, directory in directories.items():
            verdicts.append({"name": name, **_verdict(store, trust, name, directory, display.report)})
    if as_json:
        click.echo(json.dumps(verdicts, indent=2))
    else:
        for verdict in verdicts:
            click.echo(f"{verdict['name']}: {verdict['problem'] or package_view.verdict_sentence(verdict)}")
        if not verdicts:
            click.echo(f"the store {store.root} is empty")
    return ExitCode.DONE if all(verdict["ok"] for verdict in verdicts) else ExitCode.FAIL


def _verdict(
    store: Store, trust: Trust, name: str, directory: Path, report: Callable[[Progress], None]
) -> dict[str, Any]:
    try:
        hashing = _hashing(name, Manifest.load(directory), report)
        found = accept(store, directory, trust, thorough=True, on_bytes=hashing)
    except PackageError as error:
        return {"ok": False, "problem": error.message, "hint": error.hint}
    return {
        "ok": True,
        "problem": None,
        "signed_by": found.signer.key_id,
        "signer": trust.describe(found.signer),
        "notes": list(found.report.notes),
        "takes_bytes": found.report.plan.total_bytes,
    }


def _hashing(
    name: str, manifest: Manifest, report: Callable[[Progress], None], *, doing: str = "hash", times: int = 1
) -> OnBytes:
    """Shows how far the hashing of a package has come, or something else that goes over its bytes so many times."""
    total_bytes, done_bytes = package_view.size_bytes(manifest) * times, 0

    def on_bytes(count_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += count_bytes
        report(Progress(f"{doing} {name}", done_bytes, total_bytes))

    return on_bytes
