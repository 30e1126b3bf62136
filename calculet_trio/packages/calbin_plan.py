"""The roles file: which submodel of a calbin does what, and which of its known defects are overridden.

``calculet-roles/v1``, YAML::

    schema: calculet-roles/v1
    prefill: {submodel: prefill}
    decode:
      - {submodel: decode}
      - {submodel: decode_b4, lane_mask: lane_valid}
    overrides: [prefill_typed_decode, workload_zero, target_chips_empty]

Names are exact. A part that is left out has the name of A §1 and §9 (``inputs[0]``, ``past_kv_cur_seq_len`` …).
Without a file, the submodels named exactly ``prefill`` and ``decode`` have those roles and nothing is overridden.

Source: SPEC section 14; A §9 "explicit role/type manifest".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
import yaml

from calculet_trio.errors import PackageError
from calculet_trio.packages import manifest_json
from calculet_trio.packages.calbin import Calbin, CalbinSubmodel
from calculet_trio.packages.calbin_defects import found_defects
from calculet_trio.packages.manifest_parts import Batch, Count, Defect, Size

SCHEMA: Final = "calculet-roles/v1"
BYTES_MAX: Final = 64 * 1024
DECODES_MAX: Final = 16


@attrs.frozen(kw_only=True)
class PlannedSubmodel:
    """One submodel's exact name, and the exact names of its parts.

    Args:
        lane_mask: the tensor that says which lanes count; None: there is no such contract.
    """

    submodel: str
    tokens: str = "inputs[0]"
    positions: str = "inputs[1]"
    logits: str = "outputs[0]"
    lane_mask: str | None = None
    past_length: str = "past_kv_cur_seq_len"
    length: str = "cur_seq_len"


@attrs.frozen(kw_only=True)
class CalbinPlan:
    """A whole roles file.

    Args:
        lanes: KV sequences to be held at once; None for what the calbin says.
        max_seq: the longest context; None for what the calbin says.
        reserved_bytes: what is gone of the board's memory beside parameters and KV: seen from outside (S §13.1).
    """

    schema: str
    prefill: PlannedSubmodel
    decode: tuple[PlannedSubmodel, ...]
    overrides: tuple[Defect, ...] = ()
    lanes: Batch | None = None
    max_seq: Count | None = None
    reserved_bytes: Size = 0


BY_EXACT_NAMES: Final = CalbinPlan(
    schema=SCHEMA, prefill=PlannedSubmodel(submodel="prefill"), decode=(PlannedSubmodel(submodel="decode"),)
)
"""Without a file."""


def read_plan(path: Path) -> CalbinPlan:
    """The roles file ``path``.

    Raises:
        PackageError: it cannot be read, or a key of it is wrong.
    """
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
        if len(data) > BYTES_MAX:
            raise PackageError(f"{path} is larger than {BYTES_MAX} bytes, which no roles file is")
        document = yaml.safe_load(data.decode())
    except OSError as error:
        raise PackageError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise PackageError(f"{path} is not valid YAML: {error}") from None
    plan = manifest_json.structure(document, CalbinPlan, path)
    if plan.schema != SCHEMA:
        raise PackageError(f"{path}: schema is {plan.schema[:80]!r}; this version reads {SCHEMA!r}")
    if not 1 <= len(plan.decode) <= DECODES_MAX:
        raise PackageError(f"{path}: decode has {len(plan.decode)} entries; allowed: 1 to {DECODES_MAX}")
    return plan


def check_plan(plan: CalbinPlan, calbin: Calbin) -> None:
    """Raise `PackageError` unless the calbin has all that the plan names, and no known defect that it does not."""
    problem = next(_problems(plan, calbin), None)
    if problem is not None:
        raise PackageError(problem, hint=f"say it in --roles FILE: {_example(calbin)}")


def _problems(plan: CalbinPlan, calbin: Calbin) -> Iterator[str]:
    found = {submodel.name: submodel for submodel in calbin.submodels}
    for role, planned in (("prefill", plan.prefill), *(("decode", each) for each in plan.decode)):
        submodel = found.get(planned.submodel)
        if submodel is None:
            yield (
                f"the calbin has no submodel of the exact name {planned.submodel!r} for the role {role}; "
                f"it has {', '.join(found)}, and a similar name is not enough"
            )
        else:
            yield from _missing_parts(planned, submodel)
    names = [planned.submodel for planned in (plan.prefill, *plan.decode)]
    if len(set(names)) != len(names):
        yield f"one submodel has two roles: {', '.join(names)}"
    for defect in found_defects(calbin):
        if defect.defect not in plan.overrides:
            yield f"the calbin has the known defect {defect.defect.value}: a submodel {defect.sentence}"


def _missing_parts(planned: PlannedSubmodel, submodel: CalbinSubmodel) -> Iterator[str]:
    inputs = {tensor.name for tensor in submodel.tensors if tensor.direction == "input"}
    outputs = {tensor.name for tensor in submodel.tensors if tensor.direction == "output"}
    csrs = {csr.name for csr in submodel.csrs}
    wanted = [("input", planned.tokens, inputs), ("input", planned.positions, inputs)]
    wanted += [("output", planned.logits, outputs)]
    wanted += [("register", planned.past_length, csrs), ("register", planned.length, csrs)]
    wanted += [("input", planned.lane_mask, inputs)] if planned.lane_mask is not None else []
    for what, name, names in wanted:
        if name not in names:
            yield f"the submodel {submodel.name!r} has no {what} {name!r}; it has {', '.join(sorted(names)) or 'none'}"


def _example(calbin: Calbin) -> str:
    """A roles file on one line, with the calbin's own names where there is a choice."""
    defects = ", ".join(found.defect.value for found in found_defects(calbin))
    return (
        f"{{schema: {SCHEMA}, prefill: {{submodel: NAME}}, decode: [{{submodel: NAME}}], overrides: [{defects}]}}"
        f" (submodels: {', '.join(submodel.name for submodel in calbin.submodels)})"
    )
