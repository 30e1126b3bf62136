"""Which of a submodel's tensors and registers are what, by the layout and meaning that its manifest declares.

A name in a calbin (``inputs[0]``) says nothing; the manifest's words below do, and nothing is guessed from a name.

Source: SPEC section 14 (A §5, §9).
"""

from __future__ import annotations

from typing import Final

import attrs

from calculet_trio.errors import PackageError
from calculet_trio.packages.manifest_parts import Submodel

TOKENS: Final = "lane token"
POSITIONS: Final = "lane position"
LANE_MASK: Final = "lane"
LOGITS: Final = "row vocabulary"
PAST_LENGTH: Final = "tokens held before the job"
LENGTH: Final = "tokens held after the job"


@attrs.frozen
class RoleNames:
    """Exact names within one submodel."""

    tokens: str
    positions: str
    logits: str
    past_length: str
    length: str


def role_names(submodel: Submodel) -> RoleNames:
    """What the manifest calls the parts of a submodel.

    Raises:
        PackageError: one that is needed is missing, or declared twice.
    """
    inputs = {tensor.name: tensor.layout for tensor in submodel.inputs}
    outputs = {tensor.name: tensor.layout for tensor in submodel.outputs}
    csrs = {csr.name: csr.meaning for csr in submodel.csrs}
    return RoleNames(
        tokens=_one(submodel, "inputs", inputs, TOKENS),
        positions=_one(submodel, "inputs", inputs, POSITIONS),
        logits=_one(submodel, "outputs", outputs, LOGITS),
        past_length=_one(submodel, "csrs", csrs, PAST_LENGTH),
        length=_one(submodel, "csrs", csrs, LENGTH),
    )


def _one(submodel: Submodel, key: str, meanings: dict[str, str], wanted: str) -> str:
    names = [name for name, meaning in meanings.items() if meaning == wanted]
    if len(names) != 1:
        raise PackageError(f"submodel {submodel.name!r}: {key} has {len(names)} of {wanted!r}; allowed: exactly one")
    return names[0]
