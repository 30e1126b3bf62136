"""A device for several scripted models, of which it holds one or all; each step of a load can be made to fail."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import attrs

from calculet_trio.core.jobs import EngineId
from calculet_trio.errors import PackageError
from calculet_trio.runtimes.port import DeviceInfo, DeviceStatus, GoldenResult, MemoryUse
from calculet_trio.runtimes.script import parse_script
from calculet_trio.runtimes.scripted import ScriptedRuntime
from calculet_trio.shell.loading import ModelSource, ModelText

MODEL_BYTES = 1000


class Shelf:
    """`calculet_trio.runtimes.port.Runtime`: one scripted runtime for each package, by its name.

    Attributes:
        fails: step → how often it still fails, by name of the port's call.
        calls: what was asked, in order.
        certain: what `unload` says.
        templates: chat templates, by name of their package; the others have none.
        verified: what was verified, in order.
        serves: what happens when a package is put on record as good, by its name; nothing for the others.
    """

    def __init__(self, scripts, *, holds_several):
        self.scripts = {name: parse_script({"model": name, **script}) for name, script in scripts.items()}
        self.holds_several = holds_several
        self.fails = {}
        self.calls = []
        self.certain = True
        self.templates = {}
        self.serves = {}
        self.verified = []
        self.resident = {}
        self._of = {}  # who answers for an engine's job that is out
        self._now = None

    def source(self, alias, package, **changes):
        script = self.scripts[package]
        return attrs.evolve(
            ModelSource(
                alias=alias,
                package=Path(package),
                verify=lambda: self._verify(package),
                open_text=lambda: ModelText(script.tokenizer, self.templates.get(package)),
                meta={"package_version": package},
                digest=f"digest-of-{package}",
                co_resident=True,
                unchanged=lambda: self._maybe_fail("publish"),
                served=lambda: self._serve(package),
                shape=script.shape,
                released=partial(self.calls.append, f"released {package}"),
            ),
            **changes,
        )

    def _verify(self, package):
        self.verified.append(package)
        self._maybe_fail("verify")

    def _serve(self, package):
        self.calls.append(f"served {package}")
        self.serves.get(package, lambda: None)()

    def _maybe_fail(self, step):
        if self.fails.get(step, 0):
            self.fails[step] -= 1
            raise PackageError(f"{step} failed, as was planned")

    # ---- the port -----------------------------------------------------------------------------------

    def open(self):
        return DeviceInfo("scripted", "shelf", (EngineId.PING,), {})

    def configure(self, generation, package):
        self.calls.append(f"configure {package}")
        assert self.holds_several or not self.resident, "this device holds one model"
        self._maybe_fail("configure")
        runtime = ScriptedRuntime(self.scripts[package.name])
        runtime.open()
        runtime.configure(generation, package)
        self.resident[generation] = runtime

    def inspect(self, generation):
        self._maybe_fail("inspect")
        found = self.resident[generation].inspect(generation)
        return attrs.evolve(found, capabilities=frozenset({"co_residency"} if self.holds_several else ()))

    def warm_up(self, generation):
        self._maybe_fail("warm_up")

    def golden(self, generation):
        self._maybe_fail("golden")
        if self.fails.get("golden_differs", 0):
            self.fails["golden_differs"] -= 1
            return GoldenResult(False, "it says something else")
        return GoldenResult(True, "")

    def unload(self, generation):
        self.calls.append("unload")
        runtime = self.resident.pop(generation, None)
        if runtime is not None:
            assert runtime.resident == 0, "sequences are freed before the model"
            runtime.close()
        return self.certain

    def can_allocate(self, generation, sequences):
        return self.resident[generation].can_allocate(generation, sequences)

    def allocate(self, generation, lane, tokens):
        return self.resident[generation].allocate(generation, lane, tokens)

    def release(self, generation, lane, sequence):
        return self.resident[generation].release(generation, lane, sequence)

    def remove_tail(self, generation, sequence, tokens):
        return self.resident[generation].remove_tail(generation, sequence, tokens)

    def submit(self, engine, job):
        self._now = self.resident[job.generation]
        return self._now.submit(engine, job)

    def wait(self, engine, ticket, timeout_s):
        return self._now.wait(engine, ticket, timeout_s)

    def memory(self):
        return MemoryUse(MODEL_BYTES * len(self.resident), 10 * MODEL_BYTES)

    def status(self):
        return DeviceStatus(True, "open")

    def reset_configuration(self):
        self.resident.clear()
        return True

    def close(self):
        for runtime in self.resident.values():
            runtime.close()

    def let_through(self, gate, count=1):
        for runtime in self.resident.values():
            runtime.gates.release(gate, count)
