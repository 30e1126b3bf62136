"""Load cycles: a model is taken off and another one put there, again and again, by an operator of a living daemon.

Source: S §19 (M4: "100 load/unload; resources return; one-command rollback").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import attrs

from calculet_trio.conformance.clients import Errand
from calculet_trio.conformance.footprint import GROWTH_AT_MOST, Footprint, settled
from calculet_trio.conformance.gate import Criterion
from calculet_trio.conformance.switching import nothing_left, words_of
from calculet_trio.conformance.two_models import FIRST, SECOND, Site

CYCLES: Final = 100
"""S §19."""
_WARM_SHARE: Final = 5
"""After one cycle in so many, allocators have the size that they need for both models."""


@attrs.frozen(kw_only=True)
class Cycled:
    """What was seen.

    Args:
        cycles: an unload and a load each.
        objection: the first thing that was wrong; None if nothing was.
        empty_bytes: of the device without a model, the most that was seen.
        loaded_bytes: of the device with the first model, at the beginning.
        early: what was held after the first cycles.
        late: what was held after the last, with the same model.
        rollback: why it failed; None if the model before was back, and verified again.
    """

    cycles: int
    objection: str | None
    empty_bytes: int
    loaded_bytes: int
    early: Footprint
    late: Footprint
    rollback: str | None


async def cycle(site: Site, wanted: Sequence[Errand], *, cycles: int, progress: Callable[[str], None]) -> Cycled:
    """Unload and load the two models in turn, and ask each; at last load one and go back.

    **Cancellation**: at once; a begun operation is ended first.
    """
    kept, words = await words_of(site, wanted)
    loaded_bytes, empty_bytes, objection = site.device_bytes(), 0, None
    early = Footprint.now(loaded_bytes)
    warm = max(2, cycles // _WARM_SHARE // 2 * 2)
    for number in range(1, cycles + 1):
        progress(f"load and unload {number} of {cycles}")
        await site.unload()
        empty_bytes = max(empty_bytes, site.device_bytes())
        model = SECOND if number % 2 else FIRST
        await site.load(model)
        place = number % len(kept)
        heard = await site.ask(kept[place])
        if heard.trouble is not None or heard.text != words[model][place]:
            objection = objection or f"after {number} loads a reply is wrong: {heard.trouble or heard.text[:40]}"
        if number == warm:
            early = Footprint.now(site.device_bytes())
    late = await settled(early, site.device_bytes)
    progress("rolling back")
    return Cycled(
        cycles=cycles,
        objection=objection,
        empty_bytes=empty_bytes,
        loaded_bytes=loaded_bytes,
        early=early,
        late=late,
        rollback=await _rolled_back(site, kept[0], words[FIRST][0]),
    )


async def _rolled_back(site: Site, errand: Errand, expected: str) -> str | None:
    """Why going back from the second to the first model failed; None if it did not."""
    await site.load(FIRST)
    await site.load(SECOND)
    await site.roll_back()
    heard = await site.ask(errand)
    if heard.trouble is not None:
        return heard.trouble
    return None if heard.text == expected else f"the reply is not that of the model before: {heard.text[:40]!r}"


def cycle_criteria(cycled: Cycled) -> tuple[Criterion, ...]:
    """Each load serves, the device's memory comes back, nothing is left over, and the way back is one command."""
    seen = (
        f"{cycled.cycles} cycles, a reply of each; {cycled.empty_bytes} of {cycled.loaded_bytes} device bytes "
        f"were in use without a model, allowed {GROWTH_AT_MOST:.0%}"
    )
    came_back = cycled.empty_bytes <= cycled.loaded_bytes * GROWTH_AT_MOST
    if cycled.objection is not None:
        seen += f"; {cycled.objection}"
    return (
        Criterion.of("load and unload", holds=cycled.objection is None and came_back, seen=seen),
        nothing_left("nothing left of loads", cycled.early, cycled.late),
        Criterion.of(
            "rollback",
            holds=cycled.rollback is None,
            seen=cycled.rollback or "one call: the model before was verified, loaded and answered",
        ),
    )
