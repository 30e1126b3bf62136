"""The doctor beside a daemon that holds its device and serves: neither hears anything of the other's business."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from calculet_trio.cli.board import LOCKS, make_emulated_package
from calculet_trio.cli.exit_codes import ExitCode
from calculet_trio.doctor.native_library import is_locked
from calculet_trio.packages.calbin import StepTime
from calculet_trio.packages.calbin_writer import EmulatedShape
from tests.emulator import emulator_library
from tests.runtimes.board_daemon import expected, serving

SHAPE = EmulatedShape(
    batches=(1, 4),
    lanes=4,
    max_seq_len=256,
    vocab_size=300,
    kv_bytes_per_token=4,
    prefill=StepTime(base_ns=1_000_000),
    decode={batch: StepTime(base_ns=1_000_000) for batch in (1, 4)},
)
PROMPTS = [f"client {number} asks" for number in range(4)]
TOKENS = 100
LOOKS = 3
RUN_S = 120
SERVICE = """
schema: calculet-service/v1
device: {{runtime: calrt, library: {library}, path: /dev/{device}}}
models: [{{alias: emulated, package: {package}}}]
"""


def test_every_reply_is_whole_and_every_look_sees_the_library_and_the_service(tmp_path: Path) -> None:
    package, library, device = tmp_path / "emulated", emulator_library(), f"doctor-test-{os.getpid()}"
    make_emulated_package(SHAPE, package, name="emulated", report=lambda _progress: None)
    config = tmp_path / "service.yaml"
    config.write_text(SERVICE.format(library=library, device=device, package=package))
    lock = LOCKS / f"{device}.lock"
    with serving(tmp_path, library, "emulated", arguments=["--config", str(config)]) as daemon:
        assert is_locked(lock)
        looking = [sys.executable, "-m", "calculet_trio.cli.main", "doctor", "--json", "--config", str(config)]
        looking += ["--port", str(daemon.port), "--only", "board", "--only", "health", "--only", "calbins"]
        with ThreadPoolExecutor(1) as clients:
            heard = clients.submit(daemon.hear_many, PROMPTS, TOKENS)
            for _ in range(LOOKS):
                answer = subprocess.run(looking, capture_output=True, check=False, timeout=RUN_S)
                found = {each["name"]: each for each in json.loads(answer.stdout)["checks"]}
                assert "the emulator (calrt-emulator)" in found["binding"]["seen"], found["binding"]
                assert "1 for the emulator" in found["compatibility"]["seen"]
                assert "is ready" in found["health"]["seen"]
            assert [each.text for each in heard.result()] == [expected(prompt, TOKENS) for prompt in PROMPTS]
        assert is_locked(lock)
        assert daemon.stop() == ExitCode.DONE
    assert not is_locked(lock)
    lock.unlink()
