"""The real daemon over SSE on the emulator of the board's runtime: sixteen clients, faults, and the way out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from calculet_trio.cli.exit_codes import ExitCode
from calculet_trio.packages.calbin import StepTime
from calculet_trio.packages.calbin_writer import EmulatedShape
from tests.emulator import emulator_library
from tests.runtimes.board_daemon import BoardDaemon, Heard, evidence_in, expected, serving

SHAPE = EmulatedShape(
    batches=(1, 4, 8),
    lanes=8,
    max_seq_len=256,
    vocab_size=300,
    kv_bytes_per_token=64,
    prefill=StepTime(base_ns=1_000_000),
    decode={batch: StepTime(base_ns=1_000_000) for batch in (1, 4, 8)},
)
TOKENS = 40
PROMPTS = [f"client {number} asks{' more' * number}" for number in range(16)]
TRIES = 5
"""Each reset refuses those who come meanwhile; there are two."""
FIRST_FREE = 80
"""A wait that comes while the sixteen are served: warm-up and golden make fewer, and these make more than a hundred."""
FIRST_OF_PONG = 40
"""The same with two engines, for pong's own; new jobs keep to ping after it."""
LATER_OF_PING = 180
"""A wait of ping's after that fault, and before the sixteen were served twice."""

ALIAS = "emulated"
SERVICE = """
schema: calculet-service/v1
models: [{{alias: {alias}, package: {package}, scheduler: both.yaml}}]
"""
BOTH_ENGINES = """
schema: calculet-scheduler/v1
executor: {max_inflight: 2}
admission: {max_inflight_jobs: 2}
recovery: {replay: true}
"""


@pytest.fixture(scope="module")
def package(emulated_package: Callable[[EmulatedShape], Path]) -> Path:
    return emulated_package(SHAPE)


def both_engines(directory: Path, package: Path) -> list[str]:
    """Options of ``serve`` with which two jobs may be in flight, and what a reset interrupts goes on."""
    (directory / "both.yaml").write_text(BOTH_ENGINES)
    (directory / "service.yaml").write_text(SERVICE.format(alias=ALIAS, package=package))
    return ["--config", str(directory / "service.yaml")]


@pytest.fixture(scope="module")
def evidence(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a first start shows of the package; the sixteen are served by it, too."""
    directory = tmp_path_factory.mktemp("first")
    with serving(directory, emulator_library(), ALIAS, arguments=both_engines(directory, package)) as daemon:
        assert "showing, once" in daemon.stderr()
        assert all(right(daemon.hear_many(PROMPTS, TOKENS)))
        assert daemon.stop() == ExitCode.DONE
    return evidence_in(directory)


def right(heard: list[Heard], prompts: list[str] = PROMPTS) -> list[bool]:
    """Which of them heard all, and nothing else; a reply that ended early must be the beginning of the right one."""
    whole = [expected(prompt, TOKENS) for prompt in prompts]
    for reply, all_of_it in zip(heard, whole, strict=True):
        assert all_of_it.startswith(reply.text), (reply, all_of_it)
    return [reply == Heard(all_of_it, None) for reply, all_of_it in zip(heard, whole, strict=True)]


def hear_all(daemon: BoardDaemon) -> list[Heard]:
    """The sixteen; who comes during a reset is told to come back, and does."""
    heard = daemon.hear_many(PROMPTS, TOKENS)
    for _ in range(TRIES):
        early = [place for place, reply in enumerate(heard) if reply == Heard("", "recovering")]
        for place in early:
            heard[place] = daemon.hear(PROMPTS[place], TOKENS)
    return heard


def test_sixteen_clients_hear_what_their_prompts_foretell(package: Path, evidence: Path, tmp_path: Path) -> None:
    with serving(tmp_path, emulator_library(), package, evidence=evidence) as daemon:
        assert all(right(daemon.hear_many(PROMPTS, TOKENS)))
        props = json.loads(daemon.get("/props"))
        assert props["meta"]["device"]["kind"] == "calrt-emulator"
        metrics = daemon.get("/metrics")
        for name in ("infer", "h2d", "d2h", "framework"):
            for phase in ("prefill", "decode"):
                assert f'calrt_{name}_ms_count{{phase="{phase}"}}' in metrics
        assert daemon.stop() == ExitCode.DONE


def test_what_a_board_in_use_does_costs_nobody_a_token(package: Path, evidence: Path, tmp_path: Path) -> None:
    faults = ("no_capacity:nth=30:times=5", "device_busy:nth=80:times=3", "late:nth=90:seconds=0.2")
    anomaly = "counter_anomaly:nth=100:times=2"
    with serving(
        tmp_path, emulator_library(), package, evidence=evidence, faults=",".join((*faults, anomaly))
    ) as daemon:
        assert all(right(daemon.hear_many(PROMPTS, TOKENS)))
        metrics = daemon.get("/metrics")
        assert 'calculet_kv_allocations_refused_total{code="no_capacity"} 5.0' in metrics
        assert 'calrt_errors_total{code="device_busy"} 3.0' in metrics
        assert 'calrt_errors_total{code="counter_anomaly"} 2.0' in metrics
        assert daemon.stop() == ExitCode.DONE


def test_an_output_error_ends_the_requests_of_its_job_and_no_other(
    package: Path, evidence: Path, tmp_path: Path
) -> None:
    with serving(
        tmp_path, emulator_library(), package, evidence=evidence, faults=f"output_error:nth={FIRST_FREE}"
    ) as daemon:
        heard = daemon.hear_many(PROMPTS, TOKENS)
        lost = right(heard).count(False)
        assert 1 <= lost <= SHAPE.lanes
        assert [reply.error for reply in heard].count("output_error") == lost
        assert all(right(daemon.hear_many(PROMPTS, TOKENS)))
        assert daemon.stop() == ExitCode.DONE


def test_two_engines_and_two_resets_cost_nobody_a_token(package: Path, evidence: Path, tmp_path: Path) -> None:
    """Ping and pong at once; a fault on each has the device reset, and what ran is prefilled again."""
    faults = f"ccu_fault:pong:nth={FIRST_OF_PONG},pcie_error:ping:nth={LATER_OF_PING}"
    arguments = both_engines(tmp_path, package)
    with serving(tmp_path, emulator_library(), ALIAS, evidence=evidence, faults=faults, arguments=arguments) as daemon:
        for _ in range(2):
            assert all(right(hear_all(daemon)))
        said, metrics = daemon.stderr(), daemon.get("/metrics")
        assert daemon.stop() == ExitCode.DONE
    for reason in ("ccu_fault", "pcie_error"):
        assert f"reason={reason}" in said
        assert f'calrt_errors_total{{code="{reason}"}} 1.0' in metrics
    for engine in ("ping", "pong"):
        lost = [
            line for line in metrics.splitlines() if f'calculet_jobs_total{{engine="{engine}",outcome="unknown"' in line
        ]
        assert [line.split()[-1] for line in lost] == ["1.0"]


def test_a_stuck_wait_is_left_behind_and_the_process_ends(package: Path, evidence: Path, tmp_path: Path) -> None:
    (tmp_path / "service.yaml").write_text("schema: calculet-service/v1\ntimeouts: {job_s: 2}\n")
    arguments = ["--config", str(tmp_path / "service.yaml")]
    faults = f"stuck_wait:nth={FIRST_FREE}"
    with serving(
        tmp_path, emulator_library(), package, evidence=evidence, faults=faults, arguments=arguments
    ) as daemon:
        assert not all(right(daemon.hear_many(PROMPTS, TOKENS)))
        assert daemon.wait() == ExitCode.RESTART
        assert "device_left_behind reason=timeout" in daemon.stderr()
