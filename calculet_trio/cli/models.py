"""``calculet-trio models``: what a running daemon serves, and how that is changed.

Source: CLI.md "Commands"; SPEC section 8.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from calculet_trio.cli.admin_client import AdminClient
from calculet_trio.cli.admin_options import JSON_OPTION, WAIT_OPTION, admin_options, see_through, show_list


@click.group()
def models() -> None:
    """List, load, unload and roll back what a running daemon serves."""


@models.command(name="list")
@admin_options
@JSON_OPTION
def list_models(client: AdminClient, as_json: bool) -> None:
    """Show every alias, its state and what is behind it.

    \b
    Example:
      calculet-trio models list
    """
    found = client.call("GET", "/admin/models")["models"]
    headings = ("alias", "state", "generation", "package", "version", "rollback to", "doing")
    show_list(found, headings, _row, as_json=as_json)


def _row(model: dict[str, Any]) -> list[str]:
    def short(digest: str | None) -> str:
        return "–" if digest is None else digest[:12]

    doing = model["doing"] or model["error"] or ""
    generation = "–" if model["generation"] is None else str(model["generation"])
    version = model["package_version"] or "–"
    return [
        model["alias"],
        model["state"],
        generation,
        short(model["package"]),
        version,
        short(model["previous"]),
        doing,
    ]


@models.command()
@click.argument("alias")
@click.option("--package", metavar="NAME", help="A package of the store. Default: the alias's own, again.")
@WAIT_OPTION
@admin_options
@JSON_OPTION
def load(client: AdminClient, alias: str, package: str | None, watch: bool, as_json: bool) -> None:
    """Load a package under ALIAS; what was served there is replaced once the new one is proven.

    \b
    Example:
      calculet-trio models load smollm2 --package smollm2-new
    """
    body = {} if package is None else {"package": package}
    see_through(client, client.call("POST", _path(alias, "load"), body), watch=watch, as_json=as_json)


@models.command()
@click.argument("alias")
@WAIT_OPTION
@admin_options
@JSON_OPTION
def unload(client: AdminClient, alias: str, watch: bool, as_json: bool) -> None:
    """Drain ALIAS and free what it holds; the daemon stays.

    \b
    Example:
      calculet-trio models unload smollm2
    """
    see_through(client, client.call("POST", _path(alias, "unload")), watch=watch, as_json=as_json)


@models.command()
@click.argument("alias")
@WAIT_OPTION
@admin_options
@JSON_OPTION
def rollback(client: AdminClient, alias: str, watch: bool, as_json: bool) -> None:
    """Bring back the package that was last good before the one that ALIAS serves, verified again.

    That is the one whose place a package of another name took since the daemon began, or else what `package pull
    --force` or `import --force` has replaced.

    \b
    Example:
      calculet-trio models rollback smollm2
    """
    see_through(client, client.call("POST", _path(alias, "rollback")), watch=watch, as_json=as_json)


def _path(alias: str, what: str) -> str:
    return f"/admin/models/{quote(alias, safe='')}/{what}"
