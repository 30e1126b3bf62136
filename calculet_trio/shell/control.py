"""Control: `calculet_trio.shell.operations.Operations` over the parts of one daemon.

Source: API.md "Admin endpoints"; SPEC section 8, 15.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import trio

from calculet_trio.core.events import Event, PairTrusted
from calculet_trio.core.snapshot import CoreSnapshot
from calculet_trio.errors import OperationRefused
from calculet_trio.ids import RequestId
from calculet_trio.observe.dumps import DumpDirectory
from calculet_trio.observe.trace import EventTrace
from calculet_trio.runtimes.port import Runtime
from calculet_trio.shell.blocking import BlockingRunner
from calculet_trio.shell.model_manager import ModelManager
from calculet_trio.shell.operations import ModelStatus, Report
from calculet_trio.shell.recovery import DeviceRecovery


@attrs.frozen(kw_only=True)
class DumpSources:
    """Where a debug dump's contents come from.

    Args:
        directory: where it goes.
        about: versions and the effective configuration, without keys.
        metrics: the metrics page.
    """

    directory: DumpDirectory
    about: Callable[[], Mapping[str, Any]]
    metrics: Callable[[], str]


class Control:
    """What operators may do.

    Args:
        models: loads and unloads.
        recovery: resets the device.
        prompts: the token ids of the open requests' prompts, by request.
        snapshot: the core's counts.
        post: tells the core.
        trace: the recorder.
        begin_drain: as SIGTERM.
        reload: as SIGHUP; returns how many tenants there are.
        runtime: asked for memory and status in a dump.
        dump: see `DumpSources`; None where nothing can be dumped.
        runner: for the disk.
    """

    def __init__(
        self,
        *,
        models: ModelManager,
        recovery: DeviceRecovery,
        prompts: Callable[[], Mapping[RequestId, Sequence[int]]],
        snapshot: Callable[[], CoreSnapshot],
        post: Callable[[Event], None],
        trace: EventTrace,
        begin_drain: Callable[[], None],
        reload: Callable[[], Awaitable[int]],
        runtime: Runtime,
        dump: DumpSources | None,
        runner: BlockingRunner,
    ) -> None:
        self._models = models
        self._recovery = recovery
        self._prompts = prompts
        self._snapshot = snapshot
        self._post = post
        self._trace = trace
        self._begin_drain = begin_drain
        self._reload = reload
        self._runtime = runtime
        self._dump = dump
        self._runner = runner
        self._limiter = trio.CapacityLimiter(1)

    def models(self) -> tuple[ModelStatus, ...]:
        """See `calculet_trio.shell.operations.Operations.models`."""
        return self._models.board.statuses()

    async def load(self, alias: str, package: str | None, report: Report) -> Mapping[str, Any]:
        """See `calculet_trio.shell.operations.Operations.load`."""
        return await self._models.load_named(alias, package, report)

    async def unload(self, alias: str, report: Report) -> Mapping[str, Any]:
        """See `calculet_trio.shell.operations.Operations.unload`."""
        return await self._models.unload(alias, report)

    async def rollback(self, alias: str, report: Report) -> Mapping[str, Any]:
        """See `calculet_trio.shell.operations.Operations.rollback`."""
        return await self._models.roll_back(alias, report)

    async def reset_device(self, report: Report) -> Mapping[str, Any]:
        """See `calculet_trio.shell.operations.Operations.reset_device`."""
        return await self._recovery.order(report)

    async def trust_engines(self) -> Mapping[str, Any]:
        """See `calculet_trio.shell.operations.Operations.trust_engines`."""
        mode = self._snapshot().engine_mode
        if mode.word == "single":
            raise OperationRefused(
                "this daemon has one job in flight at a time", hint="executor.max_inflight: 2 would use both engines"
            )
        if mode.quarantined:
            names = " and ".join(engine.value for engine in mode.quarantined)
            raise OperationRefused(
                f"in quarantine until the device has been reset: {names}", hint="calculet-trio device reset"
            )
        self._post(PairTrusted())
        return {"put_aside": None if mode.doubt is None else mode.doubt.value}

    async def begin_drain(self) -> None:
        """See `calculet_trio.shell.operations.Operations.begin_drain`."""
        self._begin_drain()

    async def reload(self) -> Mapping[str, Any]:
        """See `calculet_trio.shell.operations.Operations.reload`."""
        return {"tenants": await self._reload()}

    async def trace(self, seconds: float) -> Mapping[str, Any]:
        """See `calculet_trio.shell.operations.Operations.trace`."""
        if not self._trace.begin(trio.current_time()):
            raise OperationRefused("another trace is being recorded", hint="wait for its end")
        found: dict[str, Any] = {}
        try:
            await trio.sleep(seconds)
        finally:
            found = self._trace.end()
        return found

    async def debug_dump(self, *, with_prompts: bool) -> Mapping[str, Any]:
        """See `calculet_trio.shell.operations.Operations.debug_dump`."""
        if self._dump is None:
            raise OperationRefused("this daemon has no dump directory")
        contents = self._contents(self._dump, with_prompts=with_prompts)
        path = await self._runner.run_whole(partial(self._dump.directory.write, contents), self._limiter)
        return {"path": str(path), "bytes": (await trio.Path(path).stat()).st_size}

    def _contents(self, dump: DumpSources, *, with_prompts: bool) -> dict[str, Any]:
        return {
            "at_unix_s": round(time.time(), 3),
            **dump.about(),
            "models": [attrs.asdict(status) for status in self._models.board.statuses()],
            "counts": attrs.asdict(self._snapshot(), value_serializer=_plain),
            "device": {"memory": attrs.asdict(self._runtime.memory()), "status": attrs.asdict(self._runtime.status())},
            "metrics": dump.metrics().splitlines(),
            "threads": _stacks(),
            **({"prompts": self._prompts()} if with_prompts else {}),
        }


def _plain(instance: object, field: object, value: Any) -> Any:
    """Keys as JSON has them, at every depth."""
    if isinstance(value, Mapping):
        return {str(getattr(key, "value", key)): _plain(instance, field, inner) for key, inner in value.items()}
    return value


def _stacks() -> dict[str, list[str]]:
    """Where every thread stands, code alone: no values of anything."""
    return {
        str(thread): [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_stack(top)]
        for thread, top in sys._current_frames().items()
    }
