"""Judges the daemon over sanitized libraries. Called by tools/sanitized, which says how."""

from __future__ import annotations

import argparse
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import attrs  # noqa: E402
import binding_tests  # noqa: E402
import sanitizers  # noqa: E402
import trio  # noqa: E402
from chaos import Verdict, counted  # noqa: E402
from chaos_client import PROMPTS, Answer, Errand, ask, calm_errand, ending, objection  # noqa: E402
from daemon_process import SERVE, DaemonProcess, waited_for  # noqa: E402
from sanitizers import SANITIZERS, Sanitizer  # noqa: E402
from soak_http import registered  # noqa: E402

from calculet_trio.cli.admin_client import AdminClient  # noqa: E402
from calculet_trio.cli.board import LOCKS, make_emulated_package  # noqa: E402
from calculet_trio.errors import Unavailable  # noqa: E402
from calculet_trio.packages.calbin import StepTime  # noqa: E402
from calculet_trio.packages.calbin_writer import BYTE_VOCABULARY, EmulatedShape  # noqa: E402
from calculet_trio.runtimes.emulated import END_TOKEN, continuation  # noqa: E402

REQUESTS: Final = 1000
SHORT_REQUESTS: Final = 100
CLIENTS: Final = 16
LEAVE: Final = 0.4
PATIENCE_S_MAX: Final = 1.0
RETURNS: Final = 100
RETURN_S: Final = 0.1
LOOK_EVERY_S: Final = 0.1
IDLE_S: Final = 60.0
OBJECTIONS_MAX: Final = 20
LOG_LINES: Final = 30
LANES: Final = 8
BATCHES: Final = (1, 4, 8)
STEP: Final = StepTime(base_ns=3_000_000)
"""Long enough that other calls come while jobs run: of 1 ms, most had ended before another thread had Python's lock,
and a race that was planted in the status stayed unseen."""
SHAPE: Final = EmulatedShape(
    batches=BATCHES,
    lanes=LANES,
    max_seq_len=256,
    vocab_size=BYTE_VOCABULARY,
    kv_bytes_per_token=64,
    prefill=STEP,
    decode=dict.fromkeys(BATCHES, STEP),
)
SCHEDULER: Final[dict[str, Any]] = {
    # A sanitizer makes steps slow and uneven; both engines are to work all the same, and soon again after a fault.
    "executor": {"max_inflight": 2, "p99_gate": 10, "probation_jobs": 50},
    "admission": {"max_inflight_jobs": 2},
    "recovery": {"replay": True},
}
STARTS_ALLOCATIONS: Final = 110
STARTS_WAITS: Final = 400
"""At least so many as a first start makes, to show what the device is to be trusted with: 109 and 346."""
FAULTS: Final = (
    ("no_capacity", STARTS_ALLOCATIONS, 0.05, 5),
    ("late", STARTS_WAITS, 0.0, 3),
    ("output_error", STARTS_WAITS, 0.1, 1),
    ("ccu_fault", STARTS_WAITS, 0.5, 1),
    ("pcie_error", STARTS_WAITS, 1.5, 1),
)
"""What goes wrong: the emulator's name for it; how many calls of its kind come first, and how many more for each
request; how often. The last two have the device reset. A reset is proven by fewer than a hundred jobs and twenty
allocations: if one of these fails, too, the device is lost, and rightly so. Hence the distance."""
ERRORS: Final = ("no_capacity", "output_error", "ccu_fault", "pcie_error")


@attrs.define
class Crowd:
    """So many clients, who ask until so many requests are answered or left; and an operator, who looks at the device.

    Args:
        daemon: who serves them.
        seed: of everything that is drawn.
        requests: how many in all.
    """

    daemon: DaemonProcess
    seed: int
    requests: int
    answers: Counter[str] = attrs.field(factory=Counter)
    objections: list[str] = attrs.field(factory=list)
    looks: int = 0
    _begun: int = 0

    async def run(self, clients: int) -> None:
        """Until all have ended."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._operator)
            async with trio.open_nursery() as crowd:
                for _ in range(clients):
                    crowd.start_soon(self._client)
            nursery.cancel_scope.cancel()

    async def _operator(self) -> None:
        """A dump holds the device's status, asked beside the jobs; the daemon's own watch asks seldom."""
        dump = partial(AdminClient(self.daemon.admin_socket).call, "POST", "/admin/debug-dump", {})
        with suppress(Unavailable):  # the daemon has gone, which its clients tell
            while True:
                await trio.to_thread.run_sync(dump)
                self.looks += 1
                await trio.sleep(LOOK_EVERY_S)

    async def _client(self) -> None:
        while self._begun < self.requests:
            self._begun += 1
            number = self._begun
            wanted = errand(random.Random(f"{self.seed} {number}"))
            answer = await persistent(self.daemon.port, wanted)
            self.answers[ending(answer)] += 1
            what = objection(answer, wanted, TEXTS, may_break_off=False)
            if what is None and answer.code not in (None, "output_error"):
                what = f"{answer.status} {answer.code}"
            if what is not None and len(self.objections) < OBJECTIONS_MAX:
                self.objections.append(f"request {number}: {what}")


def errand(draw: random.Random) -> Errand:
    """Some client's: a stream, which four of ten leave at some moment, half of these with a reset."""
    return attrs.evolve(
        calm_errand(draw.randrange(PROMPTS)),
        pause_s=draw.uniform(0.0, 0.05),
        resets=draw.random() < 0.5,
        **({"patience_s": draw.uniform(0.0, PATIENCE_S_MAX)} if draw.random() < LEAVE else {}),
    )


async def persistent(port: int, wanted: Errand) -> Answer:
    """The answer; who comes while the device is reset is told to come back, and does."""
    await trio.sleep(wanted.pause_s)
    answer = await ask(port, wanted)
    for _ in range(RETURNS):
        if answer.code != "recovering":
            break
        await trio.sleep(RETURN_S)
        answer = await ask(port, wanted)
    return answer


def foretold(prompt: str, tokens: int) -> str:
    """What the emulated board says after a prompt."""
    return bytes(token for token in continuation(prompt.encode(), tokens) if token != END_TOKEN).decode()


TEXTS: Final = {
    number: foretold(body["prompt"], body["max_tokens"])
    for number, body in ((number, calm_errand(number).body) for number in range(PROMPTS))
}


def plan(requests: int) -> str:
    """`FAULTS`, spread over so many requests, for ``CALRT_EMULATOR_FAULTS``."""
    return ",".join(
        f"{fault}:nth={first + int(share * requests)}:times={times}:seconds=0.05"
        for fault, first, share, times in FAULTS
    )


@attrs.frozen
class Trial:
    """A daemon under a sanitizer.

    Args:
        sanitizer: which.
        library: the binding's, built with it.
        scratch: an empty directory.
        options: of the command line.
    """

    sanitizer: Sanitizer
    library: Path
    scratch: Path
    options: argparse.Namespace

    def verdicts(self) -> Iterator[Verdict]:
        """Each as it comes; also where the daemon ends before its time."""
        logs = self.scratch / self.sanitizer.name
        logs.mkdir()
        said = ""
        try:
            with self._daemon(logs) as daemon:
                try:
                    yield from self._served(daemon)
                finally:
                    said = daemon.log
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:  # it did not start, has gone, or stays
            said = said or str(error)
            yield Verdict("the daemon serves", "it does not", tuple(said.splitlines()[-LOG_LINES:]))
        found = sanitizers.reports(logs, said)
        yield Verdict("the sanitizer reports nothing", f"{len(found)} reports", tuple(found))

    def _daemon(self, logs: Path) -> DaemonProcess:
        device = {"runtime": "calrt", "library": str(self.library), "path": f"/dev/{self.scratch.name}"}
        environment = {**self.sanitizer.environment(logs), "CALRT_EMULATOR_FAULTS": plan(self.options.requests)}
        environment["XDG_STATE_HOME"] = str(self.scratch / f"state-{self.sanitizer.name}")
        return DaemonProcess(
            package=str(self.scratch / "package"),
            device=device,
            scheduler=SCHEDULER,
            command=[*self.sanitizer.launcher(), *SERVE],
            environment=environment,
        )

    def _served(self, daemon: DaemonProcess) -> Iterator[Verdict]:
        crowd = Crowd(daemon, self.options.seed, self.options.requests)
        trio.run(crowd.run, self.options.clients)
        yield Verdict(
            "replies are what their prompts foretell",
            f"{counted(crowd.answers)}; {crowd.looks} looks",
            tuple(crowd.objections),
        )
        waited_for(lambda: not held(daemon), within_s=IDLE_S)
        left = held(daemon)
        yield Verdict("all lanes are free, and nothing is registered", left or "nothing", (left,) if left else ())
        yield worked(daemon.metrics())
        code = daemon.stop()
        yield Verdict("it ends by SIGTERM with 0", f"exit {code}", ("not 0",) if code else ())


def held(daemon: DaemonProcess) -> str:
    """What the daemon still holds of requests, and lanes that are not free; empty if nothing."""
    free = daemon.metrics()['calculet_kv_lanes{state="free"}']
    return registered(daemon) or ("" if free == LANES else f"{free:g} of {LANES} lanes are free")


def worked(series: dict[str, float]) -> Verdict:
    """Whether both engines had jobs, and every fault came about."""
    jobs = Counter[str]()
    for name, count in series.items():
        if name.startswith("calculet_jobs_total"):
            jobs[name.partition('engine="')[2].partition('"')[0]] += int(count)
    errors = {code: series.get(f'calrt_errors_total{{code="{code}"}}', 0.0) for code in ERRORS}
    resets = int(series.get("calculet_device_resets_total", 0.0))
    missed = [f"no job on {engine}" for engine in ("ping", "pong") if not jobs[engine]]
    missed += [f"no {code}" for code, count in errors.items() if not count] + ["no two resets"] * (resets != 2)
    return Verdict("both engines work, and fail", f"jobs: {counted(jobs)}; {resets} resets", tuple(missed))


@contextmanager
def place() -> Iterator[Path]:
    """A directory with the package in it, and with keys, cache and state of its own; no lock is left of its device."""
    with tempfile.TemporaryDirectory(prefix="ct") as scratch:  # short: a Unix socket's path has 107 bytes at most
        directory = Path(scratch)
        for name in ("DATA", "CACHE", "STATE", "CONFIG"):
            os.environ[f"XDG_{name}_HOME"] = str(directory / name.lower())
        make_emulated_package(SHAPE, directory / "package", name="emulated", report=lambda _progress: None)
        try:
            yield directory
        finally:
            (LOCKS / f"{directory.name}.lock").unlink(missing_ok=True)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tools/sanitized", description=__doc__)
    parser.add_argument("--requests", type=int, help=f"for each sanitizer ({REQUESTS})")
    parser.add_argument("--clients", type=int, default=CLIENTS, help=f"at the same time ({CLIENTS})")
    parser.add_argument("--seed", type=int, default=0, help="of prompts, and of who leaves when (0)")
    parser.add_argument("--variant", choices=[*SANITIZERS], help="one of them (both)")
    parser.add_argument("--source", type=Path, help="another directory `binding`; it is built anew")
    parser.add_argument("--short", action="store_true", help=f"{SHORT_REQUESTS} requests")
    options = parser.parse_args()
    if options.requests is None:
        options.requests = SHORT_REQUESTS if options.short else REQUESTS
    if options.requests < SHORT_REQUESTS or options.clients < 1:
        parser.error(f"--requests: at least {SHORT_REQUESTS}, which meet every fault; --clients: at least 1")
    return options


def main() -> int:
    """Print the verdicts as they come; 1 if anything did not hold."""
    options = parse()
    if lacking := sanitizers.missing():
        print(f"nothing is tried: there is no {lacking}", flush=True)
        return 1 if os.environ.get("CI") and os.geteuid() == 0 else 0
    passed = True
    with place() as scratch:
        source = (options.source or binding_tests.SOURCE).absolute()
        build = binding_tests.BUILD if options.source is None else scratch / "build"
        for name in [options.variant] if options.variant else [*SANITIZERS]:
            began_s = time.monotonic()
            print(f"── {name}: {options.requests} requests, {options.clients} clients, seed {options.seed}", flush=True)
            library = SANITIZERS[name].build(source, build)
            if library is None:
                return 1
            for verdict in Trial(SANITIZERS[name], library, scratch, options).verdicts():
                passed &= verdict.passed
                print(f"{'✓' if verdict.passed else '✗'} {verdict.what:<46} {verdict.seen}", flush=True)
                print(*verdict.objections, sep="\n", end="\n" * bool(verdict.objections), flush=True)
            print(f"  {time.monotonic() - began_s:.0f} s", flush=True)
    print(f"{'clean' if passed else 'NOT clean'}; again: tools/sanitized {shlex.join(sys.argv[1:])}", flush=True)
    return 0 if passed else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
