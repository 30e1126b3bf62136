"""CapacityPlan: what a model takes of a device's memory, and whether it is still there, in numbers.

Whatever a package declares as reserved counts as taken, also where nobody can say what it is for: of the reference
model's 28.150 GiB some 7.5 are neither parameters nor KV, and no second large model fits beside it.

Source: SPEC section 1, 8 step 4 (S §11 step 4, §13.1).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from calculet_trio.errors import PackageError
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.manifest_parts import ChipMemory

DTYPE_BYTES: Final = {
    "bool": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "f16": 2, "bf16": 2, "i32": 4, "u32": 4, "f32": 4,
    "i64": 8, "u64": 8, "f64": 8,
}  # fmt: skip
"""Bytes of an element, by the name that manifests use."""
GIB: Final = 2**30


def kv_bytes_per_token(manifest: Manifest) -> int | None:
    """K and V of all layers, computed from the network's numbers; None where the dtype's size is not known."""
    numbers = manifest.architecture
    element_bytes = DTYPE_BYTES.get(manifest.kv.dtype)
    return None if element_bytes is None else numbers.layers * numbers.kv_heads * numbers.head_dim * 2 * element_bytes


def kv_bytes(manifest: Manifest) -> int:
    """KV of all lanes at their full length."""
    return manifest.kv.bytes_per_token * manifest.kv.max_seq * manifest.kv.lanes


@attrs.frozen
class CapacityPlan:
    """What a model takes, chip by chip; one entry where the device is one to the package."""

    chips: tuple[ChipMemory, ...]

    @classmethod
    def of(cls, manifest: Manifest) -> CapacityPlan:
        """As the manifest declares it; else its files, but for the text side's, and its KV, on a single chip."""
        if manifest.memory is not None:
            return cls(manifest.memory.chips)
        golden = manifest.golden.file if manifest.golden is not None else None
        aside = {manifest.text.vocabulary, manifest.text.chat_template, golden}
        parameters_bytes = sum(record.size_bytes for name, record in manifest.files.items() if name not in aside)
        return cls(
            (
                ChipMemory(
                    parameters_bytes=parameters_bytes, kv_bytes=kv_bytes(manifest), buffers_bytes=0, reserved_bytes=0
                ),
            )
        )

    @property
    def chip_bytes(self) -> tuple[int, ...]:
        """What it takes of each chip."""
        return tuple(sum(attrs.astuple(chip)) for chip in self.chips)

    @property
    def total_bytes(self) -> int:
        """What it takes of all of them."""
        return sum(self.chip_bytes)

    @property
    def sentence(self) -> str:
        """The sum, with its parts."""
        parts = ("parameters", "kv", "buffers", "reserved")
        sums = (sum(getattr(chip, f"{part}_bytes") for chip in self.chips) for part in parts)
        shown = " + ".join(f"{part} {in_gib(count_bytes)}" for part, count_bytes in zip(parts, sums, strict=True))
        return f"{in_gib(self.total_bytes)} GiB ({shown})"


@attrs.frozen
class DeviceRoom:
    """A device's memory, and what of it is promised already, chip by chip.

    Args:
        chip_bytes: what there is.
        promised_bytes: what others hold; as many entries.
    """

    chip_bytes: tuple[int, ...]
    promised_bytes: tuple[int, ...]

    @classmethod
    def beside(cls, residents: Iterable[CapacityPlan], *, total_bytes: int, used_bytes: int, chips: int) -> DeviceRoom:
        """The room of a device that says only what it has in all.

        Its chips are taken to be equal, since no call says how the memory is divided. Promised is what the residents
        planned, and what the device says is used where that is more: a plan holds from the first byte that it loads.

        Args:
            residents: the plans of the models that are on it.
            total_bytes: the device's memory.
            used_bytes: what it says is used.
            chips: how many it has, as the package that is to come sees it.
        """
        planned = [0] * chips
        for plan in residents:
            shares = plan.chip_bytes if len(plan.chips) == chips else _evenly(plan.total_bytes, chips)
            planned = [before + share for before, share in zip(planned, shares, strict=True)]
        used = _evenly(used_bytes, chips)
        return cls(_evenly(total_bytes, chips), tuple(max(pair) for pair in zip(planned, used, strict=True)))


class CapacityRefused(PackageError):
    """The model does not fit into what is left of the device.

    Args:
        message: what it takes, what there is, and what is missing.
        missing_bytes: so much, on the chip that lacks most.
        hint: what to do next.
    """

    def __init__(self, message: str, *, missing_bytes: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.missing_bytes = missing_bytes


def require_room(name: str, plan: CapacityPlan, room: DeviceRoom) -> None:
    """Make sure that a model fits, on each chip.

    Raises:
        CapacityRefused: with the sum, what there is, and what is missing.
        PackageError: it was compiled for another number of chips.
    """
    if len(plan.chips) != len(room.chip_bytes):
        raise PackageError(
            f"the model {name!r} is compiled for {len(plan.chips)} chips, and the device has {len(room.chip_bytes)}"
        )
    needs = zip(plan.chip_bytes, room.chip_bytes, room.promised_bytes, strict=True)
    missing = [needed + promised - there for needed, there, promised in needs]
    worst = max(range(len(missing)), key=missing.__getitem__)
    if missing[worst] > 0:
        where = f" on chip {worst} of {len(missing)}" if len(missing) > 1 else ""
        raise CapacityRefused(
            f"the model {name!r} takes {plan.sentence}; the device has {in_gib(sum(room.chip_bytes))} GiB, "
            f"{in_gib(sum(room.promised_bytes))} of them promised: {in_gib(missing[worst])} GiB are missing{where}",
            missing_bytes=missing[worst],
            hint="unload what is on the device, or build the package with fewer lanes or a shorter max_seq",
        )


def in_gib(count_bytes: int) -> str:
    """Gibibytes, to a thousandth."""
    return f"{count_bytes / GIB:.3f}"


def _evenly(count_bytes: int, chips: int) -> tuple[int, ...]:
    share, rest = divmod(count_bytes, chips)
    return tuple(share + (index < rest) for index in range(chips))
