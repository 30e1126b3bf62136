"""FaultControl: what a runtime declares may be made to go wrong, because it can be undone.

On a board that others use, or that only a power cycle would bring back, nothing is provoked: a runtime without such
a declaration has none of it tried.

Source: SPEC section 13 (S §18).
"""

from __future__ import annotations

import attrs

from calculet_trio.core.fault_kinds import FaultKind


@attrs.define
class FaultControl:
    """A plan of faults (`calculet_trio.runtimes.faults.FaultPlan`) that is made while it is followed.

    Args:
        kinds: what may be provoked; what is not among them comes about never.
    """

    kinds: frozenset[FaultKind]
    _wanted: FaultKind | None = attrs.field(default=None, init=False)

    def provoke(self, kind: FaultKind) -> None:
        """The next call that may have it has this fault."""
        assert kind in self.kinds, "asked before"
        self._wanted = kind

    def draw(self, kinds: tuple[FaultKind, ...]) -> FaultKind | None:
        """See `calculet_trio.runtimes.faults.FaultPlan.draw`."""
        if self._wanted not in kinds:
            return None
        wanted, self._wanted = self._wanted, None
        return wanted


NOTHING = FaultControl(frozenset())
"""Of a runtime that declares nothing."""
