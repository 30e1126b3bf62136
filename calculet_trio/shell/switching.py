"""Switching: gives the device to the alias that the core wants, one after the other.

Source: SPEC section 8 (S §13.1: time-sharing one board); `calculet_trio.core.residency` decides.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from calculet_trio.core.effects import Wanted
from calculet_trio.core.events import Event, SwitchFailed
from calculet_trio.errors import CalculetError, DeviceLost
from calculet_trio.shell.model_manager import ModelManager

_log = structlog.get_logger(__name__)


class Switching:
    """A task that does what `Wanted` asks for; the core asks for one at a time.

    Args:
        models: does it.
        post: tells the core what could not be done.
    """

    def __init__(self, models: ModelManager, post: Callable[[Event], None]) -> None:
        self._models = models
        self._post = post
        self._wake = trio.Event()
        self._alias: str | None = None

    def begin(self, effect: Wanted) -> None:
        """The core wants this alias; never waits."""
        self._alias = effect.alias
        self._wake.set()

    async def run(self) -> None:
        """Switch whenever it is asked for, for ever.

        **Cancellation**: see `ModelManager.load`.
        """
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            alias, self._alias = self._alias, None
            if alias is not None:
                await self._switch(alias)

    async def _switch(self, alias: str) -> None:
        try:
            await self._models.switch(alias)
        except DeviceLost:
            raise  # a fresh process is to begin
        except CalculetError as error:
            _log.error("switch_failed", model=alias, error=str(error))
            self._post(SwitchFailed(alias))
