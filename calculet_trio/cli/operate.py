"""``calculet-trio drain | reload | trace | debug-dump | device``: the rest of what operators may do to a daemon.

Source: CLI.md "Commands"; API.md "Admin endpoints".
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from calculet_trio.cli.admin_client import AdminClient
from calculet_trio.cli.admin_options import JSON_OPTION, WAIT_OPTION, admin_options, see_through
from calculet_trio.cli.out_file import OutFile, write_out


@click.command()
@admin_options
@JSON_OPTION
def drain(client: AdminClient, as_json: bool) -> None:
    """Let open replies end and then the daemon, as SIGTERM does; it refuses what comes meanwhile.

    \b
    Example:
      calculet-trio drain
    """
    said = client.call("POST", "/admin/drain")
    click.echo(json.dumps(said) if as_json else "the daemon drains, and leaves when its open replies have ended")


@click.command()
@admin_options
@JSON_OPTION
def reload(client: AdminClient, as_json: bool) -> None:
    """Read tenants' keys, weights and limits anew, as SIGHUP does; a bad file changes nothing.

    \b
    Example:
      calculet-trio reload
    """
    said = client.call("POST", "/admin/reload")
    click.echo(json.dumps(said) if as_json else f"{said['tenants']} tenants are as the file has them now")


@click.command()
@click.option("--seconds", type=click.FloatRange(0.001, 60), default=1.0, show_default=True, help="For how long.")
@click.option("--out", type=OutFile(), default=Path("trace.json"), show_default=True, help="Where to write it.")
@admin_options
def trace(client: AdminClient, seconds: float, out: Path) -> None:
    """Record what the scheduler hears and decides; open the file at https://ui.perfetto.dev or in chrome://tracing.

    \b
    Example:
      calculet-trio trace --seconds 5 --out trace.json
    """
    found = client.call("GET", f"/admin/trace?seconds={seconds!r}")
    write_out(out, json.dumps(found))
    left_out = found["otherData"]["left_out"]
    more = f"; {left_out} more were too many" if left_out else ""
    click.echo(f"{out}: {len(found['traceEvents'])} records{more}")


@click.command(name="debug-dump")
@click.option(
    "--include-prompts",
    metavar="WORDS",
    help='Also what open requests asked for. WORDS must be "yes, include prompts".',
)
@admin_options
@JSON_OPTION
def debug_dump(client: AdminClient, include_prompts: str | None, as_json: bool) -> None:
    """Write versions, configuration, counts and stacks into the daemon's dump directory.

    \b
    Example:
      calculet-trio debug-dump
    """
    body = {} if include_prompts is None else {"include_prompts": include_prompts}
    said = client.call("POST", "/admin/debug-dump", body)
    click.echo(json.dumps(said) if as_json else f"{said['path']}: {said['bytes']} bytes")


@click.group()
def device() -> None:
    """Operate a running daemon's device."""


@device.command()
@WAIT_OPTION
@admin_options
@JSON_OPTION
def reset(client: AdminClient, watch: bool, as_json: bool) -> None:
    """Quiesce the device, reset it within the reset budget, prove it with golden, and go on.

    \b
    Example:
      calculet-trio device reset
    """
    see_through(client, client.call("POST", "/admin/device/reset"), watch=watch, as_json=as_json)


@device.command(name="trust-engines")
@admin_options
@JSON_OPTION
def trust_engines(client: AdminClient, as_json: bool) -> None:
    """Let new jobs use both engines again, after a doubt has sent them to one; the next doubt does so anew.

    \b
    Example:
      calculet-trio device trust-engines
    """
    said = client.call("POST", "/admin/device/trust-engines")
    if as_json:
        click.echo(json.dumps(said))
    elif said["put_aside"] is None:
        click.echo("nothing was doubted: both engines get new jobs")
    else:
        click.echo(f"both engines get new jobs again; {said['put_aside']} is put aside")
