"""The order of timeouts: each is longer than what it waits for, so that each notices what the one before let through.

    driver's dma_timeout_ms  <  any job's bound;   the longest job's bound  <  watchdog  <  drain  <  TimeoutStopSec

A job's bound grows with its length, so the order depends on the model: on the longest job that could be admitted.
``watchdog_s`` and ``drain_s`` of null follow it. Of what the driver and the service manager say only that is compared
which could be read.

Source: SPEC section 9.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from calculet_trio.errors import ConfigurationRefused
from calculet_trio.settings.surface import TimeoutSettings

APART_S: Final = 30.0
"""Between two timeouts of which one was derived from the other: a busy machine may be late by some seconds."""
NEVER_S: Final = float("inf")


@attrs.frozen
class Disorder:
    """Two timeouts in the wrong order; each with its name and its value, for people."""

    shorter: str
    longer: str

    def __str__(self) -> str:
        return f"{self.shorter} must be less than {self.longer}"


@attrs.frozen(kw_only=True)
class TimeoutOrder:
    """The timeouts of one service with one model.

    Args:
        settings: as configured.
        longest_job_s: after which the longest job is given up.
        dma_s: when the driver gives a transfer up, `NEVER_S` for never; None where nobody can say, or there is no
            driver.
        stop_s: ``TimeoutStopSec``; None where nobody can say.
    """

    settings: TimeoutSettings
    longest_job_s: float
    dma_s: float | None = None
    stop_s: float | None = None

    @property
    def watchdog_s(self) -> float:
        """How long nothing may go on before the process ends itself."""
        configured_s = self.settings.watchdog_s
        return self.longest_job_s + APART_S if configured_s is None else configured_s

    @property
    def drain_s(self) -> float:
        """From SIGTERM until the device is closed: a job may begin when the last reply is about to be cut."""
        configured_s = self.settings.drain_s
        if configured_s is not None:
            return configured_s
        last_job_s = self.settings.streams_s + self.longest_job_s
        return max(self.watchdog_s, last_job_s, self.settings.write_stall_s) + APART_S

    def disorders(self) -> Iterator[Disorder]:
        """Every pair in the wrong order."""
        job = ("timeouts.job_s", self.settings.job_s)
        longest = ("the bound of the longest job (job_s, job_per_token_ms and the model's context)", self.longest_job_s)
        watchdog = ("timeouts.watchdog_s", self.watchdog_s)
        drain = ("timeouts.drain_s", self.drain_s)
        pairs = [(longest, watchdog), (watchdog, drain)]
        if self.dma_s is not None:
            pairs.insert(0, (("the driver's dma_timeout_ms", self.dma_s), job))
        if self.stop_s is not None and self.settings.drain_s is not None:
            # A derived drain time needs no TimeoutStopSec: the daemon asks the service manager for what it needs.
            pairs.append((drain, ("the unit's TimeoutStopSec", self.stop_s)))
        for (shorter, shorter_s), (longer, longer_s) in pairs:
            if not shorter_s < longer_s:
                yield Disorder(f"{shorter} ({_shown(shorter_s)})", f"{longer} ({_shown(longer_s)})")

    def refuse_disorder(self) -> None:
        """Raises ConfigurationRefused with every pair that is in the wrong order, if there is one."""
        found = [str(disorder) for disorder in self.disorders()]
        if found:
            raise ConfigurationRefused(
                f"the timeouts are in the wrong order: {'; '.join(found)}",
                hint="watchdog_s and drain_s of null follow the longest job; `calculet-trio doctor --only timeouts`",
            )


def _shown(seconds: float) -> str:
    return "never" if seconds == NEVER_S else f"{seconds:g} s"
