"""Soak: very many drawn worlds, in parallel processes; each is one seed and one mixture of faults.

Source: SPEC section 3–9; TigerBeetle's VOPR for the manner.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import get_context

import attrs
import structlog

from calculet_trio.sim.failure import Failure, try_scenario
from calculet_trio.sim.scenario import Scenario

CHUNK = 8
"""Worlds that a process is given at once: one takes tens of milliseconds."""


@attrs.frozen
class Tally:
    """What some worlds came to."""

    worlds: int
    virtual_s: float
    steps: int
    clients: Counter[str]
    failures: tuple[Failure, ...]

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.worlds + other.worlds,
            self.virtual_s + other.virtual_s,
            self.steps + other.steps,
            self.clients + other.clients,
            (*self.failures, *other.failures),
        )


NOTHING = Tally(0, 0.0, 0, Counter(), ())


def soak(*, seeds: Sequence[int], seconds: float, mixtures: Sequence[str], jobs: int) -> Iterator[Tally]:
    """Run every seed under every mixture, in ``jobs`` processes.

    Args:
        seeds: of the worlds.
        seconds: how long clients come in each.
        mixtures: of faults.
        jobs: processes.

    Yields:
        What a few worlds came to, as it becomes known.
    """
    scenarios = (
        Scenario(seed=seed, seconds=seconds, faults=faults, varied=True) for seed in seeds for faults in mixtures
    )
    # A fresh interpreter for each process: what is simulated must not depend on what its parent did before.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_quieten) as processes:
        running: set[Future[Tally]] = set()
        while True:
            while len(running) < 2 * jobs and (chunk := tuple(islice(scenarios, CHUNK))):
                running.add(processes.submit(run_some, chunk))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()


def run_some(scenarios: Sequence[Scenario]) -> Tally:
    """Run these worlds, one after the other."""
    tally = NOTHING
    for scenario in scenarios:
        found = try_scenario(scenario)
        if isinstance(found, Failure):
            tally += Tally(1, 0.0, 0, Counter(), (found,))
        else:
            tally += Tally(1, found.ended_s, found.steps, found.clients, ())
    return tally


def _quieten() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
