"""What may be done to a sequence's KV beside appending to it, and why most of it may not.

Source: SPEC section 7 (S §9.3).
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from calculet_trio.core.evidence import CAPABILITIES, Evidence, Standing


class ContextOperation(Enum):
    APPEND = "append"
    REMOVE_TAIL = "remove_tail"
    COPY_SEQUENCE = "copy_sequence"
    KEEP_ONE_SEQUENCE = "keep_one_sequence"
    POSITION_ADD = "position_add"
    POSITION_DIVIDE = "position_divide"
    SAVE_SEQUENCE = "save_sequence"
    LOAD_SEQUENCE = "load_sequence"
    SHIFT = "shift"


CAPABILITY_OF: Final = {operation: CAPABILITIES[operation.value] for operation in ContextOperation}
"""The table of S §9.3: every operation stands or falls with a capability of its own name."""


def judge(operation: ContextOperation, evidence: Evidence) -> Standing:
    """Whether the operation is allowed on this package, runtime and board, and what is missing if not.

    Prompt caches, forks and beam search depend on these and are offered no sooner.
    """
    return evidence.standing(CAPABILITY_OF[operation])
