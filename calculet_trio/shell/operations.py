"""What operators may ask of the daemon. ``admin`` holds an `Operations` and nothing of the device.

Source: SPEC section 8, 15; API.md "Admin endpoints".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import attrs


class Report(Protocol):
    """Where a long operation says how far it is."""

    def __call__(self, line: str) -> None:
        """One line, for people; never waits."""

    def past_return(self) -> None:
        """From here on it cannot be cancelled: it is seen through, or undone by itself."""


class Unheard:
    """A report that nobody reads."""

    def __call__(self, line: str) -> None:
        """See `Report`."""

    def past_return(self) -> None:
        """See `Report`."""


@attrs.frozen(kw_only=True)
class ModelStatus:
    """One alias, whatever became of it.

    Args:
        alias: its name in requests.
        state: of its newest generation, as `calculet_trio.core.generation.GenerationState` words it.
        generation: that generation's number in this process; None before the first load.
        package: which package it is: its manifest's SHA-256, or None where there is none.
        package_version: what the package calls itself.
        doing: the load step under way, or None.
        phases_s: how long each finished step of its load took, in order.
        previous: the package that ``rollback`` would bring back, or None.
        downtime_s: how long the last swap left the alias without a model; 0 where the old one served on.
        error: why it failed, or None.
    """

    alias: str
    state: str
    generation: int | None = None
    package: str | None = None
    package_version: str | None = None
    doing: str | None = None
    phases_s: Mapping[str, float] = attrs.field(factory=dict)
    previous: str | None = None
    downtime_s: float | None = None
    error: str | None = None


class Operations(Protocol):
    """The operators' view of the daemon.

    Those that take a ``report`` are long: `calculet_trio.admin.jobs` runs one of them at a time, since all of them
    need the device. They raise `calculet_trio.errors.OperatorError` for what an operator must mend, and
    `calculet_trio.errors.OperationRefused` for what cannot be done now.

    **Cancellation** of a long one: takes effect between two steps; a begun device call is ended first.
    """

    def models(self) -> tuple[ModelStatus, ...]:
        """Every alias, at once."""

    async def load(self, alias: str, package: str | None, report: Report) -> Mapping[str, Any]:
        """Load a package of the store under the alias, or load its own again (None). Replaces what is served."""

    async def unload(self, alias: str, report: Report) -> Mapping[str, Any]:
        """Drain the alias's generation and free all it holds."""

    async def rollback(self, alias: str, report: Report) -> Mapping[str, Any]:
        """Load the package that was last good before the present one, verified again."""

    async def reset_device(self, report: Report) -> Mapping[str, Any]:
        """Quiesce, reset by the runtime's contract within the reset budget, prove it, go on."""

    async def trust_engines(self) -> Mapping[str, Any]:
        """Let new jobs use both engines again, whatever was doubted; returns what is put aside by that."""

    async def begin_drain(self) -> None:
        """What SIGTERM does: refuse what comes, let replies end, leave."""

    async def reload(self) -> Mapping[str, Any]:
        """What SIGHUP does: tenants' keys, weights and limits as the file has them now.

        Raises:
            calculet_trio.errors.ConfigurationRefused: the file is not valid; what was before stays.
        """

    async def trace(self, seconds: float) -> Mapping[str, Any]:
        """What the core hears and decides for ``seconds``, as a Chrome trace; no prompts, no text."""

    async def debug_dump(self, *, with_prompts: bool) -> Mapping[str, Any]:
        """Write what a defect's report needs into the dump directory; returns its path and size."""
