"""What is known to be wrong in today's calbins, looked for and named.

A defect is overridden by an explicit entry of a package's manifest and by nothing else (A §4, §13; SPEC section 14).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from calculet_trio.packages.calbin import FREE_EXTENT, Calbin, CalbinSubmodel
from calculet_trio.packages.manifest_parts import Defect

DECODE_TYPE: Final = "llm_decode"


@attrs.frozen
class FoundDefect:
    """A known defect, and in which submodels."""

    defect: Defect
    submodels: tuple[str, ...]
    sentence: str


def found_defects(calbin: Calbin) -> tuple[FoundDefect, ...]:
    """Each known defect that the calbin has, by name."""
    return tuple(_found(calbin))


def _found(calbin: Calbin) -> Iterator[FoundDefect]:
    prefills = [each for each in calbin.submodels if _takes_many_tokens(each)]
    mistyped = _names(each for each in prefills if each.model_type == DECODE_TYPE)
    if mistyped:
        sentence = f"takes any number of tokens and is typed {DECODE_TYPE}: {', '.join(mistyped)}"
        yield FoundDefect(Defect.PREFILL_TYPED_DECODE, mistyped, sentence)
    idle = _names(each for each in calbin.submodels if each.workload == 0)
    if idle:
        yield FoundDefect(Defect.WORKLOAD_ZERO, idle, f"has workload 0: {', '.join(idle)}")
    homeless = _names(each for each in calbin.submodels if not each.target_chips) if calbin.chips > 1 else ()
    if homeless:
        sentence = f"is for {calbin.chips} chips and names none: {', '.join(homeless)}"
        yield FoundDefect(Defect.TARGET_CHIPS_EMPTY, homeless, sentence)


def _takes_many_tokens(submodel: CalbinSubmodel) -> bool:
    """By its inputs' extents, since its name and its type say nothing that one could rely on."""
    return any(
        tensor.direction == "input" and len(tensor.extents) > 1 and tensor.extents[1] == FREE_EXTENT
        for tensor in submodel.tensors
    )


def _names(submodels: Iterator[CalbinSubmodel]) -> tuple[str, ...]:
    return tuple(submodel.name for submodel in submodels)
