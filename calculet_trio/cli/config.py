"""``calculet-trio config``: what is configured, what could be, and keys for clients; no daemon is needed.

Source: CLI.md "Configuration".
"""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path
from typing import Any, Final

import click

from calculet_trio.cli import paths
from calculet_trio.cli.configuration_options import configuration_options
from calculet_trio.cli.configuration_view import effective_json, print_effective, print_faults
from calculet_trio.cli.exit_codes import ExitCode
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.settings.configuration import KINDS, Configuration, check_file
from calculet_trio.settings.json_schema import json_schema
from calculet_trio.settings.key_ring import key_digest
from calculet_trio.settings.written_defaults import written_defaults

KEY_BYTES_MIN: Final = 16
"""A shorter key can be guessed from its hash, which stands in a file."""
KEY_BYTES_MAX: Final = 1024
"""A longer one would take much of what a request's head may hold."""
FILES_MAX: Final = 1000

JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
SCHEMAS: Final = {name.partition("/")[0].removeprefix("calculet-"): kind for name, kind in KINDS.items()}
KIND_ARGUMENT = click.argument("kind", type=click.Choice(list(SCHEMAS)))


@click.group()
def config() -> None:
    """Check and show the configuration, its schema and its defaults; make keys."""


@config.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]…")
@JSON_OPTION
def check(files: tuple[Path, ...], as_json: bool) -> ExitCode:
    """Say everything that is wrong with each FILE, of a service or a scheduler; exit 78 if anything is.

    With a service's file, the files that it names are checked too. Without FILE: the one that `serve` would read.

    \b
    Example:
      calculet-trio config check service.yaml
    """
    if len(files) > FILES_MAX:
        raise click.UsageError(f"{len(files)} files; at most {FILES_MAX}")
    own = None if files else paths.configuration_there()
    if not files and own is None:
        click.echo(f"there is no {paths.configuration()}: the defaults hold", err=True)
    faults = {str(file): check_file(file) for file in files or filter(None, [own])}
    print_faults(faults, as_json=as_json)
    return ExitCode.REFUSED if any(faults.values()) else ExitCode.DONE


@config.command()
@configuration_options
@JSON_OPTION
def show(configuration: Configuration, as_json: bool) -> None:
    """Show every value that holds, and where it comes from: the default, a file's line, or an option.

    Options are those of `serve`, so that what it would do can be seen before.

    \b
    Example:
      calculet-trio config show --config service.yaml --port 9000
    """
    if as_json:
        click.echo(json.dumps(effective_json(configuration), indent=2, ensure_ascii=False))
    else:
        print_effective(configuration)


@config.command()
@KIND_ARGUMENT
def schema(kind: str) -> None:
    """Print the JSON Schema of a service's or a scheduler's file, for editors.

    \b
    Example:
      calculet-trio config schema service > service.schema.json
    Then, as the file's first line, for editors with the YAML language server:
      # yaml-language-server: $schema=service.schema.json
    """
    click.echo(json.dumps(json_schema(SCHEMAS[kind]), indent=2))


@config.command()
@KIND_ARGUMENT
def defaults(kind: str) -> None:
    """Print a file in which every key has its default, with a comment each.

    \b
    Example:
      calculet-trio config defaults service > service.yaml
    """
    click.echo(written_defaults(SCHEMAS[kind]), nl=False)


@config.command()
@click.option("--stdin", "from_stdin", is_flag=True, help="Hash a key that is read from standard input instead.")
@JSON_OPTION
def key(from_stdin: bool, as_json: bool) -> None:
    """Make a key for a tenant and print it, once, with the line that goes into the configuration.

    Only the hash is kept: give the key to the client now.

    \b
    Example:
      calculet-trio config key
      printf %s "$KEY" | calculet-trio config key --stdin
    """
    made = None if from_stdin else f"ct-{secrets.token_urlsafe(32)}"
    digest = key_digest(_key_of_stdin() if made is None else made.encode())
    if as_json:
        found: dict[str, Any] = {"key_sha256": digest} if made is None else {"key": made, "key_sha256": digest}
        click.echo(json.dumps(found))
        return
    if made is not None:
        click.echo(f"key (shown once): {made}")
    click.echo(f'key_sha256: "{digest}"')


def _key_of_stdin() -> bytes:
    """One line of standard input, without its end.

    Raises:
        ConfigurationRefused: it could not be sent in a header, or could be guessed.
    """
    line = sys.stdin.buffer.read(KEY_BYTES_MAX + 3)
    found = line.removesuffix(b"\n").removesuffix(b"\r")
    if not KEY_BYTES_MIN <= len(found) <= KEY_BYTES_MAX:
        raise ConfigurationRefused(
            f"the key has {'more than ' if len(found) > KEY_BYTES_MAX else ''}{min(len(found), KEY_BYTES_MAX)} bytes; "
            f"allowed: {KEY_BYTES_MIN} to {KEY_BYTES_MAX}",
            hint="`calculet-trio config key` makes a good one",
        )
    if any(byte <= 0x20 or byte == 0x7F for byte in found):
        raise ConfigurationRefused(
            "the key holds a space or control character, which a header cannot carry",
            hint="`calculet-trio config key` makes a good one",
        )
    return found
