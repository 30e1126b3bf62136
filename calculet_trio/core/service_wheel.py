"""The wheel of service opportunities: decode and the three prefill classes take turns by weight.

Source: SPEC section 5 (S §6: ``8:4:2:1``).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from calculet_trio.core.policy import QueuePolicy


class WorkKind(Enum):
    """What an engine can be given next."""

    DECODE = "decode"
    SHORT_PREFILL = "short"
    MEDIUM_PREFILL = "medium"
    LONG_PREFILL = "long"


class ServiceWheel:
    """Smooth weighted round robin (nginx's): opportunities interleave instead of coming in runs.

    Only kinds that have work take part in a turn; a kind that was idle has saved nothing up.
    """

    def __init__(self, policy: QueuePolicy) -> None:
        self._weight = {
            WorkKind.DECODE: policy.decode_weight,
            WorkKind.SHORT_PREFILL: policy.short_prefill_weight,
            WorkKind.MEDIUM_PREFILL: policy.medium_prefill_weight,
            WorkKind.LONG_PREFILL: policy.long_prefill_weight,
        }
        self._current = dict.fromkeys(WorkKind, 0)

    def turn(self, available: Sequence[WorkKind]) -> WorkKind:
        """Whose opportunity it is among ``available`` (at least one, in a fixed order)."""
        for kind in WorkKind:
            if kind not in available:
                self._current[kind] = 0
        for kind in available:
            self._current[kind] += self._weight[kind]
        chosen = max(available, key=self._current.__getitem__)
        self._current[chosen] -= sum(self._weight[kind] for kind in available)
        return chosen
