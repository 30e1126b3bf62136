"""ServedPackage: what a load asks of a package in the store: that it may be used, that it fits, that it is kept.

Source: SPEC section 8, load steps 1 to 4 and 11 (S §11).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from calculet_trio.freed_memory import give_back_freed
from calculet_trio.packages.acceptance import accept
from calculet_trio.packages.capacity import CapacityPlan, DeviceRoom, require_room
from calculet_trio.packages.footprint import Footprint
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.store import Store
from calculet_trio.packages.store_lease import Lease
from calculet_trio.packages.trust import Trust
from calculet_trio.runtimes.port import MemoryUse


class ServedPackage:
    """A package that this process is to serve; its methods are what `ModelSource` calls, and block.

    Args:
        store: the store; it remembers what was hashed, and what served.
        directory: the package, in it or elsewhere.
        trust: whose signatures count.
    """

    def __init__(self, store: Store, directory: Path, trust: Trust) -> None:
        self._store = store
        self._directory = directory
        self._trust = trust
        self._lease: Lease | None = None
        self._print: Footprint | None = None

    def verify(self) -> None:
        """Hold the package, so that no garbage collection takes it away, and make sure of it.

        Raises:
            calculet_trio.errors.PackageError: it must not be used, with the reason.
        """
        give_back_freed()  # what an earlier load left: each runs in a thread, and a thread's heap is its own
        is_held = self._lease is not None  # it serves already: it is verified for being loaded again
        if self._lease is None:
            self._lease = Lease(self._directory)
        try:
            self._print = Footprint.of(self._directory)
            accept(self._store, self._directory, self._trust, thorough=False)
        except BaseException:
            if not is_held:
                self.release()
            raise

    def require_room(self, use: MemoryUse, residents: Sequence[CapacityPlan] = ()) -> None:
        """Make sure that the model fits beside what is on the device; a device that cannot say has room for one.

        Args:
            use: what the device says of its memory.
            residents: what the models on it planned: they may come to use it all.

        Raises:
            calculet_trio.packages.capacity.CapacityRefused: in numbers.
        """
        total_bytes = use.total_bytes if use.total_bytes is not None else use.declared_bytes
        if total_bytes is not None:
            manifest = Manifest.load(self._directory)
            plan = CapacityPlan.of(manifest)
            room = DeviceRoom.beside(
                residents, total_bytes=total_bytes, used_bytes=use.used_bytes, chips=len(plan.chips)
            )
            require_room(manifest.name, plan, room)

    def require_unchanged(self) -> None:
        """Make sure that nobody has touched the package since `verify` began to.

        Raises:
            calculet_trio.errors.PackageError: somebody has, if only to put the same there again.
        """
        if self._print is not None:
            self._print.require_same(Footprint.of(self._directory))

    def record_served(self) -> None:
        """It was proven and is open to requests.

        Raises:
            calculet_trio.errors.PackageError: the store cannot be written to. It can be served from all the same.
        """
        self._store.record_served(self._directory)

    def release(self) -> None:
        """Give the package up: nothing of it is loaded any more. Idempotent."""
        if self._lease is not None:
            self._lease.close()
            self._lease = None
