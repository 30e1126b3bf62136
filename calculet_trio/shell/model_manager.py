"""ModelManager: takes a generation through its load, step by step, and gives it back at the end.

Source: SPEC section 8 (S §10–§12).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import structlog
import trio

from calculet_trio.core.events import Event, GenerationAdvanced
from calculet_trio.core.generation import GenerationEvent
from calculet_trio.core.profiles import InactiveLanePolicy, ModelShape
from calculet_trio.errors import PackageError
from calculet_trio.ids import GenerationId
from calculet_trio.runtimes.port import GoldenResult, ModelDescription, Runtime
from calculet_trio.shell.front_desk import FrontDesk
from calculet_trio.shell.prompts import ChatTemplate, PromptDesk
from calculet_trio.shell.service import ServedModel
from calculet_trio.text.tokenizer import Tokenizer

T = TypeVar("T")

LOAD_STEP_S = 3600.0
"""Hashing and configuring 18 GB from a slow disk takes minutes; a step that takes longer than this stands still."""

_DOING: Final = {
    GenerationEvent.VALIDATE: "checking the package of",
    GenerationEvent.CONFIGURE: "configuring",
    GenerationEvent.WARM: "warming up and proving",
}

_log = structlog.get_logger(__name__)


@attrs.frozen
class ModelText:
    """What a package's text files became."""

    tokenizer: Tokenizer
    template: ChatTemplate | None


@attrs.frozen(kw_only=True)
class ModelSource:
    """A model to be served: what ``cli.wiring`` knows of it and the shell does not.

    Args:
        alias: its name in requests.
        package: its directory.
        verify: checks the package's files; blocks; raises `calculet_trio.errors.PackageError`.
        open_text: makes tokenizer and template; blocks.
        meta: what ``/v1/models`` shows of it, beside what the runtime reports.
    """

    alias: str
    package: Path
    verify: Callable[[], None]
    open_text: Callable[[], ModelText]
    meta: Mapping[str, Any]


@attrs.frozen
class LoadStep:
    """A step of a load that is under way.

    Args:
        doing: what, and with which model, for people.
        began_s: when, monotonic.
    """

    doing: str
    began_s: float

    @property
    def bound_s(self) -> float:
        """The moment past which the step stands still."""
        return self.began_s + LOAD_STEP_S


class ModelManager:
    """Loads generations on one device.

    Attributes:
        step: of the load that is under way; None while none is.

    Args:
        runtime: the device.
        call: runs one blocking device call to its end.
        post: tells the core.
        desk: where a loaded model becomes servable.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        call: Callable[[Callable[[], Any]], Awaitable[Any]],
        post: Callable[[Event], None],
        desk: FrontDesk,
    ) -> None:
        self._runtime = runtime
        self._call = call
        self._post = post
        self._desk = desk
        self._loaded = 0
        self.step: LoadStep | None = None

    async def load(self, source: ModelSource) -> None:
        """Validate, configure, warm and publish one generation.

        Raises:
            calculet_trio.errors.PackageError: the package is damaged, does not fit the device, or its
                golden run does not reproduce; nothing is published.

        **Cancellation**: between two steps; a begun device call is ended first.
        """
        self._loaded += 1
        generation = GenerationId(self._loaded)
        step = partial(self._step, generation, source.alias)
        started_s = trio.current_time()
        with step(GenerationEvent.VALIDATE):
            await trio.to_thread.run_sync(source.verify)
            text = await trio.to_thread.run_sync(source.open_text)
        try:
            with step(GenerationEvent.CONFIGURE):
                await self._call(partial(self._runtime.configure, generation, source.package))
                description = await self._call(partial(self._runtime.inspect, generation))
                _check_masks(description.shape)
            with step(GenerationEvent.WARM):
                await self._call(partial(self._runtime.warm_up, generation))
                golden = await self._call(partial(self._runtime.golden, generation))
                _check_golden(golden, source)
        except BaseException:
            if text.template is not None:
                text.template.close()
            raise
        self._publish(generation, source, text, description)
        _log.info("model_ready", model=source.alias, load_s=round(trio.current_time() - started_s, 3))

    def _publish(
        self, generation: GenerationId, source: ModelSource, text: ModelText, description: ModelDescription
    ) -> None:
        shape = description.shape
        model = ServedModel(
            alias=source.alias,
            loaded_unix_s=time.time(),
            context_tokens=shape.max_seq,
            vocab_size=text.tokenizer.vocab_size,
            meta={
                **source.meta,
                "context_tokens": shape.max_seq,
                "lanes": shape.lanes,
                "profiles": [profile.compiled_batch for profile in shape.decode],
            },
        )
        prompts = PromptDesk(text.tokenizer, text.template, context_tokens=shape.max_seq)
        self._desk.publish(model, prompts)
        self._post(GenerationAdvanced(generation, source.alias, GenerationEvent.PUBLISH, shape))

    @contextmanager
    def _step(self, generation: GenerationId, alias: str, event: GenerationEvent) -> Iterator[None]:
        """Announce a load phase to the core; a failure in it makes the generation Failed."""
        self._post(GenerationAdvanced(generation, alias, event))
        self.step = LoadStep(f"{_DOING[event]} {alias}", trio.current_time())
        try:
            yield
        except BaseException:
            self._post(GenerationAdvanced(generation, alias, GenerationEvent.GIVE_UP))
            raise
        finally:
            self.step = None


def _check_masks(shape: ModelShape) -> None:
    """A batch of several lanes without a mask contract must not become Ready (S §7.3)."""
    for profile in shape.decode:
        if profile.compiled_batch > 1 and profile.inactive_lane is InactiveLanePolicy.NONE:
            raise PackageError(
                f"the profile {profile.submodel!r} (B={profile.compiled_batch}) has no contract for inactive lanes",
                hint="ask for a package whose manifest declares inactive_lane, or serve only its B=1 profile",
            )


def _check_golden(golden: GoldenResult, source: ModelSource) -> None:
    if not golden.passed:
        raise PackageError(
            f"the model {source.alias!r} does not reproduce its golden run: {golden.detail}",
            hint="verify the package (calculet-trio package verify), or build it again on this machine",
        )
