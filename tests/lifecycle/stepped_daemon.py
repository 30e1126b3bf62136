"""The real commands, with a daemon whose load steps a test holds open or makes fail: files of a directory say so.

    hold-STEP   a named pipe: the step's work begins when somebody has opened it for writing, and closed it
    fail-STEP   the step's work is done, and then it fails, once: as REFUSED or BROKEN says
    fault-job   a job of the device ends, and nobody knows how: only a reset helps

A device's job is a step, too, called ``job``.

One step is only books, close: it reads no file and calls no device, and there is nothing in it to fail.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Final

import attrs

from calculet_trio.cli import main, serve
from calculet_trio.core.events import FaultReason
from calculet_trio.errors import PackageError
from calculet_trio.runtimes.port import Unknown

DIRECTORY: Final = "CALCULET_TEST_STEPS"
REFUSED: Final = "refused"
"""As a package that is not right."""
BROKEN: Final = "broken"
"""As a disk or a library whose error nobody foresaw."""


class Steps:
    """What the files say; blocks the thread that asks."""

    def __init__(self, directory):
        self._directory = directory

    def take(self, step, call, *arguments):
        """Do the step's work, held before it and failed after it where that is wanted."""
        gate = self._directory / f"hold-{step}"
        if gate.exists():
            gate.read_bytes()
        answer = call(*arguments)
        match self.word(f"fail-{step}"):
            case "refused":
                raise PackageError(f"{step} fails, as was planned")
            case "broken":
                raise OSError(5, f"{step} breaks, as was planned")
        return answer

    def word(self, name):
        """What the file says, once."""
        path = self._directory / name
        if not path.exists():
            return None
        said = path.read_text("ascii")
        path.unlink()
        return said

    def source(self, source):
        def step(name, call):
            return call and partial(self.take, name, call)

        return attrs.evolve(
            source,
            verify=step("verify", source.verify),
            evidence=step("validate", source.evidence),
            open_text=step("plan", source.open_text),
            unchanged=step("publish", source.unchanged),
            served=step("retain", source.served),
        )


class SteppedRuntime:
    """`calculet_trio.runtimes.port.Runtime`: the real one, but for what the files say."""

    def __init__(self, runtime, steps):
        self._runtime = runtime
        self._steps = steps
        for step in ("configure", "inspect", "warm_up", "golden", "unload"):
            setattr(self, step, partial(steps.take, step, getattr(runtime, step)))

    def __getattr__(self, name):
        return getattr(self._runtime, name)

    def wait(self, engine, ticket, timeout_s):
        outcome = self._steps.take("job", self._runtime.wait, engine, ticket, timeout_s)
        return outcome if self._steps.word("fault-job") is None else Unknown(FaultReason.CCU_FAULT)


def stepped(run):
    steps = Steps(Path(os.environ[DIRECTORY]))

    async def run_stepped(daemon):
        def find(alias, package):
            return steps.source(steps.take("resolve", daemon.find, alias, package))

        await run(
            attrs.evolve(
                daemon,
                runtime=SteppedRuntime(daemon.runtime, steps),
                source=steps.source(daemon.source),
                find=find,
            )
        )

    return run_stepped


if __name__ == "__main__":
    serve.run = stepped(serve.run)
    main.main()
