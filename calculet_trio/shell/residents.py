"""Residents: the generations that are on the device, and each one's way onto it and off again.

Source: SPEC section 8 (S §10–§12).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import attrs
import structlog
import trio

from calculet_trio.core.effects import Vacated
from calculet_trio.core.events import Event, FaultReason, GenerationAdvanced
from calculet_trio.core.evidence import Evidence
from calculet_trio.core.generation import GenerationEvent, GenerationState
from calculet_trio.errors import OperationFailed
from calculet_trio.ids import GenerationId
from calculet_trio.runtimes.port import ModelDescription
from calculet_trio.shell.blocking import BlockingRunner
from calculet_trio.shell.front_desk import FrontDesk
from calculet_trio.shell.loading import Loader, LoadPhase, ModelSource, ModelText, Prepared, or_else
from calculet_trio.shell.model_board import ModelBoard, served_model
from calculet_trio.shell.operations import Report
from calculet_trio.shell.prompts import PromptDesk

_log = structlog.get_logger(__name__)

_E, _S = GenerationEvent, GenerationState


@attrs.frozen
class Resident:
    """A generation that is on the device."""

    generation: GenerationId
    source: ModelSource
    description: ModelDescription


class Residents:
    """What is on the device; when it comes and goes is the manager's business.

    Attributes:
        board: how far each alias is.
        current: what each alias means now.

    Args:
        loader: does the steps.
        post: tells the core.
        desk: where a loaded model becomes servable.
        runner: how the text side's blocking calls run.
    """

    def __init__(
        self, loader: Loader, *, post: Callable[[Event], None], desk: FrontDesk, runner: BlockingRunner
    ) -> None:
        self._loader = loader
        self._post = post
        self._desk = desk
        self._runner = runner
        self.board = ModelBoard()
        self.current: dict[str, Resident] = {}
        self._resident: dict[GenerationId, Resident] = {}
        self._vacated: dict[GenerationId, trio.Event] = {}
        self._overdue: set[GenerationId] = set()
        self._hands = trio.Lock()  # on the device: theirs for a step, and those of a reset that puts models back
        self._failed: dict[str, GenerationId] = {}
        self._loaded = 0

    def __iter__(self) -> Iterator[Resident]:
        """Those that are on the device, replaced ones that still drain included."""
        return iter(list(self._resident.values()))

    def __contains__(self, generation: object) -> bool:
        """Whether it is on the device, and was open to requests."""
        return generation in self._resident

    def vacated(self, effect: Vacated) -> None:
        """The core says that a draining generation holds nothing any more."""
        if effect.overdue:
            self._overdue.add(effect.generation)
        self._vacated.setdefault(effect.generation, trio.Event()).set()

    async def restore(self, reset: Callable[[], Awaitable[FaultReason | None]]) -> FaultReason | None:
        """Reset the device, put every model back under its generation, and prove it.

        A model that is being put there or taken off is seen through first: it would be gone in the middle of it.

        Args:
            reset: returns why the device must not be used, or None.

        Returns:
            What ``reset`` did; `FaultReason.GOLDEN_MISMATCH` if a model does not say what its package recorded; None
            if all do.

        **Cancellation**: between two steps; a begun device call is ended first.
        """
        # No turn is taken: whoever has it may wait for a drain, which goes on when this has put the models back.
        async with self._hands:
            failed = await reset()
            if failed is not None:
                return failed
            for resident in self:
                golden = await self._loader.bring_back(resident.generation, resident.source)
                if not golden.passed:
                    _log.error("golden_mismatch", model=resident.source.alias, detail=golden.detail)
                    return FaultReason.GOLDEN_MISMATCH
        return None

    # ---- a generation's way --------------------------------------------------------------------------

    def begin(self, source: ModelSource) -> GenerationId:
        """A new generation of the alias; its failed one before is forgotten."""
        self._loaded += 1
        alias = source.alias
        self.board.enter(alias)
        self.board.note(alias, phases_s={}, error=None)
        failed = self._failed.pop(alias, None)
        if failed is not None:
            self._post(GenerationAdvanced(failed, alias, _E.UNLOADED))
        return GenerationId(self._loaded)

    def advance(
        self, generation: GenerationId, alias: str, step: GenerationEvent, *, drain_by_s: float | None = None
    ) -> None:
        """It takes a step: the core is told, and the board shows it."""
        self._post(GenerationAdvanced(generation, alias, step, drain_by_s=drain_by_s))
        if alias not in self.current and step in _STATE_AFTER:
            self.board.note(alias, state=_STATE_AFTER[step].value, generation=generation)

    @contextmanager
    def giving_up(self, generation: GenerationId, alias: str) -> Iterator[None]:
        """Whatever ends the block early ends the generation."""
        try:
            yield
        except BaseException as error:
            self.fail(generation, alias, str(error) or type(error).__name__)
            raise

    def fail(self, generation: GenerationId, alias: str, why: str) -> None:
        """It has come to nothing."""
        self._post(GenerationAdvanced(generation, alias, _E.GIVE_UP))
        self.board.note(alias, doing=None, error=why)
        if alias in self.current:  # what is served is not touched by it, and the failure is forgotten with it
            self._post(GenerationAdvanced(generation, alias, _E.UNLOADED))
        else:
            self._failed[alias] = generation
            self.board.note(alias, state=_S.FAILED.value)

    async def bring_up(self, generation: GenerationId, prepared: Prepared, report: Report) -> None:
        """Configure, inspect, prove and publish; whatever fails takes it off the device again."""
        source = prepared.source
        noting = self.board.noting(source.alias, report)

        async def put_there() -> None:
            description = await self._loader.configure(generation, source, noting)
            self.advance(generation, source.alias, _E.WARM)
            evidence = await self._loader.prove(generation, prepared, noting)
            resident = Resident(generation, source, description)
            await self._loader.publish(source, partial(self._publish, resident, prepared.text, evidence), noting)

        async with self._hands:
            self.advance(generation, source.alias, _E.CONFIGURE)
            await or_else(put_there, partial(self._loader.take_off, generation))

    async def retire(self, resident: Resident, report: Report, *, within_s: float) -> None:
        """Drain a generation, take it off the device, and forget it.

        Raises:
            calculet_trio.errors.OperationFailed: the device is not certain to be rid of it.
        """
        alias, generation = resident.source.alias, resident.generation
        noting = self.board.noting(alias, report)
        is_replaced = self.current.get(alias) is not resident
        with self._loader.phase(LoadPhase.CLOSE, alias, noting):
            drained = self._vacated.setdefault(generation, trio.Event())
            self.advance(generation, alias, _E.DRAIN, drain_by_s=trio.current_time() + within_s)
            if not is_replaced:
                del self.current[alias]
                self.board.note(alias, state=_S.DRAINING.value)
        with self._loader.phase(LoadPhase.DRAIN, alias, noting):
            await drained.wait()
        del self._vacated[generation]
        is_overdue = generation in self._overdue
        self._overdue.discard(generation)
        self.advance(generation, alias, _E.GIVE_UP if is_overdue else _E.UNLOAD)
        async with self._hands:
            certain = await self._loader.take_off(generation)
        self._desk.retire(generation)
        del self._resident[generation]
        self.advance(generation, alias, _E.UNLOADED)
        if not is_replaced:
            self.board.note(alias, state=_S.UNLOADED.value, package=None, package_version=None)
        _log.info("model_unloaded", model=alias, generation=generation, overdue=is_overdue)
        if not certain:
            raise OperationFailed(
                f"the device is not certain to be rid of {alias}",
                hint="calculet-trio device reset, or restart the daemon",
            )

    def _publish(self, resident: Resident, text: ModelText, evidence: Evidence | None) -> None:
        """What may fail comes first; then the alias moves, for everybody who has to do with it."""
        source, shape = resident.source, resident.description.shape
        model = served_model(source, self._loader.device, resident.description, text, evidence)
        prompts = PromptDesk(text.tokenizer, text.template, context_tokens=shape.max_seq, runner=self._runner)
        self._resident[resident.generation] = self.current[source.alias] = resident
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


_STATE_AFTER: Final = {_E.VALIDATE: _S.VALIDATING, _E.CONFIGURE: _S.CONFIGURING, _E.WARM: _S.WARMING}
