"""Wiring: the one place that chooses a runtime and connects it to package, text, shell and surface.

Source: ARCHITECTURE.md "Layout".
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio

from calculet_trio.api.app import create_app
from calculet_trio.api.server import serve as serve_http
from calculet_trio.api.settings import ApiSettings
from calculet_trio.cli.paths import package_store
from calculet_trio.core.policy import Policy
from calculet_trio.errors import ConfigurationRefused, PackageError
from calculet_trio.observe.metrics import ServiceMetrics
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.store import Store
from calculet_trio.runtimes.port import Runtime
from calculet_trio.shell.lifecycle import Daemon, HttpServer
from calculet_trio.shell.model_manager import ModelSource, ModelText
from calculet_trio.shell.service import Service
from calculet_trio.text.bpe import BpeTokenizer
from calculet_trio.text.template import TemplateWorker
from calculet_trio.text.tokenizer import SpecialIds, Tokenizer

RUNTIMES: Final = ("host", "scripted")

_PLAIN_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML, for scripts that bring no template."""


@attrs.frozen(kw_only=True)
class ServeOptions:
    """What the command line says about a daemon.

    Args:
        runtime: one of `RUNTIMES`.
        model: a package's name or directory; None for the only one in the store.
        script: the scripted runtime's file.
        host: the address to listen on.
        port: 0 lets the system choose.
        policy: the core's numbers.
        api: the surface's bounds.
        drain_s: how long open streams may go on after a SIGTERM.
    """

    runtime: str
    model: str | None
    script: Path | None
    host: str
    port: int
    policy: Policy
    api: ApiSettings
    drain_s: float


def wire(options: ServeOptions, *, on_ready: Callable[[int], None]) -> Daemon:
    """Everything a daemon needs, chosen and connected; nothing is opened or loaded yet.

    Raises:
        calculet_trio.errors.PackageError: no such package or script, or one that must not be served.
        calculet_trio.errors.ConfigurationRefused: options that contradict each other.
    """
    runtime, source = _scripted(options) if options.runtime == "scripted" else _host(options)
    metrics = ServiceMetrics()
    return Daemon(
        runtime=runtime,
        source=source,
        policy=options.policy,
        metrics=metrics,
        serve_http=_surface(options, metrics),
        on_ready=on_ready,
        drain_s=options.drain_s,
    )


def _surface(options: ServeOptions, metrics: ServiceMetrics) -> HttpServer:
    async def serve(service: Service, stop: trio.Event, *, task_status: trio.TaskStatus[int]) -> None:
        app = create_app(service, options.api, metrics=metrics.expose)
        await serve_http(
            app,
            host=options.host,
            port=options.port,
            settings=options.api,
            shutdown=stop,
            task_status=task_status,
        )

    return serve


def _host(options: ServeOptions) -> tuple[Runtime, ModelSource]:
    if options.script is not None:
        raise ConfigurationRefused("--script goes with --runtime scripted", hint="leave one of the two out")
    from calculet_trio.runtimes.host import HostRuntime

    store = Store(package_store())
    package = store.only() if options.model is None else store.resolve(options.model)
    manifest = Manifest.load(package)
    return HostRuntime(), ModelSource(
        alias=manifest.name,
        package=package,
        verify=lambda: _refuse_damage(store, package),
        open_text=partial(open_text, package, manifest),
        meta={"package_version": manifest.package_version, "architecture": manifest.architecture.family},
    )


def _refuse_damage(store: Store, package: Path) -> None:
    store.check(package, thorough=False)


def open_text(package: Path, manifest: Manifest) -> ModelText:
    """The tokenizer and chat template that a package holds; blocks for about a second.

    Raises:
        calculet_trio.errors.PackageError: a file is missing or of a kind this version cannot read.
    """
    try:
        vocabulary = json.loads((package / manifest.text.vocabulary).read_bytes())
        template = (
            None
            if manifest.text.chat_template is None
            else (package / manifest.text.chat_template).read_text(encoding="utf-8")
        )
    except (OSError, ValueError) as error:
        raise PackageError(f"the package {manifest.name!r} has unreadable text files: {error}") from error
    special = SpecialIds(
        bos=manifest.special.bos,
        eos=manifest.special.eos,
        end_of_turn=manifest.special.end_of_turn,
        add_bos=manifest.special.add_bos,
    )
    tokenizer = BpeTokenizer.from_vocabulary(vocabulary, special)
    return ModelText(tokenizer, None if template is None else _open_template(template, tokenizer))


def _open_template(template: str, tokenizer: Tokenizer) -> TemplateWorker:
    def literal(token: int | None) -> str:
        return "" if token is None else tokenizer.token_bytes(token).decode("utf-8", "replace")

    return TemplateWorker(
        template,
        special_literals=tokenizer.special_literals,
        bos_token=literal(tokenizer.special.bos),
        eos_token=literal(tokenizer.special.eos),
    )


def _scripted(options: ServeOptions) -> tuple[Runtime, ModelSource]:
    if options.script is None:
        raise ConfigurationRefused("--runtime scripted needs --script FILE.yaml", hint="see runtimes/SCRIPTS.md")
    from calculet_trio.runtimes.script import load_script
    from calculet_trio.runtimes.scripted import ScriptedRuntime

    script = load_script(options.script)
    template = script.chat_template or _PLAIN_TEMPLATE
    return ScriptedRuntime(script), ModelSource(
        alias=script.model,
        package=options.script,
        verify=lambda: None,
        open_text=lambda: ModelText(script.tokenizer, _open_template(template, script.tokenizer)),
        meta={"architecture": "scripted"},
    )
