"""A policy against the package it is for: a batch that was never compiled cannot be configured into being.

Source: SPEC section 2, 10 (S §15).
"""

from __future__ import annotations

from calculet_trio.core.policy import Policy
from calculet_trio.core.profiles import ModelShape
from calculet_trio.errors import ConfigurationRefused


def check_profiles(policy: Policy, shape: ModelShape, *, alias: str) -> None:
    """Whether the package of ``shape`` holds every profile that ``policy`` speaks of.

    Raises:
        ConfigurationRefused: naming those it lacks and those it has.
    """
    held = [profile.compiled_batch for profile in shape.decode]
    wishes = (
        ("batch.profiles", policy.batch.profiles or ()),
        ("batch.thresholds", tuple(policy.batch.thresholds)),
    )
    for key, batches in wishes:
        missing = [batch for batch in batches if batch not in held]
        if missing:
            raise ConfigurationRefused(
                f"{key} of {alias!r} asks for batch {_listed(missing)}, which its package does not hold; "
                f"it holds {_listed(held)}",
                hint="set batch.profiles to some of these, or serve a package that was compiled for more",
            )


def _listed(batches: list[int]) -> str:
    return ", ".join(map(str, sorted(batches)))
