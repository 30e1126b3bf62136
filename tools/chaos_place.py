"""A place of its own for daemons in trouble: a tiny random model in a store, a state directory, a configuration."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
CALCULET: Final = [sys.executable, "-c", "from calculet_trio.cli.main import main; main()"]
COMMAND_S: Final = 120
LANES: Final = 8
SCHEDULER: Final[dict[str, Any]] = {
    "schema": "calculet-scheduler/v1",
    "admission": {"max_inflight_jobs": 2, "max_waiting_requests": 256},
    "executor": {"max_inflight": 2},
    "recovery": {"max_resets_per_10min": 100, "replay": True, "restart_on_unknown_dma": False},
}
SERVICE: Final[dict[str, Any]] = {
    "schema": "calculet-service/v1",
    "device": {"runtime": "host"},
    "timeouts": {"job_s": 3, "job_per_token_ms": 0, "streams_s": 2, "write_stall_s": 10},
}


@attrs.frozen
class Place:
    """Where everything lies.

    Args:
        directory: everything is in it.
        port: the service socket's, the same in each life.
    """

    directory: Path
    port: int

    @property
    def configuration(self) -> Path:
        return self.directory / "service.yaml"

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def admin_socket(self) -> Path:
        return self.directory / "admin.sock"

    def calculet(self, *arguments: object) -> str:
        """What a command says; raises `RuntimeError` with its errors if it fails."""
        done = subprocess.run(
            [*CALCULET, *map(str, arguments)], check=False, capture_output=True, text=True, timeout=COMMAND_S, cwd=ROOT
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, arguments))}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def configure(
        self, package: str, *, batches: list[int] | None = None, deadline_s: int = 110, job_s: int = 3
    ) -> None:
        """Write the configuration for a package of the store.

        Args:
            package: its name.
            batches: the decode batches that may be used; None for all.
            deadline_s: of every request.
            job_s: the bound of a device job.
        """
        admission = {**SCHEDULER["admission"], "deadline_default_ms": deadline_s * 1000}
        batch = {} if batches is None else {"batch": {"profiles": batches}}
        scheduler = {**SCHEDULER, "admission": admission, **batch}
        (self.directory / "scheduler.yaml").write_text(yaml.safe_dump(scheduler))
        settings = {
            **SERVICE,
            "timeouts": {**SERVICE["timeouts"], "job_s": job_s},
            "listen": {"port": self.port},
            "admin_socket": str(self.admin_socket),
            "state": str(self.state),
            "models": [{"alias": "m", "package": package, "scheduler": "scheduler.yaml"}],
        }
        self.configuration.write_text(yaml.safe_dump(settings))


@contextmanager
def bare_place() -> Iterator[Place]:
    """A place over the user's own packages."""
    with tempfile.TemporaryDirectory(prefix="ct") as scratch:  # short: a Unix socket's path has 107 bytes at most
        yield Place(Path(scratch), free_port())


@contextmanager
def tiny_place() -> Iterator[Place]:
    """A place with a store and keys of its own, and the tiny model in it."""
    from tests.models import TinyModel

    with bare_place() as place:
        for name in ("DATA", "CACHE", "STATE", "CONFIG"):
            os.environ[f"XDG_{name}_HOME"] = str(place.directory / name.lower())
        gguf = TinyModel().write(place.directory / "tiny.gguf")
        package = place.directory / "built"
        shape = ("--weights", "fp32", "--lanes", LANES, "--max-seq", 128)
        place.calculet("package", "build", gguf, "-o", package, "--name", "tiny", *shape)
        place.calculet("package", "import", package)
        place.configure("tiny")
        yield place


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
