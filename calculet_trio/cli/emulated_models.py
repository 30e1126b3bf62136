"""Models of an emulated board: device files, of which each model may name its own.

Source: SPEC section 1, 12.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from calculet_trio.cli.model_text import PLAIN_TEMPLATE, open_template
from calculet_trio.cli.packaged_models import fitting
from calculet_trio.cli.trusted_store import recorded
from calculet_trio.core.policy import Policy
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.runtimes.device_model import REFERENCE, load_device
from calculet_trio.runtimes.emulated import EmulatedRuntime
from calculet_trio.runtimes.pace import Pace
from calculet_trio.settings.configuration import Configuration, Served
from calculet_trio.shell.loading import ModelSource, ModelText
from calculet_trio.text.byte_tokenizer import ByteTokenizer


def emulated_runtime(configuration: Configuration, pace: Pace) -> EmulatedRuntime:
    """The board of the configuration's first model, which knows the numbers of them all.

    Raises:
        calculet_trio.errors.ConfigurationRefused: a device file is not valid.
    """
    files = [_file_of(configuration, served) for served in configuration.served]
    models = {path: load_device(path) for path in files}
    return EmulatedRuntime(models[files[0]], pace, models=models)


def emulated_model(configuration: Configuration, served: Served, policy: Policy) -> ModelSource:
    """A model, as its device file has it.

    Raises:
        calculet_trio.errors.ConfigurationRefused: the file is not valid, or does not fit the policy.
    """
    path = _file_of(configuration, served)
    model = load_device(path)
    own_tokens = ByteTokenizer().vocab_size
    if model.vocab_size < own_tokens:
        raise ConfigurationRefused(
            f"{path}: vocab_size is {model.vocab_size}; allowed: {own_tokens}, the bytes and what ends a reply, or more"
        )
    tokenizer = ByteTokenizer([f"[{token}]".encode() for token in range(own_tokens, model.vocab_size)])
    return ModelSource(
        alias=fitting(served, policy, model.shape(), package_name="emulated"),
        package=path,
        verify=lambda: None,
        open_text=lambda: ModelText(tokenizer, open_template(PLAIN_TEMPLATE, tokenizer)),
        shape=model.shape(),
        meta={"architecture": "emulated", "assumed": list(model.assumed)},
        evidence=partial(recorded, configuration, path),
    )


def _file_of(configuration: Configuration, served: Served) -> Path:
    """What the model names, if that is a path; else the board's own."""
    own, board = served.model.package, configuration.service.device.emulated_board
    named = own if own is not None and "/" in own else board
    return REFERENCE if named is None else configuration.path(named)
