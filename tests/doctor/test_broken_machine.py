"""The real command on a machine whose files are of every wrong kind, run by an account that may not do everything.

Whatever lies there, the report comes, whole and soon, with no check that broke and no traceback.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pytest

from calculet_trio.cli.board import make_emulated_package
from calculet_trio.doctor.registry import CHECKS
from calculet_trio.packages.calbin_writer import EmulatedShape
from calculet_trio.runtimes.calrt_library import FILE
from tests.doctor.native import AARCH64, MACHINE_AT, VENDOR, copy_of_emulator, patched

RUN_S = 120
NOBODY = 65534
TRIES = 5
SHAPE = EmulatedShape(name="small", batches=(1, 4), lanes=4, max_seq_len=256, vocab_size=300, kv_bytes_per_token=4)


@attrs.frozen
class Machine:
    """An account's directories, with the emulator's library and a package for it; anybody's to read."""

    root: Path

    @property
    def package(self) -> Path:
        return self.root / "data" / "calculet-trio" / "packages" / "small"

    @property
    def library(self) -> Path:
        return self.root / "cache" / "calculet-trio" / "binding" / "emulator" / "lib" / FILE

    @property
    def configuration(self) -> Path:
        return self.root / "config" / "calculet-trio" / "service.yaml"

    def configure(self, text: str) -> None:
        self.configuration.write_text(f"schema: calculet-service/v1\n{text}\n")

    def examined(self, **variables: str) -> dict[str, Any]:
        """What the command finds; again where a check did not come to its end, as on a machine that is busy."""
        for _ in range(TRIES):
            found = self.examined_once(**variables)
            if not any("did not end" in each["seen"] for each in found.values()):
                break
        return found

    def examined_once(self, **variables: str) -> dict[str, Any]:
        """Every check's result by its name, from the real command in a process of its own."""
        root = {f"XDG_{each.upper()}_HOME": str(self.root / each) for each in ("data", "cache", "config", "state")}
        environment = {**os.environ, **root, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
        if "CALCULET_CALRT_LIBRARY" not in variables:
            environment.pop("CALCULET_CALRT_LIBRARY", None)
        answer = subprocess.run(
            [sys.executable, "-P", "-m", "calculet_trio.cli.main", "doctor", "--json"],
            capture_output=True,
            timeout=RUN_S,
            check=False,
            env=environment,
            cwd="/",
            user=NOBODY if os.geteuid() == 0 else None,  # root may do everything, and would see none of this
        )
        assert answer.stderr == b""
        report = json.loads(answer.stdout)
        found = {each["name"]: each for each in report["checks"]}
        assert list(found) == [check.name for check in CHECKS]
        assert [each["seen"] for each in found.values() if " broke: " in each["seen"]] == []
        assert answer.returncode == (1 if report["counts"]["failure"] else 0)
        return found


def belongs_to_nobody(root: Path) -> None:
    if os.geteuid() == 0:
        for path in (root, *root.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


@pytest.fixture
def machine() -> Iterator[Machine]:
    """Not below pytest's directories, which are for its own account alone."""
    root = Path(tempfile.mkdtemp(prefix="calculet-broken-"))
    made = Machine(root)
    made.package.parent.mkdir(parents=True)
    made.configuration.parent.mkdir(parents=True)
    copy_of_emulator(made.library.parent)
    make_emulated_package(SHAPE, made.package, name="small", report=lambda _progress: None)
    belongs_to_nobody(root)
    if os.geteuid() == 0:
        seeing = [sys.executable, "-P", "-c", "import calculet_trio"]
        if subprocess.run(seeing, check=False, user=NOBODY, cwd="/", timeout=RUN_S, capture_output=True).returncode:
            shutil.rmtree(root)
            pytest.skip("another account cannot see this installation")
    yield made
    for directory, _, _ in os.walk(root):
        Path(directory).chmod(0o755)
    shutil.rmtree(root)


def test_a_whole_machine(machine: Machine) -> None:
    found = machine.examined()
    assert found["binding"]["status"] == "ok"
    assert "counts for no board" in found["binding"]["seen"]
    assert "1 for the emulator (calrt-emulator)" in found["compatibility"]["seen"]
    assert "small: calbin 0.1, 2 shards, known defects, overridden: prefill_typed_decode" in found["calbins"]["seen"]


def test_what_is_configured_is_what_is_looked_at(machine: Machine) -> None:
    machine.configure(
        f"device: {{runtime: calrt, library: {machine.library}}}\nmodels: [{{alias: a, package: {machine.root}/none}}]"
    )
    found = machine.examined()
    assert f"{machine.library} (device.library)" in found["binding"]["seen"]
    assert f"{machine.root}/none" in found["calbins"]["seen"]
    assert found["calbins"]["status"] == "failure"
    machine.library.unlink()
    found = machine.examined()
    assert (found["binding"]["status"], found["compatibility"]["seen"]) == ("failure", "no board to look at")
    assert f"looked in {machine.library} (device.library)" in found["binding"]["seen"]


def test_the_environment_names_a_library_that_must_work(machine: Machine) -> None:
    patched(machine.library, MACHINE_AT, bytes([AARCH64]))
    found = machine.examined()["binding"]
    assert (found["status"], "aarch64" in found["seen"]) == ("warning", True), "nobody needs it"
    found = machine.examined(CALCULET_CALRT_LIBRARY=str(machine.library))["binding"]
    assert (found["status"], "(CALCULET_CALRT_LIBRARY)" in found["seen"]) == ("failure", True)


@pytest.mark.parametrize(
    "name", ["x" * 5000, "/dev/zero", "/dev/tty", "/proc/self/mem", "/proc/self/exe", "/", "no.so"]
)
def test_strange_names_for_a_library(machine: Machine, name: str) -> None:
    found = machine.examined(CALCULET_CALRT_LIBRARY=name)["binding"]
    assert found["status"] == "failure"
    assert name[:50] in found["seen"]


@pytest.mark.parametrize("name", [FILE, VENDOR])
def test_a_library_that_may_not_be_read(machine: Machine, name: str) -> None:
    (machine.library.parent / name).chmod(0)
    found = machine.examined()["binding"]
    assert f"{name} cannot be read: Permission denied" in found["seen"]
    assert "make it readable" in found["todo"]


def test_directories_that_may_not_be_entered(machine: Machine) -> None:
    machine.library.parent.chmod(0)
    machine.package.chmod(0)
    found = machine.examined()
    assert f"{machine.library} (calculet-trio binding build: Permission denied)" in found["binding"]["seen"]
    assert f"{machine.package}/manifest.json cannot be read: Permission denied" in found["store"]["seen"]


def test_a_store_that_may_not_be_read_is_one_finding(machine: Machine) -> None:
    machine.package.parent.chmod(0)
    found = machine.examined()
    of_packages = [name for name, each in found.items() if each["group"] == "Packages" and each["status"] == "failure"]
    assert of_packages == ["store"]
    assert "Permission denied" in found["store"]["seen"]


def test_a_shard_that_may_not_be_read(machine: Machine) -> None:
    (machine.package / "small.0.calbin").chmod(0)
    assert "small.0.calbin cannot be read: Permission denied" in machine.examined()["calbins"]["seen"]


def test_pipes_that_nobody_writes_to(machine: Machine) -> None:
    """Opening one would wait for ever: a configuration, a key, a manifest, a signature, a shard, a record, a lock."""
    os.mkfifo(machine.configuration)
    keys, state = machine.configuration.parent / "keys", machine.root / "state" / "calculet-trio"
    for directory in (keys, state / "faults", state / "evidence", machine.package.with_name("other")):
        directory.mkdir(parents=True)
    waiting = [keys / "local.pem", keys / "local.pub.pem", state / "faults" / "x.json", state / "evidence" / "x.json"]
    waiting += [machine.package.with_name("other") / "manifest.json", machine.package / "model.sig"]
    waiting += [machine.package / "small.0.calbin", machine.package / "vocabulary.json"]
    for path in waiting:
        path.unlink(missing_ok=True)
        os.mkfifo(path, 0o600)
    belongs_to_nobody(machine.root)
    found = machine.examined()
    assert [each["seen"] for each in found.values() if "did not end" in each["seen"]] == []
    assert "is empty" in found["settings"]["seen"]
    assert "small.0.calbin is not a regular file" in found["calbins"]["seen"]
    assert "keys/local.p" in found["signatures"]["seen"]


def test_links_that_lead_nowhere_and_names_that_are_no_text(machine: Machine) -> None:
    store = machine.package.parent
    machine.configuration.symlink_to(machine.configuration.name)
    (store / "loop").symlink_to("loop")
    (store / "gone").symlink_to(f".content/{'a' * 64}")
    with suppress(OSError):  # a file system that takes UTF-8 alone has no such names
        Path(os.fsdecode(os.fsencode(store) + b"/\xff\xfe")).mkdir()
    machine.library.unlink()
    machine.library.symlink_to(FILE)
    found = machine.examined()
    assert "Too many levels of symbolic links" in found["settings"]["seen"]
    assert f"{machine.library} (calculet-trio binding build: Too many levels" in found["binding"]["seen"]
    assert found["store"]["seen"] == "1 package: small"
