"""Proof: what a model still has to show on its device before it is served.

What is to be shown, and how, is conformance's; the load performs it, step by step, on the model that it has just
configured.

Source: SPEC section 12.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from calculet_trio.core.evidence import Evidence


class Proof(Protocol):
    """Steps on a configured model that holds no sequence, and what they come to."""

    def steps(self) -> Sequence[Callable[[], None]]:
        """Each blocks, for seconds; none if everything has been shown before."""

    def evidence(self) -> Evidence | None:
        """What has been shown, after all steps; blocks.

        Raises:
            calculet_trio.errors.ConfigurationRefused: something that the configuration asks for has not.
        """
