"""The capacity plan: the sums of the reference model, and what does not fit is refused in numbers."""

from __future__ import annotations

import attrs
import pytest

from calculet_trio.errors import PackageError
from calculet_trio.packages.capacity import (
    GIB,
    CapacityPlan,
    CapacityRefused,
    DeviceRoom,
    kv_bytes,
    kv_bytes_per_token,
    require_room,
)
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.manifest_parts import ChipMemory, Memory, MemoryBasis
from tests.packages.test_manifest import example

BOARD_BYTES = 32 * GIB
CHIP_PARAMETERS_BYTES = (9_400_000_000, 18_187_039_015 - 9_400_000_000)
"""16.938 GiB, as 9.40 and 8.78 GB."""
TOTAL_BYTES = round(28.150 * GIB)


def reference() -> Manifest:
    """Qwen3-30B-A3B as SPEC section 1 has it; nobody knows how KV and reserve lie on the chips: evenly here."""
    manifest = example()
    architecture = attrs.evolve(manifest.architecture, layers=48, kv_heads=4, head_dim=128, context_tokens=40_960)
    kv = attrs.evolve(manifest.kv, dtype="bf16", lanes=1, max_seq=40_960, bytes_per_token=98_304)
    one_lane_bytes = 98_304 * 40_960
    reserved_bytes = TOTAL_BYTES - sum(CHIP_PARAMETERS_BYTES) - one_lane_bytes
    chips = tuple(
        ChipMemory(
            parameters_bytes=parameters_bytes,
            kv_bytes=one_lane_bytes // 2,
            buffers_bytes=0,
            reserved_bytes=reserved_bytes // 2,
        )
        for parameters_bytes in CHIP_PARAMETERS_BYTES
    )
    memory = Memory(chips=chips, basis=MemoryBasis.INFERRED)
    return attrs.evolve(manifest, name="qwen3-30b-a3b", architecture=architecture, kv=kv, memory=memory)


def board(*residents: CapacityPlan, used_bytes: int = 0) -> DeviceRoom:
    return DeviceRoom.beside(residents, total_bytes=BOARD_BYTES, used_bytes=used_bytes, chips=2)


def test_the_reference_models_kv_is_what_the_specification_says() -> None:
    assert kv_bytes_per_token(reference()) == 98_304
    assert kv_bytes(reference()) == round(3.750 * GIB)


def test_the_reference_model_fits_an_empty_board() -> None:
    plan = CapacityPlan.of(reference())
    assert plan.sentence == "28.150 GiB (parameters 16.938 + kv 3.750 + buffers 0.000 + reserved 7.462)"
    require_room("qwen3-30b-a3b", plan, board())


def test_a_second_one_is_refused_in_numbers() -> None:
    plan = CapacityPlan.of(reference())
    with pytest.raises(CapacityRefused) as caught:
        require_room("second", plan, board(plan))
    assert caught.value.message == (
        "the model 'second' takes 28.150 GiB (parameters 16.938 + kv 3.750 + buffers 0.000 + reserved 7.462); the "
        "device has 32.000 GiB, 28.150 of them promised: 12.721 GiB are missing on chip 0 of 2"
    )
    assert caught.value.missing_bytes == 2 * plan.chip_bytes[0] - 16 * GIB


def test_what_fits_together_may_still_not_fit_a_chip() -> None:
    one_sided = (
        ChipMemory(parameters_bytes=17 * GIB, kv_bytes=0, buffers_bytes=0, reserved_bytes=0),
        ChipMemory(parameters_bytes=1, kv_bytes=0, buffers_bytes=0, reserved_bytes=0),
    )
    with pytest.raises(CapacityRefused, match=r"1\.000 GiB are missing on chip 0 of 2"):
        require_room("one-sided", CapacityPlan(one_sided), board())


@pytest.mark.parametrize("missing_bytes", [0, 1])
def test_the_last_byte_counts(missing_bytes: int) -> None:
    plan = CapacityPlan.of(example())
    room = DeviceRoom.beside([], total_bytes=plan.total_bytes - missing_bytes, used_bytes=0, chips=1)
    if missing_bytes:
        with pytest.raises(CapacityRefused, match=r"GiB are missing$"):
            require_room("tiny", plan, room)
    else:
        require_room("tiny", plan, room)


def test_what_the_device_says_is_used_counts_where_it_is_more() -> None:
    plan = CapacityPlan.of(reference())
    assert sum(board(plan, used_bytes=GIB).promised_bytes) == plan.total_bytes
    assert sum(board(used_bytes=GIB).promised_bytes) == GIB
    assert sum(board(plan, used_bytes=31 * GIB).promised_bytes) == 31 * GIB


def test_a_package_for_one_chip_is_no_package_for_two() -> None:
    with pytest.raises(PackageError, match="compiled for 1 chips, and the device has 2"):
        require_room("tiny", CapacityPlan.of(example()), board())


def test_a_plan_of_other_chips_is_spread() -> None:
    single = CapacityPlan.of(example())
    assert sum(board(single).promised_bytes) == single.total_bytes


def test_without_a_declaration_files_and_kv_are_the_plan() -> None:
    manifest = example()
    [chip] = CapacityPlan.of(manifest).chips
    assert (chip.parameters_bytes, chip.kv_bytes) == (1, 4 * 64 * 512)
