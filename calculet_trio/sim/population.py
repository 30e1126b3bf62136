"""Populations: who comes, how much they ask for, and how badly they behave.

Source: SPEC section 4; ``shared/traces`` for recorded ones.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Final, Protocol

import attrs
import numpy as np

from calculet_trio.errors import ConfigurationRefused

ALIAS: Final = "m"
"""The only model of most worlds."""


@attrs.frozen(kw_only=True)
class Visit:
    """One client's request.

    Args:
        arrival_s: when it comes.
        tenant: whose.
        prompt_tokens: length of its prompt.
        output_tokens: tokens it asks for.
        patience_s: after so long it leaves; None if it waits for the end.
        read_pause_s: it reads so slowly: a pause after each output.
        deadline_s: its own deadline; None for its tenant's.
        alias: the model that it asks for.
        turns: requests in all: each after the first says again what was said, and as many tokens more.
        think_s: the pause before each of these.
    """

    arrival_s: float
    tenant: str
    prompt_tokens: int
    output_tokens: int
    patience_s: float | None = None
    read_pause_s: float = 0.0
    deadline_s: float | None = None
    alias: str = ALIAS
    turns: int = 1
    think_s: float = 0.0


class Population(Protocol):
    """A stream of visits, in order of arrival."""

    def visits(self, rng: np.random.Generator) -> Iterator[Visit]:
        """All that will come; endless is allowed, the world stops listening at its end."""


@attrs.frozen(kw_only=True)
class Poisson:
    """Independent arrivals with log-normal lengths; some clients misbehave.

    Args:
        per_s: arrivals a second, over all tenants.
        tenants: names; the first sends half of everything.
        prompt_median: tokens.
        output_median: tokens.
        spread: sigma of the logarithms.
        longest_prompt: tokens.
        misbehaving: share that leaves early, reads slowly or has a short deadline of its own.
        aliases: the models that they ask for, each as often as the others.
        chatty: share that comes back with its conversation, two or three times, after a second or so.
    """

    per_s: float
    tenants: tuple[str, ...] = ("a", "b", "c")
    prompt_median: float = 60.0
    output_median: float = 60.0
    spread: float = 0.8
    longest_prompt: int = 2000
    misbehaving: float = 0.3
    aliases: tuple[str, ...] = (ALIAS,)
    chatty: float = 0.0

    def visits(self, rng: np.random.Generator) -> Iterator[Visit]:
        now = 0.0
        shares = np.ones(len(self.tenants))
        shares[0] = max(1, len(self.tenants) - 1)
        shares /= shares.sum()
        while True:
            now += rng.exponential(1.0 / self.per_s)
            fault = int(rng.integers(3)) if rng.random() < self.misbehaving else None
            is_chatty = self.chatty > 0 and rng.random() < self.chatty
            yield Visit(
                arrival_s=now,
                tenant=self.tenants[int(rng.choice(len(self.tenants), p=shares))],
                prompt_tokens=self._length(rng, self.prompt_median, self.longest_prompt),
                output_tokens=self._length(rng, self.output_median, 4096),
                patience_s=float(rng.exponential(3.0)) if fault == 0 else None,
                read_pause_s=float(rng.exponential(0.2)) if fault == 1 else 0.0,
                deadline_s=float(rng.exponential(10.0)) + 0.01 if fault == 2 else None,
                alias=self.aliases[int(rng.integers(len(self.aliases))) if len(self.aliases) > 1 else 0],
                turns=int(rng.integers(3, 5)) if is_chatty else 1,
                think_s=float(rng.exponential(1.0)) if is_chatty else 0.0,
            )

    def _length(self, rng: np.random.Generator, median: float, longest: int) -> int:
        return int(min(longest, max(1.0, median * np.exp(self.spread * rng.standard_normal()))))


@attrs.frozen(kw_only=True)
class Recorded:
    """Arrivals and lengths of a recorded trace.

    Args:
        path: CSV with ``arrival_s,tenant,prompt_tokens,output_tokens``.
        stretch: arrival times are multiplied by this.
    """

    path: Path
    stretch: float = 1.0

    def visits(self, rng: np.random.Generator) -> Iterator[Visit]:
        latest_s = 0.0
        try:
            with self.path.open(newline="", encoding="utf-8") as lines:
                for number, row in enumerate(csv.DictReader(lines), 2):
                    try:
                        visit = self._visit(row)
                        if not latest_s <= visit.arrival_s < inf:
                            raise ValueError("arrivals must be finite, from 0, and in order")
                    except (KeyError, TypeError, ValueError) as error:
                        raise ConfigurationRefused(f"{self.path}:{number} is not a row of a trace: {error}") from None
                    latest_s = visit.arrival_s
                    yield visit
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise ConfigurationRefused(
                f"cannot read the trace {self.path}: {getattr(error, 'strerror', None) or error}"
            ) from error

    def _visit(self, row: dict[str, str]) -> Visit:
        return Visit(
            arrival_s=float(row["arrival_s"]) * self.stretch,
            tenant=row["tenant"],
            prompt_tokens=max(1, int(row["prompt_tokens"])),
            output_tokens=max(1, int(row["output_tokens"])),
        )
