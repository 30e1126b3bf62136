"""ModelManager: which model is put on the device when: loads, swaps, unloads and the way back.

Where the device can hold the old and the new model, the new one is proven first, and a swap fails nobody. Where it
cannot, the old one is drained and taken off once the new package has been checked; what fails after that brings the
old package back, and the time in between is measured and shown.

Aliases that share the device by time are *parked*: known, wanted by `calculet_trio.core.residency` when somebody waits
for them, and then loaded in the place of whoever is there.

Source: SPEC section 8 (S §10–§13).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final

import attrs
import structlog
import trio

from calculet_trio.core.events import Event, ModelExpected, ModelForgone, ModelParked, SwitchFailed
from calculet_trio.core.generation import GenerationEvent
from calculet_trio.core.policy import ResidencyStrategy
from calculet_trio.errors import CalculetError, ModelNotFound, OperationFailed, OperationRefused
from calculet_trio.ids import GenerationId
from calculet_trio.packages.capacity import CapacityPlan
from calculet_trio.runtimes.port import MemoryUse
from calculet_trio.shell.front_desk import FrontDesk
from calculet_trio.shell.loading import Loader, LoadStep, ModelSource, Prepared, or_else
from calculet_trio.shell.model_board import ModelBoard, parked_model
from calculet_trio.shell.operations import Report, Unheard
from calculet_trio.shell.predecessors import Predecessors
from calculet_trio.shell.residents import Resident, Residents

CO_RESIDENCY: Final = "co_residency"

_log = structlog.get_logger(__name__)

_E = GenerationEvent

UNHEARD: Final = Unheard()

FindModel = Callable[[str, str | None], ModelSource]
"""The package of the store that is meant for an alias: a named one, or (None) the one that was good before."""


class ModelManager:
    """The models of one device.

    Attributes:
        residents: what is on the device.

    Args:
        loader: does the steps.
        residents: see above.
        memory: what the device holds now.
        post: tells the core.
        desk: where a loaded model becomes servable.
        drain_s: how long open replies may go on before their model is taken away.
        strategy: how aliases share the device.
        turn_s: for how long open replies may go on where another alias's turn has come.
        find: finds packages for operators; None where there is no store.
    """

    def __init__(
        self,
        loader: Loader,
        residents: Residents,
        *,
        memory: Callable[[], MemoryUse],
        post: Callable[[Event], None],
        desk: FrontDesk,
        drain_s: float,
        strategy: ResidencyStrategy = ResidencyStrategy.AUTO,
        turn_s: float = 0.0,
        find: FindModel | None = None,
    ) -> None:
        self._loader = loader
        self.residents = residents
        self._memory = memory
        self._post = post
        self._desk = desk
        self._drain_s = drain_s
        self._strategy = strategy
        self._is_by_time = strategy is ResidencyStrategy.TIME_SHARING
        self._turn_s = turn_s
        self._find = find
        self._parked: dict[str, ModelSource] = {}
        self._predecessors = Predecessors(residents.board)
        self._turn = trio.Lock()  # one load or unload at a time
        self._is_leaving = False

    @property
    def board(self) -> ModelBoard:
        """How far each alias is."""
        return self.residents.board

    @property
    def step(self) -> LoadStep | None:
        """The step of a load that is under way; None while none is."""
        return self._loader.step

    # ---- what may be asked ------------------------------------------------------------------------

    async def load(self, source: ModelSource, report: Report = UNHEARD) -> Mapping[str, Any]:
        """Bring a package to Ready under its alias; replaces what the alias means now.

        Returns:
            ``generation``, with a swap ``downtime_s``: how long new requests had to wait for the model, and, if it is
            not on record as good, ``unrecorded``: why.

        Raises:
            calculet_trio.errors.PackageError: the package is damaged, does not fit the device, or its
                golden run does not reproduce; nothing is published, and what was served is served (again).
            calculet_trio.errors.OperationFailed: it serves, and the device is not certain to be rid of the one before.

        **Cancellation**: between two steps, and not after the device has been touched: from there on it is seen
        through, or undone.
        """
        alias, began_s = source.alias, trio.current_time()
        try:
            with self._desk.loading(alias):
                generation = self.residents.begin(source)
                with self.residents.giving_up(generation, alias):
                    self.residents.advance(generation, alias, _E.VALIDATE)
                    prepared = await self._prepare(source, report)
                async with self._its_turn(generation, prepared, report):
                    downtime_s, unrecorded = await self._put(generation, prepared, report)
        except BaseException:
            self._let_go(source)
            raise
        load_s, downtime_s = round(trio.current_time() - began_s, 3), round(downtime_s, 3)
        _log.info("model_ready", model=alias, load_s=load_s, downtime_s=downtime_s)
        result = {"generation": generation, "downtime_s": downtime_s}
        return result if unrecorded is None else {**result, "unrecorded": unrecorded}

    async def load_named(self, alias: str, package: str | None, report: Report) -> Mapping[str, Any]:
        """An operator's load: see `load`; ``package`` None is the alias's present one, again.

        Raises:
            calculet_trio.errors.ModelNotFound: no such alias, and no package to begin it with.
            calculet_trio.errors.OperationRefused: the daemon is leaving.
            calculet_trio.errors.OperationFailed: it serves, and a part of the work that was to follow has failed.
        """
        self._require_staying()
        current = self.residents.current.get(alias)
        source = self._parked.get(alias) if current is None else current.source
        if package is None and source is not None:
            return _on_record(await self.load(source, report))
        if package is None and alias not in self.board:
            raise ModelNotFound(alias, served=tuple(status.alias for status in self.board.statuses()))
        return await self._load_found(partial(self._finder(), alias, package or alias), alias, report)

    async def roll_back(self, alias: str, report: Report) -> Mapping[str, Any]:
        """Load the package that was last good before the present one, verified again. See `load_named`."""
        self._require_staying()
        if alias not in self.board:
            raise ModelNotFound(alias, served=tuple(status.alias for status in self.board.statuses()))
        before = self._predecessors.of(alias)
        if before is not None:
            return _on_record(await self.load(before, report))
        return await self._load_found(partial(self._finder(), alias, None), alias, report)

    async def unload(self, alias: str, report: Report) -> Mapping[str, Any]:
        """Drain the alias's generation and free all it holds; one that is parked is only forgotten.

        Raises:
            calculet_trio.errors.OperationRefused: nothing is loaded there.
            calculet_trio.errors.OperationFailed: the device is not certain to be rid of it.

        **Cancellation**: before the drain, and not after it has begun.
        """
        async with self._turn:
            current = self.residents.current.get(alias)
            parked = self._parked.pop(alias, None)
            if current is None and parked is None:
                raise OperationRefused(f"{alias} is not loaded")
            await _last_chance(report)
            before = self._memory()
            if parked is not None:
                self._post(ModelForgone(alias))  # first, so that nobody waits for its next turn
            try:
                if current is not None:
                    await self.residents.retire(current, report, within_s=self._drain_s)
            finally:
                self._desk.forget(alias)
                for source in {id(each): each for each in (parked, current and current.source) if each}.values():
                    self._let_go(source)
            freed_bytes = before.used_bytes - self._memory().used_bytes
        return {"generation": None if current is None else current.generation, "freed_bytes": freed_bytes}

    def leave(self) -> None:
        """The daemon is leaving: whoever has its turn now has the last one."""
        self._is_leaving = True

    def _require_staying(self) -> None:
        if self._is_leaving:
            raise OperationRefused("the daemon is leaving: it loads no model any more")

    # ---- sharing by time ----------------------------------------------------------------------------

    def park(self, source: ModelSource) -> None:
        """The alias shares the device by time: from now on it is brought when somebody waits for it."""
        before = self._parked.get(source.alias)
        self._parked[source.alias] = source
        self.board.enter(source.alias)
        if before is None and source.shape is not None:
            self._desk.park(parked_model(source, source.shape))
        self._post(ModelParked(source.alias))
        if before is not None:
            self._let_go(before)

    async def switch(self, alias: str) -> None:
        """Give the device to a parked alias, whoever has it now. See `load`; one that is there already stays."""
        async with self._turn:
            pass  # whoever is at it may bring the same one
        source = self._parked.get(alias)
        if source is not None and alias not in self.residents.current:
            await self.load(source)

    @asynccontextmanager
    async def _its_turn(self, generation: GenerationId, prepared: Prepared, report: Report) -> AsyncIterator[None]:
        """Nobody else configures the device; a load that is cancelled before that comes to nothing.

        **Cancellation**: until it has its turn.
        """
        alias = prepared.source.alias
        with self._text_of(generation, prepared):
            with self.residents.giving_up(generation, alias):
                await self._turn.acquire()
            try:
                with self.residents.giving_up(generation, alias):
                    if self._is_leaving:  # what was cut short before may be on the device still; cancelled soon
                        await trio.sleep_forever()
                    await _last_chance(report)
                yield
            finally:
                self._turn.release()

    @contextmanager
    def _text_of(self, generation: GenerationId, prepared: Prepared) -> Iterator[None]:
        """Whatever ends the block early lets the text side go, unless the generation serves by then."""
        try:
            yield
        except BaseException:
            if generation not in self.residents:
                prepared.text.close()
            raise

    # ---- the ways of a generation -------------------------------------------------------------------

    async def _load_found(self, find: Callable[[], ModelSource], alias: str, report: Report) -> Mapping[str, Any]:
        with self.board.entering(alias):
            source = await self._loader.resolve(find, alias, self.board.noting(alias, report))
        return _on_record(await self.load(source, report))

    async def _prepare(self, source: ModelSource, report: Report) -> Prepared:
        """Everything that needs no device, with the room that there will be when the model is put there."""
        used, beside = self._memory(), [each.source for each in self.residents]
        if not all(self._fit_together(each, source) for each in self.residents):
            used, beside = attrs.evolve(used, used_bytes=0), []
        return await self._loader.prepare(source, used, _plans(beside), self.board.noting(source.alias, report))

    async def _put(self, generation: GenerationId, prepared: Prepared, report: Report) -> tuple[float, str | None]:
        """Put a prepared package on the device in the present one's place, and on record as good.

        Returns:
            For how long there was no model under its alias, and why it is not on record; None where it is.
        """
        source = prepared.source
        old = self.residents.current.get(source.alias)
        in_the_way = [each for each in self.residents if not self._fit_together(each, source)]
        others = sorted({each.source.alias for each in in_the_way if each.source.alias != source.alias})
        if others and not self._is_by_time:
            why = f"the device holds {', '.join(others)}, and can hold one model"
            self.residents.fail(generation, source.alias, why)
            raise OperationRefused(
                why, hint=f"calculet-trio models unload {' '.join(others)}, or residency.strategy: time_sharing"
            )
        if old is not None and in_the_way:
            downtime_s = await self._swap(old, generation, prepared, report)
            self._predecessors.followed(old.source, source)
            return downtime_s, await self._retain(source, report)
        began_s = trio.current_time()
        with self.residents.giving_up(generation, source.alias):
            for each in in_the_way:
                await self.residents.retire(each, report, within_s=self._turn_s)
            await self._bring_up(generation, prepared, report)
        if in_the_way:
            switch_s = round(trio.current_time() - began_s, 3)
            _log.info("device_switched", model=source.alias, before=others, switch_s=switch_s)
        self._predecessors.followed(None if old is None else old.source, source)
        # The one before may take long to leave, and not leave as it should: the new one serves, and is good.
        unrecorded = await self._retain(source, report)
        if old is not None:
            try:
                await self.residents.retire(old, report, within_s=self._drain_s)
            finally:
                self._let_go(old.source)
        return 0.0, unrecorded

    async def _retain(self, source: ModelSource, report: Report) -> str | None:
        """Put it on record as good; why that could not be done. It serves all the same."""
        try:
            await self._loader.retain(source, self.board.noting(source.alias, report))
        except CalculetError as error:
            _log.warning("served_not_recorded", model=source.alias, error=str(error))
            why = f"{source.alias} serves, but it is not on record as good: {error}"
            self.board.note(source.alias, doing=None, error=why)
            return why
        return None

    async def _swap(self, old: Resident, generation: GenerationId, prepared: Prepared, report: Report) -> float:
        """Only one fits: the old one is drained first, and comes back if the new one does not come up."""
        alias = prepared.source.alias
        if alias not in self._parked:
            self._post(ModelExpected(alias))
        closed_s = trio.current_time()

        async def exchange() -> None:
            with self.residents.giving_up(generation, alias):
                await self.residents.retire(old, report, within_s=self._drain_s)
                await self._bring_up(generation, prepared, report)

        try:
            await or_else(exchange, partial(self._bring_old_back, old, report))
        finally:
            if alias not in self.residents.current and alias in self._parked:
                self._post(SwitchFailed(alias))
            elif alias not in self.residents.current:
                self._post(ModelForgone(alias))
                self._desk.forget(alias)
            self._let_go(old.source)
            downtime_s = trio.current_time() - closed_s
            self.board.note(alias, downtime_s=round(downtime_s, 3))
        return downtime_s

    async def _bring_up(self, generation: GenerationId, prepared: Prepared, report: Report) -> None:
        await self.residents.bring_up(generation, prepared, report)
        if self._is_by_time:
            self.park(prepared.source)

    async def _bring_old_back(self, old: Resident, report: Report) -> None:
        """The new package failed after the old one had left: the old one is loaded again."""
        alias = old.source.alias
        report(f"bringing the package before back under {alias}")
        failed = self.board[alias].error
        again = self.residents.begin(old.source)
        with self.residents.giving_up(again, alias):
            self.residents.advance(again, alias, _E.VALIDATE)
            prepared = await self._prepare(old.source, report)
            with self._text_of(again, prepared):
                await self.residents.bring_up(again, prepared, report)
        self.board.note(alias, error=f"the package that was to replace it failed: {failed}")
        _log.warning("old_package_is_back", model=alias, generation=again)

    def _let_go(self, source: ModelSource) -> None:
        """Its package need not be kept any more, unless the same one is on the device or parked."""
        kept = (*(each.source for each in self.residents), *self._parked.values())
        if source.released is not None and all(each.released != source.released for each in kept):
            source.released()

    # ---- what fits --------------------------------------------------------------------------------

    def _fit_together(self, resident: Resident, source: ModelSource) -> bool:
        """Whether the device may hold both: both packages and the runtime say so, and there is room."""
        is_one_alias = self._strategy is ResidencyStrategy.SINGLE and resident.source.alias != source.alias
        if self._is_by_time or is_one_alias or not (resident.source.co_resident and source.co_resident):
            return False
        if CO_RESIDENCY not in resident.description.capabilities:
            return False
        return source.has_room_beside(self._memory(), _plans(each.source for each in self.residents))

    # ---- what is told -----------------------------------------------------------------------------

    def _finder(self) -> FindModel:
        if self._find is None:
            raise OperationRefused("this daemon's models do not come from a store")
        return self._find


def _on_record(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a load came to; an operator's has failed where it left no record that a rollback could come back to."""
    if "unrecorded" in result:
        raise OperationFailed(result["unrecorded"], hint="mend that, and do the same again")
    return result


def _plans(sources: Iterable[ModelSource]) -> tuple[CapacityPlan, ...]:
    return tuple(source.plan for source in sources if source.plan is not None)


async def _last_chance(report: Report) -> None:
    """The device is about to be touched: what was cancelled ends here, and nothing is cancelled after it."""
    await trio.lowlevel.checkpoint_if_cancelled()
    report.past_return()
