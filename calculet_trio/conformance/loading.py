"""Cases of loading: a model that goes and comes again leaves nothing behind.

Source: SPEC section 8, 13; S §12, §18.
"""

from __future__ import annotations

from typing import Final

from calculet_trio.conformance.rig import CaseFailed, Rig

CYCLES: Final = 10
GROWTH_AT_MOST: Final = 0.02
"""Of what the loaded model takes of the device's memory."""


def load_unload_soak(rig: Rig) -> str:
    """Unloaded and loaded again and again, the model says the same, and memory comes back within 2 %."""
    prompt, following = rig.tokens(50, 7), rig.tokens(51, 3)
    alone = rig.alone(prompt, following)
    loaded_bytes = rig.runtime.memory().used_bytes
    rig.unload()
    empty_bytes = rig.runtime.memory().used_bytes
    if loaded_bytes and empty_bytes > loaded_bytes * GROWTH_AT_MOST:
        kept = f"{empty_bytes} of {loaded_bytes} bytes are still used without a model"
        rig.load()
        raise CaseFailed(kept)
    allowed_bytes = int(loaded_bytes * GROWTH_AT_MOST)
    worst_bytes = 0
    for cycle in range(1, CYCLES + 1):
        rig.load()
        with_bytes = rig.runtime.memory().used_bytes
        rig.same(alone, rig.alone(prompt, following), f"after {cycle} loads")
        if cycle < CYCLES:
            rig.unload()
            without_bytes = rig.runtime.memory().used_bytes
            worst_bytes = max(worst_bytes, with_bytes - loaded_bytes, without_bytes - empty_bytes)
    if worst_bytes > allowed_bytes:
        raise CaseFailed(f"{worst_bytes} bytes did not come back in {CYCLES} cycles, allowed {allowed_bytes}")
    return f"{CYCLES} cycles; memory came back to within {worst_bytes} of {loaded_bytes} bytes, the words are the same"
