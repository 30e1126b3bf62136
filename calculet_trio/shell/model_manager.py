"""ModelManager: which model is put on the device when: loads, swaps, unloads and the way back.

Where the device can hold the old and the new model, the new one is proven first, and a swap fails nobody. Where it
cannot, the old one is drained and taken off once the new package has been checked; what fails after that brings the
old package back, and the time in between is measured and shown.

Source: SPEC section 8 (S §10–§13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

import attrs
import structlog
import trio

from calculet_trio.core.effects import Vacated
from calculet_trio.core.events import Event, FaultReason, GenerationAdvanced, ModelExpected, ModelForgone
from calculet_trio.core.evidence import Evidence
from calculet_trio.core.generation import GenerationEvent, GenerationState
from calculet_trio.errors import ModelNotFound, OperationFailed, OperationRefused
from calculet_trio.ids import GenerationId
from calculet_trio.runtimes.port import MemoryUse, ModelDescription
from calculet_trio.shell.blocking import BlockingRunner
from calculet_trio.shell.front_desk import FrontDesk
from calculet_trio.shell.loading import Loader, LoadPhase, LoadStep, ModelSource, ModelText, Prepared, or_else
from calculet_trio.shell.model_board import ModelBoard, served_model
from calculet_trio.shell.operations import Report, Unheard
from calculet_trio.shell.prompts import PromptDesk

T = TypeVar("T")

CO_RESIDENCY: Final = "co_residency"

_log = structlog.get_logger(__name__)

_E, _S = GenerationEvent, GenerationState

UNHEARD: Final = Unheard()

FindModel = Callable[[str, str | None], ModelSource]
"""The package of the store that is meant for an alias: a named one, or (None) the one that was good before."""


@attrs.frozen
class Resident:
    """A generation that is on the device."""

    generation: GenerationId
    source: ModelSource
    description: ModelDescription


class ModelManager:
    """The models of one device.

    Attributes:
        board: how far each alias is.

    Args:
        loader: does the steps.
        memory: what the device holds now.
        post: tells the core.
        desk: where a loaded model becomes servable.
        runner: how the text side's blocking calls run.
        drain_s: how long open replies may go on before their model is taken away.
        find: finds packages for operators; None where there is no store.
    """

    def __init__(
        self,
        loader: Loader,
        *,
        memory: Callable[[], MemoryUse],
        post: Callable[[Event], None],
        desk: FrontDesk,
        runner: BlockingRunner,
        drain_s: float,
        find: FindModel | None = None,
    ) -> None:
        self._loader = loader
        self._memory = memory
        self._post = post
        self._desk = desk
        self._runner = runner
        self._drain_s = drain_s
        self._find = find
        self._loaded = 0
        self._resident: dict[GenerationId, Resident] = {}
        self._current: dict[str, Resident] = {}
        self._vacated: dict[GenerationId, trio.Event] = {}
        self._overdue: set[GenerationId] = set()
        self._turn = trio.Lock()  # one load or unload at a time
        self._hands = trio.Lock()  # on the device: theirs for a step, and those of a reset that puts models back
        self._failed: dict[str, GenerationId] = {}
        self.board = ModelBoard()

    @property
    def step(self) -> LoadStep | None:
        """The step of a load that is under way; None while none is."""
        return self._loader.step

    def vacated(self, effect: Vacated) -> None:
        """The core says that a draining generation holds nothing any more."""
        if effect.overdue:
            self._overdue.add(effect.generation)
        self._vacated.setdefault(effect.generation, trio.Event()).set()

    # ---- what may be asked ------------------------------------------------------------------------

    async def load(self, source: ModelSource, report: Report = UNHEARD) -> Mapping[str, Any]:
        """Bring a package to Ready under its alias; replaces what the alias means now.

        Returns:
            ``generation``, and with a swap ``downtime_s``: how long new requests had to wait for the model.

        Raises:
            calculet_trio.errors.PackageError: the package is damaged, does not fit the device, or its
                golden run does not reproduce; nothing is published, and what was served is served (again).

        **Cancellation**: between two steps, and not between the old model's drain and the new one's start; a begun
        device call is ended first.
        """
        alias = source.alias
        generation = self._begin(source)
        began_s = trio.current_time()
        with self._giving_up(generation, alias):
            self._advance(generation, alias, _E.VALIDATE)
            prepared = await self._loader.prepare(source, self._memory_beside(source), self.board.noting(alias, report))
        try:
            async with self._turn:
                downtime_s = await self._put(generation, prepared, report)
        except BaseException:
            prepared.text.close()
            raise
        await self._loader.retain(source, self.board.noting(alias, report))
        _log.info(
            "model_ready", model=alias, load_s=round(trio.current_time() - began_s, 3), downtime_s=round(downtime_s, 3)
        )
        return {"generation": generation, "downtime_s": round(downtime_s, 3)}

    async def load_named(self, alias: str, package: str | None, report: Report) -> Mapping[str, Any]:
        """An operator's load: see `load`; ``package`` None is the alias's present one, again.

        Raises:
            calculet_trio.errors.ModelNotFound: no such alias, and no package to begin it with.
        """
        current = self._current.get(alias)
        if package is None and current is not None:
            return await self.load(current.source, report)
        if package is None and alias not in self.board:
            raise ModelNotFound(alias, served=tuple(status.alias for status in self.board.statuses()))
        return await self._load_found(partial(self._finder(), alias, package or alias), alias, report)

    async def roll_back(self, alias: str, report: Report) -> Mapping[str, Any]:
        """Load the package that was last good before the present one, verified again. See `load`."""
        if alias not in self.board:
            raise ModelNotFound(alias, served=tuple(status.alias for status in self.board.statuses()))
        return await self._load_found(partial(self._finder(), alias, None), alias, report)

    async def unload(self, alias: str, report: Report) -> Mapping[str, Any]:
        """Drain the alias's generation and free all it holds.

        Raises:
            calculet_trio.errors.OperationRefused: nothing is loaded there.
            calculet_trio.errors.OperationFailed: the device is not certain to be rid of it.

        **Cancellation**: before the drain; then it is ended first.
        """
        current = self._current.get(alias)
        if current is None:
            raise OperationRefused(f"{alias} is not loaded")
        before = self._memory()
        async with self._turn:
            await self._retire(current, report)
            self._desk.forget(alias)
        after = self._memory()
        return {"generation": current.generation, "freed_bytes": before.used_bytes - after.used_bytes}

    async def restore(self) -> FaultReason | None:
        """After a reset: put every model back under its generation, and prove it.

        Returns:
            `FaultReason.GOLDEN_MISMATCH` if one does not say what its package recorded; None if all do.

        **Cancellation**: between two steps; a begun device call is ended first.
        """
        # No turn is taken: whoever has it may wait for a drain, which goes on when this has put the models back.
        async with self._hands:
            for resident in list(self._resident.values()):
                golden = await self._loader.bring_back(resident.generation, resident.source)
                if not golden.passed:
                    _log.error("golden_mismatch", model=resident.source.alias, detail=golden.detail)
                    return FaultReason.GOLDEN_MISMATCH
        return None

    # ---- the ways of a generation -------------------------------------------------------------------

    async def _load_found(self, find: Callable[[], ModelSource], alias: str, report: Report) -> Mapping[str, Any]:
        self.board.enter(alias)
        source = await self._loader.resolve(find, alias, self.board.noting(alias, report))
        self._desk.know(alias)
        return await self.load(source, report)

    async def _put(self, generation: GenerationId, prepared: Prepared, report: Report) -> float:
        """Put a prepared package on the device in the present one's place; returns for how long there was none."""
        source = prepared.source
        old = self._current.get(source.alias)
        in_the_way = [each for each in self._resident.values() if not self._fit_together(each, source)]
        if old is None and in_the_way:
            names = ", ".join(sorted({each.source.alias for each in in_the_way}))
            self._fail(generation, source.alias, f"the device holds {names}, and can hold one model")
            raise OperationRefused(
                f"the device holds {names}, and can hold one model", hint=f"calculet-trio models unload {names}"
            )
        if old is None or not in_the_way:
            with self._giving_up(generation, source.alias):
                await self._bring_up(generation, prepared, report)
            if old is not None:
                await self._retire(old, report)
            return 0.0
        return await self._swap(old, generation, prepared, report)

    async def _swap(self, old: Resident, generation: GenerationId, prepared: Prepared, report: Report) -> float:
        """Only one fits: the old one is drained first, and comes back if the new one does not come up."""
        alias = prepared.source.alias
        report.past_return()
        self._post(ModelExpected(alias))
        closed_s = trio.current_time()

        async def exchange() -> None:
            with self._giving_up(generation, alias):
                await self._retire(old, report)
                await self._bring_up(generation, prepared, report)

        try:
            await or_else(exchange, partial(self._bring_old_back, old, report))
        finally:
            if alias not in self._current:
                self._post(ModelForgone(alias))
                self._desk.forget(alias)
            downtime_s = trio.current_time() - closed_s
            self.board.note(alias, downtime_s=round(downtime_s, 3))
        return downtime_s

    async def _bring_old_back(self, old: Resident, report: Report) -> None:
        """The new package failed after the old one had left: the old one is loaded again."""
        alias = old.source.alias
        report(f"bringing the package before back under {alias}")
        failed = self.board[alias].error
        again = self._begin(old.source)
        with self._giving_up(again, alias):
            self._advance(again, alias, _E.VALIDATE)
            prepared = await self._loader.prepare(old.source, self._memory(), self.board.noting(alias, report))
            await self._bring_up(again, prepared, report)
        self.board.note(alias, error=f"the package that was to replace it failed: {failed}")
        _log.warning("old_package_is_back", model=alias, generation=again)

    async def _bring_up(self, generation: GenerationId, prepared: Prepared, report: Report) -> None:
        """Configure, inspect, prove and publish; whatever fails takes it off the device again."""
        source = prepared.source
        noting = self.board.noting(source.alias, report)

        async def put_there() -> tuple[ModelDescription, Evidence | None]:
            description = await self._loader.configure(generation, source, noting)
            self._advance(generation, source.alias, _E.WARM)
            return description, await self._loader.prove(generation, prepared, noting)

        async with self._hands:
            self._advance(generation, source.alias, _E.CONFIGURE)
            description, evidence = await or_else(put_there, partial(self._loader.take_off, generation))
        with self._loader.phase(LoadPhase.PUBLISH, source.alias, noting):
            resident = Resident(generation, source, description)
            self._resident[generation] = self._current[source.alias] = resident
            self._publish(resident, prepared.text, evidence)

    async def _retire(self, resident: Resident, report: Report) -> None:
        """Drain a generation, take it off the device, and forget it."""
        alias, generation = resident.source.alias, resident.generation
        noting = self.board.noting(alias, report)
        is_replaced = self._current.get(alias) is not resident
        report.past_return()
        with self._loader.phase(LoadPhase.CLOSE, alias, noting):
            drained = self._vacated.setdefault(generation, trio.Event())
            self._advance(generation, alias, _E.DRAIN, drain_by_s=trio.current_time() + self._drain_s)
            if not is_replaced:
                del self._current[alias]
                self.board.note(alias, state=_S.DRAINING.value)
        with self._loader.phase(LoadPhase.DRAIN, alias, noting):
            await drained.wait()
        del self._vacated[generation]
        is_overdue = generation in self._overdue
        self._overdue.discard(generation)
        self._advance(generation, alias, _E.GIVE_UP if is_overdue else _E.UNLOAD)
        async with self._hands:
            certain = await self._loader.take_off(generation)
        self._desk.retire(generation)
        await self._loader.release(resident.source)
        del self._resident[generation]
        self._advance(generation, alias, _E.UNLOADED)
        if not is_replaced:
            self.board.note(alias, state=_S.UNLOADED.value, package=None, package_version=None)
        _log.info("model_unloaded", model=alias, generation=generation, overdue=is_overdue)
        if not certain:
            raise OperationFailed(
                f"the device is not certain to be rid of {alias}",
                hint="calculet-trio device reset, or restart the daemon",
            )

    def _publish(self, resident: Resident, text: ModelText, evidence: Evidence | None) -> None:
        source, shape = resident.source, resident.description.shape
        model = served_model(source, self._loader.device, resident.description, text, evidence)
        prompts = PromptDesk(text.tokenizer, text.template, context_tokens=shape.max_seq, runner=self._runner)
        self._desk.publish(resident.generation, model, prompts)
        self._post(GenerationAdvanced(resident.generation, source.alias, _E.PUBLISH, shape, evidence))
        version = source.meta.get("package_version")
        self.board.note(
            source.alias,
            state=_S.READY.value,
            generation=resident.generation,
            package=source.digest,
            previous=source.previous,
            package_version=None if version is None else str(version),
            error=None,
        )

    # ---- what fits --------------------------------------------------------------------------------

    def _fit_together(self, resident: Resident, source: ModelSource) -> bool:
        """Whether the device may hold both: both packages and the runtime say so, and there is room."""
        claims = resident.source.co_resident and source.co_resident
        if not claims or CO_RESIDENCY not in resident.description.capabilities:
            return False
        return source.has_room_beside(self._memory())

    def _memory_beside(self, source: ModelSource) -> MemoryUse:
        """What the device will hold of others when this one is put there."""
        now = self._memory()
        stays = all(self._fit_together(each, source) for each in self._resident.values())
        return now if stays else MemoryUse(0, now.total_bytes)

    # ---- what is told -----------------------------------------------------------------------------

    def _finder(self) -> FindModel:
        if self._find is None:
            raise OperationRefused("this daemon's models do not come from a store")
        return self._find

    def _begin(self, source: ModelSource) -> GenerationId:
        self._loaded += 1
        alias = source.alias
        self.board.enter(alias)
        self.board.note(alias, phases_s={}, error=None)
        failed = self._failed.pop(alias, None)
        if failed is not None:
            self._post(GenerationAdvanced(failed, alias, _E.UNLOADED))
        return GenerationId(self._loaded)

    def _advance(
        self, generation: GenerationId, alias: str, step: GenerationEvent, *, drain_by_s: float | None = None
    ) -> None:
        self._post(GenerationAdvanced(generation, alias, step, drain_by_s=drain_by_s))
        if alias not in self._current and step in _STATE_AFTER:
            self.board.note(alias, state=_STATE_AFTER[step].value, generation=generation)

    @contextmanager
    def _giving_up(self, generation: GenerationId, alias: str) -> Iterator[None]:
        """Whatever ends the block early ends the generation."""
        try:
            yield
        except BaseException as error:
            self._fail(generation, alias, str(error) or type(error).__name__)
            raise

    def _fail(self, generation: GenerationId, alias: str, why: str) -> None:
        self._post(GenerationAdvanced(generation, alias, _E.GIVE_UP))
        self.board.note(alias, doing=None, error=why)
        if alias in self._current:  # what is served is not touched by it, and the failure is forgotten with it
            self._post(GenerationAdvanced(generation, alias, _E.UNLOADED))
        else:
            self._failed[alias] = generation
            self.board.note(alias, state=_S.FAILED.value)


_STATE_AFTER: Final = {_E.VALIDATE: _S.VALIDATING, _E.CONFIGURE: _S.CONFIGURING, _E.WARM: _S.WARMING}
