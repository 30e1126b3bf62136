"""Loader: the eleven steps from a package to a model that serves, each named, timed and bounded.

    resolve ─ verify ─ validate ─ plan │ close ─ drain │ configure ─ inspect ─ prove ─ publish ─ retain
    nothing of it touches the device   │ only where    │ the device has it; a failure takes it off again
                                       │ one fits      │

Source: SPEC section 8 (S §11).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import structlog
import trio

from calculet_trio.core.evidence import Evidence
from calculet_trio.core.profiles import ModelShape
from calculet_trio.errors import CalculetError, LoadBroken, PackageError
from calculet_trio.ids import GenerationId
from calculet_trio.packages.capacity import CapacityPlan
from calculet_trio.runtimes.port import DeviceInfo, GoldenResult, MemoryUse, ModelDescription, Runtime
from calculet_trio.shell.blocking import BlockingRunner
from calculet_trio.shell.prompts import ChatTemplate
from calculet_trio.shell.proof import Proof
from calculet_trio.text.tokenizer import Tokenizer

T = TypeVar("T")

STEP_S: Final = 3600.0
"""Hashing and configuring 18 GB from a slow disk takes minutes; a step that takes longer than this stands still."""

Say = Callable[[str], None]
"""Takes one line of progress."""

_log = structlog.get_logger(__name__)


class LoadPhase(Enum):
    """The steps of S §11, in order."""

    RESOLVE = "resolve"
    VERIFY = "verify"
    VALIDATE = "validate"
    PLAN = "plan"
    CLOSE = "close"
    DRAIN = "drain"
    CONFIGURE = "configure"
    INSPECT = "inspect"
    PROVE = "prove"
    PUBLISH = "publish"
    RETAIN = "retain"


_DOING: Final[Mapping[LoadPhase, str]] = {
    LoadPhase.RESOLVE: "finding the package of",
    LoadPhase.VERIFY: "checking signature and files of",
    LoadPhase.VALIDATE: "checking what the package says of",
    LoadPhase.PLAN: "planning the memory of",
    LoadPhase.CLOSE: "letting new requests wait for",
    LoadPhase.DRAIN: "letting open replies end before",
    LoadPhase.CONFIGURE: "configuring",
    LoadPhase.INSPECT: "inspecting",
    LoadPhase.PROVE: "warming up and proving",
    LoadPhase.PUBLISH: "publishing",
    LoadPhase.RETAIN: "recording as good",
}


@attrs.frozen
class ModelText:
    """What a package's text files became."""

    tokenizer: Tokenizer
    template: ChatTemplate | None

    def close(self) -> None:
        """Let its template process go."""
        if self.template is not None:
            self.template.close()


@attrs.frozen(kw_only=True)
class ModelSource:
    """A model to be served: what ``cli.wiring`` knows of it and the shell does not.

    Args:
        alias: its name in requests.
        package: its directory.
        verify: checks the package's signature and files; blocks; raises `calculet_trio.errors.PackageError`.
        open_text: makes tokenizer and template; blocks.
        meta: what ``/v1/models`` shows of it, beside what the runtime reports.
        name: the package's own, which its versions share; None where it has none.
        digest: its manifest's SHA-256, as operators name it; None where it has none.
        previous: that of the package which a rollback would bring back; None where there is none.
        released: told once nobody needs the package any more; closes a file, and does not block. Sources of one
            package that is held once have the same.
        co_resident: it may be on a device beside others, as it says itself; the runtime has its say, too.
        shape: as the package declares it, before anything is configured; None where only the runtime can tell.
        evidence: what this model has been shown to do on that device; blocks; None where nothing could be on record.
        plan: what it takes of the device's memory, as its package declares; None where it declares nothing.
        fits: told what is used of the device, and what the models on it planned, before anything is put there; raises
            `calculet_trio.errors.PackageError` where the model has no room; None where nobody knows.
        unchanged: makes sure, when the model is about to be opened to requests, that its package is the one that
            was verified; blocks a little; raises `calculet_trio.errors.PackageError`.
        served: told once the model has been proven and is open to requests; blocks a little; raises
            `calculet_trio.errors.CalculetError` where that cannot be put on record.
        prove: what it still has to show, now that it is configured; None where nothing is asked.
    """

    alias: str
    package: Path
    verify: Callable[[], None]
    open_text: Callable[[], ModelText]
    meta: Mapping[str, Any]
    name: str | None = None
    digest: str | None = None
    previous: str | None = None
    released: Callable[[], None] | None = None
    co_resident: bool = False
    shape: ModelShape | None = None
    evidence: Callable[[DeviceInfo], Evidence | None] = lambda _device: None
    plan: CapacityPlan | None = None
    fits: Callable[[MemoryUse, Sequence[CapacityPlan]], None] | None = None
    unchanged: Callable[[], None] | None = None
    served: Callable[[], None] | None = None
    prove: Callable[[GenerationId, DeviceInfo, Evidence | None], Proof] | None = None

    def has_room_beside(self, used: MemoryUse, beside: Sequence[CapacityPlan]) -> bool:
        """Whether it fits beside what the device holds; where nobody knows, it does."""
        try:
            if self.fits is not None:
                self.fits(used, beside)
        except PackageError:
            return False
        return True


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
        return self.began_s + STEP_S


@attrs.frozen
class Prepared:
    """A package that may be put on the device."""

    source: ModelSource
    text: ModelText
    evidence: Evidence | None


class Loader:
    """Does the steps; when they are due is the manager's business.

    Attributes:
        step: the one under way; None while none is.
        device: what it was found to be when it was opened.

    Args:
        runtime: the device.
        device: see above.
        call: runs one blocking device call to its end.
        call_for_load: the same for one that may take long, and that nobody who is served waits for.
        runner: how blocking calls beside the device run.
        on_phase: told of each step that ended well: the alias, the step, and how long it took.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        device: DeviceInfo,
        call: Callable[[Callable[[], Any]], Awaitable[Any]],
        call_for_load: Callable[[Callable[[], Any]], Awaitable[Any]],
        runner: BlockingRunner,
        on_phase: Callable[[str, LoadPhase, float], None],
    ) -> None:
        self._runtime = runtime
        self.device = device
        self._call = call
        self._call_for_load = call_for_load
        self._runner = runner
        self._on_phase = on_phase
        self._limiter = trio.CapacityLimiter(1)
        self.step: LoadStep | None = None

    @contextmanager
    def phase(self, phase: LoadPhase, alias: str, report: Say) -> Iterator[None]:
        """One step, from its announcement to its time.

        Raises:
            calculet_trio.errors.LoadBroken: it met an error that has no sentence of its own. What is served is no
                part of it, and serves on.
        """
        began_s = trio.current_time()
        doing = f"{_DOING[phase]} {alias}"
        self.step = LoadStep(doing, began_s)
        report(doing)
        try:
            yield
        except CalculetError:
            raise
        except Exception as error:
            _log.exception("load_step_broke", model=alias, step=phase.value)
            raise LoadBroken(f"{doing} broke off: {type(error).__name__}: {error}") from error
        finally:
            self.step = None
        took_s = trio.current_time() - began_s
        _log.info("load_step", model=alias, step=phase.value, took_s=round(took_s, 3))
        self._on_phase(alias, phase, took_s)

    async def resolve(self, find: Callable[[], ModelSource], alias: str, report: Say) -> ModelSource:
        """Find the package that is meant. Raises `calculet_trio.errors.PackageError`."""
        with self.phase(LoadPhase.RESOLVE, alias, report):
            return await self._runner.run_whole(find, self._limiter)

    async def prepare(
        self, source: ModelSource, used: MemoryUse, beside: Sequence[CapacityPlan], report: Say
    ) -> Prepared:
        """Everything that needs no device: verify, validate, plan.

        Args:
            source: the package.
            used: what the device will hold of others when this one is put there.
            beside: what those have planned.
            report: told of each step.

        Raises:
            calculet_trio.errors.PackageError: damaged, untrusted, contradictory, or without room.

        **Cancellation**: between two steps; a begun one is ended first.
        """
        with self.phase(LoadPhase.VERIFY, source.alias, report):
            await self._runner.run_whole(source.verify, self._limiter)
        with self.phase(LoadPhase.VALIDATE, source.alias, report):
            evidence = await self._runner.run_whole(partial(source.evidence, self.device), self._limiter)
            if source.shape is not None:
                require_a_profile(source.shape)
        with self.phase(LoadPhase.PLAN, source.alias, report):
            if source.fits is not None:
                source.fits(used, beside)
            text = await self._runner.run_whole(source.open_text, self._limiter)
        return Prepared(source, text, evidence)

    async def configure(self, generation: GenerationId, source: ModelSource, report: Say) -> ModelDescription:
        """Put it on the device and look at what is there.

        Raises:
            calculet_trio.errors.PackageError: it does not fit the device, or is not what it says.
        """
        with self.phase(LoadPhase.CONFIGURE, source.alias, report):
            await self._call_for_load(partial(self._runtime.configure, generation, source.package))
        with self.phase(LoadPhase.INSPECT, source.alias, report):
            description: ModelDescription = await self._call_for_load(partial(self._runtime.inspect, generation))
            require_a_profile(description.shape)
        return description

    async def prove(self, generation: GenerationId, prepared: Prepared, report: Say) -> Evidence | None:
        """Run every submodel and the golden run, and whatever else it still has to show.

        Returns:
            What it has been shown to do, this included.

        Raises:
            calculet_trio.errors.PackageError: it does not say what its package recorded.
        """
        source, evidence = prepared.source, prepared.evidence
        with self.phase(LoadPhase.PROVE, source.alias, report):
            golden = await self.golden(generation)
            if not golden.passed:
                raise PackageError(
                    f"the model {source.alias!r} does not reproduce its golden run: {golden.detail}",
                    hint="verify the package (calculet-trio package verify), or build it again on this machine",
                )
            if source.prove is None:
                return evidence
            proof = source.prove(generation, self.device, evidence)
            for step in proof.steps():
                await self._call_for_load(step)
            return await self._runner.run_whole(proof.evidence, self._limiter)

    async def bring_back(self, generation: GenerationId, source: ModelSource) -> GoldenResult:
        """After a reset: the same model under the same generation, proven.

        Raises:
            calculet_trio.errors.PackageError: its package is not any more what was verified.
        """
        interrupted, self.step = self.step, LoadStep(f"bringing back {source.alias}", trio.current_time())
        try:
            # a limiter of its own: a load that hashes a large package meanwhile is not waited for
            await self._runner.run_whole(partial(_make_sure_again, source), trio.CapacityLimiter(1))
            await self._call_for_load(partial(self._runtime.configure, generation, source.package))
            return await self.golden(generation)
        finally:
            self.step = interrupted

    async def golden(self, generation: GenerationId) -> GoldenResult:
        """Warm up, and replay what the package recorded."""
        await self._call_for_load(partial(self._runtime.warm_up, generation))
        result: GoldenResult = await self._call_for_load(partial(self._runtime.golden, generation))
        return result

    async def take_off(self, generation: GenerationId) -> bool:
        """Take the generation off the device; whether that is certain."""
        certain = False
        try:
            certain = await self._call(partial(self._runtime.unload, generation))
        except CalculetError:
            raise
        except Exception:  # noqa: BLE001 - a runtime that raises has not let go of anything for certain
            _log.exception("unload_broke", generation=generation)
        if not certain:
            _log.error("unload_not_certain", generation=generation)
        return certain

    async def publish(self, source: ModelSource, open_it: Callable[[], None], report: Say) -> None:
        """Open it to requests, in one step, if its package is still the one that was verified.

        Raises:
            calculet_trio.errors.PackageError: somebody has touched it since; nothing was opened.
        """
        with self.phase(LoadPhase.PUBLISH, source.alias, report):
            if source.unchanged is not None:
                await self._runner.run_whole(source.unchanged, self._limiter)
            open_it()

    async def retain(self, source: ModelSource, report: Say) -> None:
        """It has proven itself: it is what a rollback may come back to.

        Raises:
            calculet_trio.errors.CalculetError: that could not be put on record. It serves all the same.
        """
        with self.phase(LoadPhase.RETAIN, source.alias, report):
            if source.served is not None:
                await self._runner.run_whole(source.served, self._limiter)


def _make_sure_again(source: ModelSource) -> None:
    """A package that nobody touched is what it was; what was touched is verified again. Raises PackageError."""
    if source.unchanged is None:
        return
    try:
        source.unchanged()
    except PackageError:
        source.verify()


def require_a_profile(shape: ModelShape) -> None:
    """A batch of several lanes without a contract for inactive ones is not used; one profile must be left.

    Raises:
        calculet_trio.errors.PackageError: none is.
    """
    if not any(profile.is_usable for profile in shape.decode):
        names = ", ".join(f"{profile.submodel} (B={profile.compiled_batch})" for profile in shape.decode)
        raise PackageError(
            f"no decode profile can be used: {names}; none has a contract for inactive lanes",
            hint="ask for a package whose manifest declares inactive_lane, or that holds a B=1 profile",
        )


async def or_else(work: Callable[[], Awaitable[T]], undo: Callable[[], Awaitable[object]]) -> T:
    """What the work returns; where it fails, it is undone first, and then raised.

    **Cancellation**: nothing is undone by it.
    """
    failed: Exception
    try:
        return await work()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is raised again
        failed = error
    await undo()
    raise failed
