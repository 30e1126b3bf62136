"""The vendor's list: what only the board's maker can deliver, and the capabilities that wait for it.

Until it is there, a design may be built and tested, and the hardware's capability stays C3.

Source: S §20.
"""

from __future__ import annotations

from typing import Final

import attrs

from calculet_trio.core.evidence import CAPABILITIES

BATCH: Final = "batch"
"""All of ``batch:B``."""


@attrs.frozen
class VendorItem:
    """Something to be delivered.

    Args:
        wanted: what.
        capabilities: that wait for it.
    """

    wanted: str
    capabilities: tuple[str, ...]


VENDOR_LIST: Final = (
    VendorItem("exact tensors, CSRs, inactive mask and KV layout of B4, B8 and B16", (BATCH,)),
    VendorItem("calbin, golden, capacity, performance and compatibility of every profile", (BATCH,)),
    VendorItem("timing of PING, PONG and parallel, and how many jobs may be in flight", ("ping_pong",)),
    VendorItem("whether a batch job fails as a whole or by lane, and which KV it spoils", ("lane_fault_isolation",)),
    VendorItem("an API for several resident calbins, chip affinity and reset domains", ("co_residency",)),
    VendorItem("version, API and device selection of several boards after 0.7.6", ("multi_device",)),
)

assert all(name == BATCH or name in CAPABILITIES for item in VENDOR_LIST for name in item.capabilities)


def owed_for(capability: str) -> tuple[str, ...]:
    """What the vendor still has to deliver for a capability (``batch:8`` counts as ``batch``)."""
    kind = capability.partition(":")[0]
    return tuple(item.wanted for item in VENDOR_LIST if kind in item.capabilities)
