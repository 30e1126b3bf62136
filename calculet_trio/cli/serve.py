"""``calculet-trio serve``: the daemon.

Source: CLI.md "Commands", "Configuration".
"""

from __future__ import annotations

import faulthandler

import click
import trio

from calculet_trio.cli.configuration_options import configuration_options
from calculet_trio.cli.main import Invocation
from calculet_trio.cli.wiring import wire
from calculet_trio.observe.logging import configure_logging
from calculet_trio.settings.configuration import Configuration
from calculet_trio.shell.lifecycle import run


@click.command()
@configuration_options
@click.pass_obj
def serve(invocation: Invocation, configuration: Configuration) -> None:
    """Serve a model over HTTP, with an OpenAI-compatible API.

    \b
    Example:
      calculet-trio serve --model smollm2 --port 8080
      calculet-trio serve --config service.yaml

    SIGTERM or Ctrl-C lets open replies end, a second one cuts them.
    """
    configure_logging(verbosity=invocation.verbosity)
    alias = ""

    def say_ready(bound_port: int) -> None:
        click.echo(_welcome(alias, configuration, bound_port))

    daemon = wire(configuration, on_ready=say_ready, say=lambda sentence: click.echo(sentence, err=True))
    alias = daemon.source.alias
    click.echo(f"loading {alias} …", err=True)
    faulthandler.enable()  # a service manager ends a hung process by SIGABRT: the log then shows where it stood
    trio.run(run, daemon)


def _welcome(alias: str, configuration: Configuration, port: int) -> str:
    host = configuration.service.listen.host
    shown = f"[{host}]" if ":" in host else host
    base = f"http://{shown}:{port}"
    needs_key = bool(configuration.key_ring())
    key_header = " -H 'Authorization: Bearer YOUR-KEY'" if needs_key else ""
    key = "YOUR-KEY" if needs_key else "none"
    return f"""
{alias} is ready on {base}   (Ctrl-C lets open replies end, then stops)

Try it:
  curl -N {base}/v1/chat/completions -H 'Content-Type: application/json'{key_header} \\
    -d '{{"model": "{alias}", "stream": true, "messages": [{{"role": "user", "content": "What is the sea?"}}]}}'

From Python (pip install openai):
  from openai import OpenAI
  client = OpenAI(base_url="{base}/v1", api_key="{key}")
  reply = client.chat.completions.create(model="{alias}", messages=[{{"role": "user", "content": "What is the sea?"}}])
  print(reply.choices[0].message.content)
"""
