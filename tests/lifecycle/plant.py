"""A daemon of the CPU runtime as a process of its own, over a store of tiny models, and an operator's commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import yaml

from calculet_trio.cli.admin_client import AdminClient
from tests.models import TinyModel

START_S = 120
COMMAND = (sys.executable, "-c", "from calculet_trio.cli.main import main; main()")
BUILD = ("--lanes", "4", "--max-seq", "128")
PAUSE = threading.Event()
"""Never set: what a daemon does is seen by looking again."""


def wait_for(condition, *, within_s=60):
    """Wait until it holds; a client learns in no other way."""
    ends_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends_s
        PAUSE.wait(0.02)


class Plant:
    """One machine: its store, its daemon, its clients.

    Args:
        home: a directory with a short name, for sockets.
    """

    def __init__(self, home):
        self.home = home
        self.environment = os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
        for name in ("DATA", "CONFIG", "STATE", "CACHE", "RUNTIME"):
            variable = f"XDG_{name}_{'DIR' if name == 'RUNTIME' else 'HOME'}"
            self.environment[variable] = str(home / name.lower())
        self.command = COMMAND
        self.port = 0
        self.process = None

    @property
    def admin(self):
        """The admin socket, as commands use it."""
        return AdminClient(self.home / "runtime" / "calculet-trio" / "admin.sock")

    def run(self, *arguments, code=0):
        """One command; its output, or with another ``code`` its errors."""
        done = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            check=False,
            capture_output=True,
            text=True,
            timeout=180,
            env=self.environment,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stderr if code else done.stdout

    def pull(self, name, *options, seed=1, **changes):
        """A tiny model as a package of the store."""
        gguf = TinyModel(family="llama", seed=seed, **changes).write(self.home / f"{name}-{seed}.gguf")
        self.run("package", "pull", gguf, "--name", name, *BUILD, *options)

    @contextmanager
    def serving(self, *, ends_with=0, **config):
        """The daemon around the block; it must end with that code, of itself or when it is told to."""
        path = self.home / "service.yaml"
        path.write_text(yaml.safe_dump({"schema": "calculet-service/v1", **config}))
        log = (self.home / "daemon.log").open("w")
        command = [*self.command, "serve", "--config", str(path), "--port", "0", "--drain", "10"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=self.environment
        ) as self.process:
            hung = threading.Timer(START_S, self.process.kill)
            hung.start()
            try:
                for line in self.process.stdout:
                    if found := re.search(r"is ready on http://127\.0\.0\.1:(\d+)", line):
                        self.port = int(found[1])
                        break
                else:
                    raise AssertionError((self.home / "daemon.log").read_text())
                hung.cancel()
                yield self
                self.process.terminate()
                assert self.process.wait(60) == ends_with, (self.home / "daemon.log").read_text()
            finally:
                hung.cancel()
                self.process.kill()
                log.close()

    def models(self):
        """What the operator sees, by alias."""
        return {model["alias"]: model for model in json.loads(self.run("models", "list", "--json"))}

    def ask(self, content, *, model, tokens=12):
        """Status and text of one greedy reply."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": tokens,
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, json.load(reply)["choices"][0]["message"]["content"]
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)["error"]["code"]

    def resources(self):
        """Threads and open files of the daemon."""
        root = Path(f"/proc/{self.process.pid}")
        return len(list((root / "task").iterdir())), len(list((root / "fd").iterdir()))


class Crowd:
    """Clients that ask again and again, and what each was answered."""

    def __init__(self, plant, *, clients=4, model="m"):
        self.plant = plant
        self.model = model
        self.answers = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask_on, daemon=True) for _ in range(clients)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _ask_on(self):
        while not self._stop.is_set():
            self.answers.append(self.plant.ask("the sea", model=self.model))
