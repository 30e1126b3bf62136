"""Which strategy a configuration's models can be served with, said before anything is loaded.

Source: SPEC section 8 (S §13), 12.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from calculet_trio.core.policy import ResidencyStrategy
from calculet_trio.core.profiles import ModelShape
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.settings.configuration import Configuration
from calculet_trio.settings.service import RuntimeKind
from calculet_trio.shell.loading import ModelSource

_HOLDS_SEVERAL: Final = frozenset({RuntimeKind.HOST})
"""What the others drive holds one model at a time."""
_CHANGES_MODELS: Final = _HOLDS_SEVERAL | {RuntimeKind.CALRT, RuntimeKind.EMULATED}
"""A script is the whole of what the scripted runtime can say."""


def require_strategy(configuration: Configuration) -> None:
    """Make sure that so many models may be configured with this strategy and runtime.

    Raises:
        calculet_trio.errors.ConfigurationRefused: with the models, and what may be configured instead.
    """
    kind, strategy = configuration.service.device.runtime, configuration.service.residency.strategy
    if len(configuration.served) == 1:
        return
    if strategy is ResidencyStrategy.SINGLE:
        raise ConfigurationRefused(
            f"{_counted(configuration)}, and residency.strategy is single", hint="choose with --model, or set another"
        )
    if kind not in (_CHANGES_MODELS if strategy is ResidencyStrategy.TIME_SHARING else _HOLDS_SEVERAL):
        others = "" if kind not in _CHANGES_MODELS else ", or set residency.strategy: time_sharing"
        raise ConfigurationRefused(
            f"{_counted(configuration)}, and what the runtime {kind.value} drives holds one: "
            f"{', '.join(_names(configuration))}",
            hint=f"choose with --model, one process and one device for each{others}",
        )


def require_declared(strategy: ResidencyStrategy, sources: Sequence[ModelSource]) -> None:
    """Make sure that all packages say that they may be on a device beside others, where they are to be.

    Raises:
        calculet_trio.errors.ConfigurationRefused: with those that do not.
    """
    lonely = [source.alias for source in sources if not source.co_resident]
    if len(sources) > 1 and lonely and strategy is not ResidencyStrategy.TIME_SHARING:
        raise ConfigurationRefused(
            f"{len(sources)} models are configured, and these packages do not declare that they share a device: "
            f"{', '.join(lonely)}",
            hint="residency.strategy: time_sharing lets them take turns",
        )


def longest_shape(sources: Sequence[ModelSource]) -> ModelShape | None:
    """The shape with the longest prompts; None where one is not known."""
    shapes = [source.shape for source in sources]
    known = [shape for shape in shapes if shape is not None]
    return max(known, key=lambda shape: shape.prefill.max_seq) if len(known) == len(shapes) else None


def _counted(configuration: Configuration) -> str:
    return f"{len(configuration.served)} models are configured"


def _names(configuration: Configuration) -> list[str]:
    return [each.model.alias or each.model.package or f"models[{each.index}]" for each in configuration.served]
