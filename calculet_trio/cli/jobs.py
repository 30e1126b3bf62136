"""``calculet-trio jobs``: the long operations of a running daemon.

Source: API.md "Admin endpoints".
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import click

from calculet_trio.cli.admin_client import AdminClient
from calculet_trio.cli.admin_options import JSON_OPTION, admin_options, show_list
from calculet_trio.errors import OperationFailed


@click.group()
def jobs() -> None:
    """List the long operations of a running daemon, and cancel one."""


@jobs.command(name="list")
@admin_options
@JSON_OPTION
def list_jobs(client: AdminClient, as_json: bool) -> None:
    """Show what is under way and what has ended, and how.

    \b
    Example:
      calculet-trio jobs list
    """
    found = client.call("GET", "/admin/jobs")["jobs"]
    show_list(found, ("job", "what", "state", "took", "last said"), _row, as_json=as_json)


def _row(job: dict[str, Any]) -> list[str]:
    said = job["error"] or (job["progress"][-1]["text"] if job["progress"] else "")
    what = f"{job['what']} {job['alias'] or ''}".strip()
    return [job["job"], what, job["state"], f"{job['took_s']:.2f} s", said]


@jobs.command()
@click.argument("job")
@admin_options
@JSON_OPTION
def cancel(client: AdminClient, job: str, as_json: bool) -> None:
    """End JOB between two of its steps, and wait for that; once it has touched the device it is seen through.

    \b
    Example:
      calculet-trio jobs cancel op-3
    """
    client.call("DELETE", f"/admin/jobs/{quote(job, safe='')}")
    *_, ended = client.follow(job)
    if ended["state"] != "cancelled":
        raise OperationFailed(f"{job} had ended before: {ended['state']}")
    click.echo(json.dumps(ended) if as_json else f"{job} is cancelled")
