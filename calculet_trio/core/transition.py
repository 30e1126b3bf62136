"""State machines as tables: one mapping per machine, one function that moves it.

A table has every state as a key, so that it reads as the machine's documentation; a pair that is not in
it is a defect of this program (`IllegalTransition`), never bad input.

Source: the manner of h11's ``_state.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar


class Symbol(Enum):
    """An Enum that hashes by identity, in C: Enum's own hash is a Python call, met ten times a token."""

    __hash__ = object.__hash__


S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class IllegalTransition(AssertionError):
    """An event arrived that the machine's table does not hold for its present state."""


class Table(Generic[S, E]):
    """One machine: ``Mapping[State, Mapping[EventKind, State]]`` with every state as a key.

    Args:
        name: how the machine is called in an `IllegalTransition`.
        rows: for each state the events it takes and where they lead. A state whose row is empty is terminal.
    """

    __slots__ = ("name", "rows", "terminal")

    def __init__(self, name: str, states: type[S], rows: Mapping[S, Mapping[E, S]]) -> None:
        missing = [state for state in states if state not in rows]
        assert not missing, f"{name}: states without a row: {missing}"
        self.name = name
        self.rows = rows
        self.terminal = frozenset(state for state in states if not rows[state])


class Machine(Generic[S, E]):
    """Base of every entity with a state: only `advance` writes it."""

    __slots__ = ("_state",)

    table: Table[S, E]

    def __init__(self, initial: S) -> None:
        self._state = initial

    @property
    def state(self) -> S:
        return self._state

    @property
    def is_terminal(self) -> bool:
        return not self.table.rows[self._state]

    def advance(self, event: E) -> S:
        """Move to where the table says; the one place that writes ``_state``."""
        try:
            self._state = self.table.rows[self._state][event]
        except KeyError:
            raise IllegalTransition(f"{self.table.name}: {event.name} in {self._state.name}") from None
        return self._state
