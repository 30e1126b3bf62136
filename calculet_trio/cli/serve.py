"""``calculet-trio serve``: the daemon.

Source: CLI.md "Commands".
"""

from __future__ import annotations

from pathlib import Path

import click
import trio

from calculet_trio.api.settings import ApiSettings
from calculet_trio.cli.main import Invocation
from calculet_trio.cli.wiring import RUNTIMES, ServeOptions, wire
from calculet_trio.core.policy import AdmissionPolicy, Policy
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.observe.logging import configure_logging
from calculet_trio.shell.lifecycle import run

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@click.command()
@click.option("--model", metavar="NAME|PATH", help="The package to serve. Default: the only one in the store.")
@click.option("--runtime", type=click.Choice(RUNTIMES), default="host", show_default=True, help="What computes.")
@click.option(
    "--script", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="What a scripted runtime says."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The host to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8080, show_default=True, help="0: any free port.")
@click.option("--allow-remote", is_flag=True, help="Serve on an host that others can reach, without keys.")
@click.option("--max-waiting", type=click.IntRange(0, 100_000), default=128, show_default=True, help="Queue length.")
@click.option(
    "--deadline", type=click.FloatRange(0.001, 86_400), default=120.0, show_default=True, help="Seconds a request has."
)
@click.option(
    "--drain", type=click.FloatRange(0, 86_400), default=30.0, show_default=True, help="Seconds streams have to end."
)
@click.pass_obj
def serve(
    invocation: Invocation,
    model: str | None,
    runtime: str,
    script: Path | None,
    host: str,
    port: int,
    allow_remote: bool,
    max_waiting: int,
    deadline: float,
    drain: float,
) -> None:
    """Serve a model over HTTP, with an OpenAI-compatible API.

    \b
    Example:
      calculet-trio serve --model smollm2 --port 8080

    SIGTERM or Ctrl-C lets open replies end, a second one cuts them.
    """
    if host not in _LOOPBACK and not allow_remote:
        raise ConfigurationRefused(
            f"listening on {host} would let everybody who can reach it use the model",
            hint="serve on 127.0.0.1, or say --allow-remote",
        )
    configure_logging(verbosity=invocation.verbosity)
    options = ServeOptions(
        runtime=runtime,
        model=model,
        script=script,
        host=host,
        port=port,
        policy=Policy(admission=AdmissionPolicy(max_waiting_requests=max_waiting, deadline_default_s=deadline)),
        api=ApiSettings(),
        drain_s=drain,
    )
    alias = ""

    def say_ready(bound_port: int) -> None:
        click.echo(_welcome(alias, host, bound_port))

    daemon = wire(options, on_ready=say_ready)
    alias = daemon.source.alias
    click.echo(f"loading {alias} …", err=True)
    trio.run(run, daemon)


def _welcome(alias: str, host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    base = f"http://{shown}:{port}"
    return f"""
{alias} is ready on {base}   (Ctrl-C lets open replies end, then stops)

Try it:
  curl -N {base}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "{alias}", "stream": true, "messages": [{{"role": "user", "content": "What is the sea?"}}]}}'

From Python (pip install openai):
  from openai import OpenAI
  client = OpenAI(base_url="{base}/v1", api_key="none")
  reply = client.chat.completions.create(model="{alias}", messages=[{{"role": "user", "content": "What is the sea?"}}])
  print(reply.choices[0].message.content)
"""
