"""Predecessors: by alias, the package whose place one of another name took.

Versions of one name follow one another in the store, which knows of each which was good before it. That an alias went
from one name to another is known to the daemon alone, and for as long as it lives: its next start serves what the
configuration names.

Source: SPEC section 8 ("Rollback to the previous package is one command"); S §11 step 11.
"""

from __future__ import annotations

from calculet_trio.shell.loading import ModelSource
from calculet_trio.shell.model_board import ModelBoard


class Predecessors:
    """What a rollback undoes before it asks the store.

    Args:
        board: where operators see what a rollback would bring back.
    """

    def __init__(self, board: ModelBoard) -> None:
        self._board = board
        self._sources: dict[str, ModelSource] = {}

    def of(self, alias: str) -> ModelSource | None:
        """Whose place the alias's present package took; None where the store knows the one before."""
        return self._sources.get(alias)

    def followed(self, old: ModelSource | None, source: ModelSource) -> None:
        """``source`` serves now under its alias, and ``old`` did until now."""
        before = old or self._sources.get(source.alias)
        if before is None or before.name == source.name:
            self._sources.pop(source.alias, None)
        else:
            self._sources[source.alias] = before
            self._board.note(source.alias, previous=before.digest)
