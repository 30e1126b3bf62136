"""The runtimes that there are: what makes each, and its models. What only one of them needs is imported for it alone.

Source: ARCHITECTURE.md "Rooms".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from calculet_trio.cli.packaged_models import fitting, packaged
from calculet_trio.core.policy import Policy
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.runtimes.port import Runtime
from calculet_trio.settings.configuration import Configuration, Served
from calculet_trio.settings.service import RuntimeKind
from calculet_trio.shell.loading import ModelSource, ModelText

if TYPE_CHECKING:
    from calculet_trio.runtimes.calrt import CalrtRuntime
    from calculet_trio.runtimes.pace import Pace


def on_host(configuration: Configuration, served: Served, policy: Policy) -> tuple[Runtime, ModelSource]:
    """The CPU, and a package of the store."""
    from calculet_trio.runtimes.host import HostRuntime

    return HostRuntime(), packaged(configuration, served, policy)


def on_board(configuration: Configuration, served: Served, policy: Policy) -> tuple[CalrtRuntime, ModelSource]:
    """The board, by its binding, and a package of the store."""
    from calculet_trio.cli.board import board_runtime

    device = configuration.service.device
    runtime = board_runtime(
        None if device.library is None else configuration.path(device.library),
        device=None if device.path is None else Path(device.path),
        accept_untried=device.accept_untried,
    )
    return runtime, packaged(configuration, served, policy)


def by_script(configuration: Configuration, served: Served, policy: Policy) -> tuple[Runtime, ModelSource]:
    """A model that says what a file says."""
    if served.model.package is None:
        raise ConfigurationRefused(
            "--runtime scripted needs --script FILE.yaml",
            hint="calculet_trio/runtimes/SCRIPTS.md has the format, with examples",
        )
    if policy.reuse.enabled:
        raise ConfigurationRefused(
            "prefix_reuse.enabled: a scripted model can earn nothing", hint="leave it out, or set it to false"
        )
    from calculet_trio.cli.model_text import PLAIN_TEMPLATE, open_template
    from calculet_trio.runtimes.script import load_script
    from calculet_trio.runtimes.scripted import ScriptedRuntime

    path = configuration.path(served.model.package)
    script = load_script(path)
    template = script.chat_template or PLAIN_TEMPLATE
    return ScriptedRuntime(script), ModelSource(
        alias=fitting(served, policy, script.shape, package_name=script.model),
        package=path,
        verify=lambda: None,
        open_text=lambda: ModelText(script.tokenizer, open_template(template, script.tokenizer)),
        shape=script.shape,
        meta={"architecture": "scripted"},
    )


def on_emulated_board(
    configuration: Configuration, served: Served, policy: Policy, pace: Pace | None = None
) -> tuple[Runtime, ModelSource]:
    """A board in software, in real time unless another pace is given, and a model of its device file."""
    from calculet_trio.cli.emulated_models import emulated_runtime
    from calculet_trio.runtimes.pace import RealPace

    return emulated_runtime(configuration, pace or RealPace()), _emulated_model(configuration, served, policy)


def _emulated_model(configuration: Configuration, served: Served, policy: Policy) -> ModelSource:
    from calculet_trio.cli.emulated_models import emulated_model

    return emulated_model(configuration, served, policy)


RUNTIMES: Final[Mapping[RuntimeKind, Callable[[Configuration, Served, Policy], tuple[Runtime, ModelSource]]]] = {
    RuntimeKind.HOST: on_host,
    RuntimeKind.EMULATED: on_emulated_board,
    RuntimeKind.SCRIPTED: by_script,
    RuntimeKind.CALRT: on_board,
}
"""The runtimes that there are, each with what makes it and its first model."""

MODELS: Final[Mapping[RuntimeKind, Callable[[Configuration, Served, Policy], ModelSource]]] = {
    RuntimeKind.HOST: packaged,
    RuntimeKind.CALRT: packaged,
    RuntimeKind.EMULATED: _emulated_model,
}
"""Runtimes that can serve more than one model, beside one another or in turns, and what makes a further one."""
