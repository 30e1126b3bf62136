"""The code of the two surfaces, imported beside a model's load: a web framework takes longer to import than a core.

Their sockets are there before it, so that a port that is taken is found out first, and nobody who connects is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import trio

T = TypeVar("T")

_ONE: Final = trio.CapacityLimiter(1)
"""Both import the same framework, whose modules import one another in circles: never in two threads at once."""


async def imported(code: Callable[[], T]) -> T:
    """What ``code`` imports and returns, in a thread of its own.

    **Cancellation**: atomic; imports that have begun are ended.
    """
    return await trio.to_thread.run_sync(code, limiter=_ONE)
