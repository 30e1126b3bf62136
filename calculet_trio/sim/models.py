"""The models of a world: aliases, the packages that may stand behind each, and operators who exchange them.

Each package has the board's numbers and a voice of its own, so that a token of the wrong one is seen by its client.

Source: SPEC section 8; S §13.1.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio

from calculet_trio.core.evidence import Evidence
from calculet_trio.core.policy import ResidencyPolicy, ResidencyStrategy
from calculet_trio.errors import CalculetError, DeviceLost, PackageError
from calculet_trio.runtimes.device_model import DeviceModel
from calculet_trio.runtimes.port import DeviceInfo
from calculet_trio.shell.loading import ModelSource, ModelText
from calculet_trio.shell.operations import Operations, Unheard
from calculet_trio.sim.population import ALIAS
from calculet_trio.text.byte_tokenizer import ByteTokenizer

LETTERS: Final = "ab"
"""The packages of each alias; the first is what it begins with."""
DAMAGED: Final = "x"
"""One that no load may accept."""


class Act(Enum):
    """What an operator does."""

    LOAD = "load"
    UNLOAD = "unload"
    ROLLBACK = "rollback"


@attrs.frozen
class Operation:
    """One call of an operator.

    Args:
        moment_s: when.
        act: what.
        alias: of which model.
        letter: which of its packages is loaded; None for the present one, again.
    """

    moment_s: float
    act: Act
    alias: str
    letter: str | None = None


@attrs.frozen(kw_only=True)
class Models:
    """Everything about a world's models.

    Args:
        aliases: those that clients ask for; several share the board by time.
        dwell_s: how long each stays at least.
        configure_s: what putting one on the board takes.
        operations: in order of their moments.
    """

    aliases: tuple[str, ...] = (ALIAS,)
    dwell_s: float = 60.0
    configure_s: float = 0.0
    operations: tuple[Operation, ...] = ()

    @property
    def are_exchanged(self) -> bool:
        """Whether another model than the first may ever be on the board."""
        return len(self.aliases) > 1 or bool(self.operations)

    @property
    def residency(self) -> ResidencyPolicy:
        """How they share the board."""
        strategy = ResidencyStrategy.TIME_SHARING if len(self.aliases) > 1 else ResidencyStrategy.AUTO
        return ResidencyPolicy(strategy=strategy, dwell_s=self.dwell_s)

    def voices(self) -> dict[str, tuple[int, ...]]:
        """By alias, those that may answer for it."""
        width = len(LETTERS)
        return {alias: tuple(range(width * place, width * (place + 1))) for place, alias in enumerate(self.aliases)}

    def on(self, board: DeviceModel) -> dict[Path, DeviceModel]:
        """The board's numbers with each package's voice."""
        return {
            _package(alias, letter): attrs.evolve(board, voice=voice, configure_s=self.configure_s)
            for alias, voices in self.voices().items()
            for letter, voice in zip(LETTERS, voices, strict=True)
        }


class PackageShelf:
    """Where one daemon of a world finds its packages.

    Args:
        models: see there.
        board: whose shape they have.
        evidence: what each has been shown to do.
    """

    def __init__(self, models: Models, board: DeviceModel, evidence: Callable[[DeviceInfo], Evidence | None]) -> None:
        self._models = models
        self._board = board
        self._evidence = evidence
        self._served: dict[str, list[str]] = {}

    def first_of(self, alias: str) -> ModelSource:
        """What the alias begins with."""
        return self._source(alias, LETTERS[0])

    def find(self, alias: str, package: str | None) -> ModelSource:
        """See `calculet_trio.shell.model_manager.FindModel`."""
        if package is not None:
            if package not in (*LETTERS, DAMAGED):
                raise PackageError(f"there is no package {package}")
            return self._source(alias, package)
        before = self._served.get(alias, [])[:-1]
        if not before:
            raise PackageError(f"nothing was served under {alias} before")
        return self._source(alias, before[-1])

    def _source(self, alias: str, letter: str) -> ModelSource:
        return ModelSource(
            alias=alias,
            package=_package(alias, letter),
            verify=partial(_verify, letter),
            open_text=lambda: ModelText(ByteTokenizer(), None),
            meta={},
            shape=self._board.shape(),
            evidence=self._evidence,
            served=partial(self._serve, alias, letter),
        )

    def _serve(self, alias: str, letter: str) -> None:
        served = self._served.setdefault(alias, [])
        if served[-1:] != [letter]:
            del served[:-1]
            served.append(letter)


async def operate(
    operations: Operations, stop: trio.Event, due: list[Operation], *, task_status: trio.TaskStatus[None]
) -> None:
    """In place of the admin socket: do what is due, each at its moment or as soon as the one before has ended.

    Args:
        operations: the daemon's.
        stop: the daemon has drained.
        due: taken from its front; what falls between two daemons is done by the next.
        task_status: told at once.
    """
    task_status.started()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_do_all, operations, due)
        await stop.wait()
        nursery.cancel_scope.cancel()


async def _do_all(operations: Operations, due: list[Operation]) -> None:
    report = Unheard()
    while due:
        await trio.sleep_until(due[0].moment_s)
        operation = due.pop(0)
        try:
            if operation.act is Act.LOAD:
                await operations.load(operation.alias, operation.letter, report)
            elif operation.act is Act.UNLOAD:
                await operations.unload(operation.alias, report)
            else:
                await operations.rollback(operation.alias, report)
        except DeviceLost:
            raise
        except CalculetError:
            pass  # refused in words: what matters is what clients hear


def _package(alias: str, letter: str) -> Path:
    return Path(alias, letter)


def _verify(letter: str) -> None:
    if letter == DAMAGED:
        raise PackageError("the package is damaged")
