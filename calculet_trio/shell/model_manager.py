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

from calculet_trio.core.events import Event, FaultReason, GenerationAdvanced
from calculet_trio.core.evidence import CAPABILITIES, Evidence, batch_capability
from calculet_trio.core.generation import GenerationEvent, GenerationState
from calculet_trio.core.profiles import ModelShape
from calculet_trio.errors import PackageError
from calculet_trio.ids import GenerationId
from calculet_trio.runtimes.port import DeviceInfo, GoldenResult, MemoryUse, ModelDescription, Runtime
from calculet_trio.shell.blocking import BlockingRunner
from calculet_trio.shell.front_desk import FrontDesk
from calculet_trio.shell.operations import ModelStatus
from calculet_trio.shell.prompts import ChatTemplate, PromptDesk
from calculet_trio.shell.proof import Proof
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

_STATE_AFTER: Final = {
    GenerationEvent.VALIDATE: GenerationState.VALIDATING,
    GenerationEvent.CONFIGURE: GenerationState.CONFIGURING,
    GenerationEvent.WARM: GenerationState.WARMING,
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
        shape: as the package declares it, before anything is configured; None where only the runtime can tell.
        evidence: what this model has been shown to do on that device; blocks; None where nothing could be on record.
        fits: told what is used of the device before anything is put there; raises
            `calculet_trio.errors.PackageError` where the model has no room; None where nobody knows.
        served: told once the model has been proven and is open to requests; blocks a little.
        prove: what it still has to show, now that it is configured; None where nothing is asked.
    """

    alias: str
    package: Path
    verify: Callable[[], None]
    open_text: Callable[[], ModelText]
    meta: Mapping[str, Any]
    shape: ModelShape | None = None
    evidence: Callable[[DeviceInfo], Evidence | None] = lambda _device: None
    fits: Callable[[MemoryUse], None] | None = None
    served: Callable[[], None] | None = None
    prove: Callable[[GenerationId, DeviceInfo, Evidence | None], Proof] | None = None


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
        device: what it was found to be when it was opened.
        call: runs one blocking device call to its end.
        post: tells the core.
        desk: where a loaded model becomes servable.
        runner: how the text side's blocking calls run.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        device: DeviceInfo,
        call: Callable[[Callable[[], Any]], Awaitable[Any]],
        post: Callable[[Event], None],
        desk: FrontDesk,
        runner: BlockingRunner,
    ) -> None:
        self._runtime = runtime
        self._device = device
        self._call = call
        self._post = post
        self._desk = desk
        self._runner = runner
        self._limiter = trio.CapacityLimiter(1)
        self._loaded = 0
        self._resident: dict[GenerationId, ModelSource] = {}
        self._turn = trio.Lock()  # of those who configure the device: loads, and a reset that puts models back
        self._statuses: dict[str, ModelStatus] = {}
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
        self._statuses[source.alias] = ModelStatus(
            alias=source.alias,
            state=GenerationState.UNLOADED.value,
            generation=generation,
            package_version=str(source.meta["package_version"]) if "package_version" in source.meta else None,
        )
        step = partial(self._step, generation, source.alias)
        started_s = trio.current_time()
        with step(GenerationEvent.VALIDATE):
            await self._runner.run_whole(source.verify, self._limiter)
            if source.fits is not None:
                source.fits(await self._call(self._runtime.memory))
            evidence = await self._runner.run(partial(source.evidence, self._device), self._limiter)
            text = await self._runner.run_whole(source.open_text, self._limiter)
        try:
            async with self._turn:
                with step(GenerationEvent.CONFIGURE):
                    await self._call(partial(self._runtime.configure, generation, source.package))
                    description = await self._call(partial(self._runtime.inspect, generation))
                    _check_profiles(description.shape)
                with step(GenerationEvent.WARM):
                    await self._call(partial(self._runtime.warm_up, generation))
                    golden = await self._call(partial(self._runtime.golden, generation))
                    _check_golden(golden, source)
                    evidence = await self._proved(source, generation, evidence)
                self._resident[generation] = source
        except BaseException:
            if text.template is not None:
                text.template.close()
            raise
        self._publish(generation, source, text, description, evidence)
        self._note(source.alias, state=GenerationState.READY.value)
        if source.served is not None:
            await self._runner.run_whole(source.served, self._limiter)
        _log.info("model_ready", model=source.alias, load_s=round(trio.current_time() - started_s, 3))

    def statuses(self) -> tuple[ModelStatus, ...]:
        """Every alias that was ever to be loaded, and how far it is."""
        return tuple(self._statuses.values())

    async def _proved(
        self, source: ModelSource, generation: GenerationId, evidence: Evidence | None
    ) -> Evidence | None:
        """What the model has been shown to do, once it has shown what it still had to."""
        if source.prove is None:
            return evidence
        proof = source.prove(generation, self._device, evidence)
        for step in proof.steps():
            await self._call(step)
        return await self._runner.run_whole(proof.evidence, self._limiter)

    async def restore(self) -> FaultReason | None:
        """After a reset: put every model back under its generation, and prove it.

        Returns:
            `FaultReason.GOLDEN_MISMATCH` if one does not say what its package recorded; None if all do.

        **Cancellation**: between two steps; a begun device call is ended first.
        """
        async with self._turn:
            for generation, source in self._resident.items():
                self.step = LoadStep(f"bringing back {source.alias}", trio.current_time())
                try:
                    await self._call(partial(self._runtime.configure, generation, source.package))
                    await self._call(partial(self._runtime.warm_up, generation))
                    golden = await self._call(partial(self._runtime.golden, generation))
                finally:
                    self.step = None
                if not golden.passed:
                    _log.error("golden_mismatch", model=source.alias, detail=golden.detail)
                    return FaultReason.GOLDEN_MISMATCH
        return None

    def _publish(
        self,
        generation: GenerationId,
        source: ModelSource,
        text: ModelText,
        description: ModelDescription,
        evidence: Evidence | None,
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
                **({} if evidence is None else {"capabilities": _capabilities(evidence, shape)}),
                "device": {"kind": self._device.kind, "name": self._device.name, "versions": self._device.versions},
                **({"warnings": list(description.warnings)} if description.warnings else {}),
            },
        )
        prompts = PromptDesk(text.tokenizer, text.template, context_tokens=shape.max_seq, runner=self._runner)
        self._desk.publish(model, prompts)
        self._post(GenerationAdvanced(generation, source.alias, GenerationEvent.PUBLISH, shape, evidence))

    @contextmanager
    def _step(self, generation: GenerationId, alias: str, event: GenerationEvent) -> Iterator[None]:
        """Announce a load phase to the core; a failure in it makes the generation Failed."""
        self._post(GenerationAdvanced(generation, alias, event))
        self.step = LoadStep(f"{_DOING[event]} {alias}", trio.current_time())
        state = _STATE_AFTER[event]
        self._note(alias, state=state.value, doing=self.step.doing)
        try:
            yield
        except BaseException as error:
            self._post(GenerationAdvanced(generation, alias, GenerationEvent.GIVE_UP))
            self._note(alias, state=GenerationState.FAILED.value, error=str(error) or type(error).__name__)
            raise
        finally:
            took_s = trio.current_time() - self.step.began_s
            self._note(alias, doing=None, phases_s={**self._statuses[alias].phases_s, state.value: round(took_s, 3)})
            self.step = None

    def _note(self, alias: str, **changes: Any) -> None:
        self._statuses[alias] = attrs.evolve(self._statuses[alias], **changes)


def _capabilities(evidence: Evidence, shape: ModelShape) -> dict[str, dict[str, object]]:
    """Each capability's level, and the record that earned it or what is missing."""
    batches = (batch_capability(profile.compiled_batch) for profile in shape.decode)
    standings = (evidence.standing(capability) for capability in (*CAPABILITIES.values(), *batches))
    return {
        standing.capability: {
            "level": standing.level.value,
            "earned": standing.earned,
            "evidence": standing.record,
            "missing": standing.missing,
        }
        for standing in standings
    }


def _check_profiles(shape: ModelShape) -> None:
    """A batch of several lanes without a contract for inactive ones is not used; one profile must be left."""
    if not any(profile.is_usable for profile in shape.decode):
        names = ", ".join(f"{profile.submodel} (B={profile.compiled_batch})" for profile in shape.decode)
        raise PackageError(
            f"no decode profile can be used: {names}; none has a contract for inactive lanes",
            hint="ask for a package whose manifest declares inactive_lane, or that holds a B=1 profile",
        )


def _check_golden(golden: GoldenResult, source: ModelSource) -> None:
    if not golden.passed:
        raise PackageError(
            f"the model {source.alias!r} does not reproduce its golden run: {golden.detail}",
            hint="verify the package (calculet-trio package verify), or build it again on this machine",
        )
