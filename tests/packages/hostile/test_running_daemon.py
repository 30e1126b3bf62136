"""A daemon serves on, and says the same, whatever is brought to its store meanwhile; and starts with nothing hostile.

What is loaded into a running daemon is named over its admin socket; here each hostile package is brought to the store,
and then lies there already. A new way of trying adds itself to `ATTEMPTS`: the reply must stay the same after each.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from calculet_trio.cli import main, paths
from calculet_trio.packages.signing import SigningKey
from calculet_trio.packages.store import Store
from calculet_trio.packages.store_lease import is_leased
from tests.packages.hostile.changes import manifest
from tests.packages.hostile.corpus import ONE_OF_EACH, Case
from tests.packages.hostile.test_corpus import make_good, make_hostile

PATIENCE_S: Final = 120
SERVE: Final = (sys.executable, "-c", "from calculet_trio.cli.main import main; main()", "serve", "--port", "0")
REFUSED: Final = 78


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing on it, for this process and those it starts."""
    for variable in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    return tmp_path


@pytest.fixture
def key(home: Path) -> SigningKey:
    assert paths.keys().is_relative_to(home)
    return SigningKey.local(paths.keys())


@pytest.fixture
def good(home: Path, key: SigningKey) -> Path:
    (home / "packages").mkdir()
    return make_good(home / "packages", key)


class Command:
    """Our commands, in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """What it says on the way out; it leaves with that code."""
        before = signal.getsignal(signal.SIGTERM)
        try:
            found = main.run(list(arguments))
        finally:
            signal.signal(signal.SIGTERM, before)
        shown = self._capsys.readouterr()
        assert found == code, shown
        return shown.err if code else shown.out


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@contextmanager
def serving() -> Iterator[int]:
    """The port of a daemon over the only package of the store."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        SERVE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        hung = threading.Timer(PATIENCE_S, process.kill)
        hung.start()
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if found := re.search(r"is ready on http://127\.0\.0\.1:(\d+)", line):
                    yield int(found[1])
                    break
            else:
                pytest.fail("".join(lines))
            process.terminate()
            process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0
        finally:
            hung.cancel()
            process.kill()


def reply(port: int) -> str:
    """What the model says to the same question, greedily."""
    body = {"model": "tiny", "temperature": 0, "max_tokens": 8, "messages": [{"role": "user", "content": "he the"}]}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return str(json.load(answer)["choices"][0]["message"])


def import_it(package: Path, command: Command) -> None:
    """``package import`` refuses it, and the store stays as it was."""
    before = Store(paths.package_store()).contents()
    assert "error: " in command("package", "import", str(package), "--force", code=REFUSED)
    assert Store(paths.package_store()).contents() == before


def load_it(package: Path, command: Command) -> None:
    """Somebody has put it into the store by hand: ``models load`` refuses it, and frees nothing of what serves."""
    planted = Store(paths.package_store()).root / "hostile"
    package.rename(planted)
    told = command("models", "load", "tiny", "--package", "hostile", code=1)
    assert re.search(r"^error: .+$", told, re.MULTILINE), told
    planted.rename(package)


ATTEMPTS: Final[tuple[Callable[[Path, Command], None], ...]] = (import_it, load_it)
"""What is done with each hostile package while the daemon serves."""


def test_the_daemon_serves_on(good: Path, key: SigningKey, command: Command) -> None:
    command("package", "import", str(good))
    store = Store(paths.package_store())
    served = store.resolve("tiny")
    with serving() as port:
        first = reply(port)
        for case in ONE_OF_EACH:
            make_hostile(good, case, key)
            for attempt in ATTEMPTS:
                attempt(good.with_name(case.name), command)
            assert reply(port) == first
        make_hostile(good, Case("newer", manifest("package_version", value="1.1"), ""), key)
        command("package", "import", str(good.with_name("newer")), "--force")
        command("package", "gc")
        assert store.resolve("tiny") != served
        assert is_leased(served), "what is served is held"
        assert store.last_good("tiny") == served
        assert reply(port) == first
        older = command("package", "import", str(good), "--force", code=REFUSED)
        assert "is version 1, and 1.1 was here" in older
    assert not is_leased(served)


def test_a_daemon_does_not_start_with_what_is_not_whole(good: Path, command: Command) -> None:
    command("package", "import", str(good))
    weights = Store(paths.package_store()).resolve("tiny") / "weights.bin"
    content = weights.read_bytes()
    weights.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    started = subprocess.run(SERVE, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert started.returncode == REFUSED
    assert "weights.bin: its sha256 is" in started.stderr
