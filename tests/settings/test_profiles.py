"""A policy and a package: a batch that was not compiled cannot be asked for."""

from __future__ import annotations

import pytest

from calculet_trio.core.policy import BatchPolicy, Policy
from calculet_trio.core.profiles import BatchProfile, InactiveLanePolicy, ModelShape, PrefillProfile
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.settings.profiles import check_profiles

SHAPE = ModelShape(
    prefill=PrefillProfile("prefill", 2048),
    decode=tuple(BatchProfile(f"decode_b{size}", size, 2048, InactiveLanePolicy.VALID_MASK) for size in (1, 4, 16)),
    lanes=16,
    max_seq=2048,
    vocab_size=100,
)


@pytest.mark.parametrize("batch", [BatchPolicy(), BatchPolicy(profiles=(4, 1)), BatchPolicy(thresholds={16: 12, 4: 3})])
def test_what_the_package_holds_may_be_asked_for(batch: BatchPolicy) -> None:
    check_profiles(Policy(batch=batch), SHAPE, alias="m")


@pytest.mark.parametrize(
    ("batch", "key"),
    [
        (BatchPolicy(profiles=(1, 8, 2)), "batch.profiles"),
        (BatchPolicy(thresholds={2: 2, 8: 6}), "batch.thresholds"),
    ],
)
def test_what_it_lacks_is_named_with_what_it_has(batch: BatchPolicy, key: str) -> None:
    with pytest.raises(ConfigurationRefused) as refused:
        check_profiles(Policy(batch=batch), SHAPE, alias="m")
    assert refused.value.message == (
        f"{key} of 'm' asks for batch 2, 8, which its package does not hold; it holds 1, 4, 16"
    )
