"""What a build may be asked for, and what it says while it works."""

from __future__ import annotations

from typing import Final

import attrs
from packaging.version import InvalidVersion, Version

from calculet_trio.errors import ConfigurationRefused
from calculet_trio.packages.manifest_parts import WeightForm

LANES_MAX: Final = 64
"""Lanes are preallocated address space; more than this on a CPU is a mistake."""
MAX_SEQ_MAX: Final = 131_072
CANDIDATES_MAX: Final = 4096
"""Of those that are named of a row, a choice needs the 1,000 likeliest at most."""
GRAPH_FORMS: Final = (WeightForm.FP32, WeightForm.Q8Z, WeightForm.Q4X)


@attrs.frozen(kw_only=True)
class BuildOptions:
    """How a package is made.

    Args:
        package_version: what the package calls itself.
        weight_form: one of `GRAPH_FORMS`.
        batches: decode batches to offer, each at most ``lanes``; 1 or ``lanes`` among them.
        lanes: KV sequences resident at once.
        max_seq: the longest context of a lane, in tokens; cut to what the model was trained for.
        candidates: how many of a row's largest logits the graph names beside the row; 0 for none. On a CPU, where the
            row is in memory anyway, naming them costs as much as it saves, or more.

    Raises:
        ConfigurationRefused: out of range, by name.
    """

    package_version: str = "1"
    weight_form: WeightForm = WeightForm.Q8Z
    batches: tuple[int, ...] = (1, 4, 8, 16)
    lanes: int = 16
    max_seq: int = 2048
    candidates: int = 0

    def __attrs_post_init__(self) -> None:
        _require("weight_form", self.weight_form.value, self.weight_form in GRAPH_FORMS, "fp32, q8z or q4x")
        _require("lanes", self.lanes, 1 <= self.lanes <= LANES_MAX, f"1 to {LANES_MAX}")
        _require("max_seq", self.max_seq, 2 <= self.max_seq <= MAX_SEQ_MAX, f"2 to {MAX_SEQ_MAX}")
        _require("candidates", self.candidates, 0 <= self.candidates <= CANDIDATES_MAX, f"0 to {CANDIDATES_MAX}")
        fits = bool(self.batches) and len(set(self.batches)) == len(self.batches)
        fits = fits and all(1 <= batch <= self.lanes for batch in self.batches)
        _require("batches", self.batches, fits, f"different numbers from 1 to lanes ({self.lanes})")
        _require("package_version", self.package_version, _can_be_ordered(self.package_version), "as 1.2 or 2.0rc1")
        reaches_all = 1 in self.batches or self.lanes in self.batches
        _require("batches", self.batches, reaches_all, f"1 or lanes ({self.lanes}) among them")


@attrs.frozen
class Progress:
    """One step of a build: ``done`` of ``total`` units of ``step`` (bytes, layers; the step's own unit)."""

    step: str
    done: int
    total: int


def _can_be_ordered(version: str) -> bool:
    try:
        return bool(Version(version))
    except InvalidVersion:
        return False


def _require(name: str, value: object, holds: bool, allowed: str) -> None:
    if not holds:
        raise ConfigurationRefused(f"{name} is {value}; allowed: {allowed}")
