"""The CPU runtime: the contract, and what is its own: bounds in time and memory, refusals, golden."""

from __future__ import annotations

import ctypes
import json
import mmap
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from calculet_trio.core.events import FaultReason
from calculet_trio.core.jobs import EngineId
from calculet_trio.errors import PackageError
from calculet_trio.ids import GenerationId, LaneId
from calculet_trio.packages.manifest_parts import WeightForm
from calculet_trio.runtimes import run_timer
from calculet_trio.runtimes.host import HostRuntime
from calculet_trio.runtimes.port import Finished, NotAllocated, Submitted, Ticket, Unknown
from tests.models import TinyModel
from tests.runtimes.conftest import MakePackage
from tests.runtimes.contract import PROMPT, RuntimeContract, Subject, work

GENERATION = GenerationId(1)
FREED_BLOCKS = 512
FREED_BYTES = FREED_BLOCKS << 16


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * mmap.PAGESIZE


@pytest.fixture
def package(make_package: MakePackage) -> Path:
    return make_package(TinyModel(), WeightForm.FP32)


@pytest.fixture
def subject(package: Path) -> Iterator[Subject]:
    runtime = HostRuntime()
    runtime.open()
    runtime.configure(GENERATION, package)
    yield Subject(runtime, GENERATION)
    runtime.close()


class TestContract(RuntimeContract):
    @pytest.fixture
    def subject(self, subject: Subject) -> Subject:
        return subject


# ---- what it says of itself ---------------------------------------------------------------------------


def test_it_says_that_it_is_a_cpu_and_which_onnxruntime_it_uses() -> None:
    runtime = HostRuntime()
    info = runtime.open()
    assert info.kind == "cpu"
    assert info.engines == (EngineId.PING, EngineId.PONG)
    assert set(info.versions) == {"onnxruntime"}
    runtime.close()


def test_the_tensors_are_those_that_the_session_reports(subject: Subject) -> None:
    tensors = subject.runtime.inspect(GENERATION).tensors
    logits = [tensor for tensor in tensors if tensor.name == "logits"]
    assert {tensor.submodel for tensor in logits} == {"prefill", "decode_b1", "decode_b4", "decode_b8"}
    assert {tensor.dtype for tensor in logits} == {"tensor(float)"}
    assert {tensor.shape[-1] for tensor in logits} == {subject.shape.vocab_size}


# ---- packages it will not run -------------------------------------------------------------------------


def damaged(package: Path, into: Path, **changes: object) -> Path:
    shutil.copytree(package, into)
    path = into / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return into


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda copy: (copy / "manifest.json").unlink(), "is not a package"),
        (lambda copy: (copy / "model.onnx").write_bytes(b"no graph"), "cannot be loaded"),
        (lambda copy: (copy / "weights.bin").unlink(), "cannot be loaded"),
    ],
)
def test_a_damaged_package_is_refused_and_nothing_of_it_stays(
    subject: Subject, package: Path, tmp_path: Path, damage: object, sentence: str
) -> None:
    copy = damaged(package, tmp_path / "copy")
    damage(copy)  # type: ignore[operator]
    with pytest.raises(PackageError, match=sentence):
        subject.runtime.configure(GenerationId(2), copy)
    assert not subject.runtime.can_allocate(GenerationId(2), 1)
    subject.runtime.configure(GenerationId(2), package)


def test_a_package_for_another_device_is_refused_by_name(subject: Subject, package: Path, tmp_path: Path) -> None:
    copy = damaged(package, tmp_path / "copy", target="calculet")
    with pytest.raises(PackageError, match="for 'calculet' devices; this runtime runs 'cpu'"):
        subject.runtime.configure(GenerationId(2), copy)


def test_a_package_larger_than_the_machine_is_refused_with_both_figures(
    subject: Subject, package: Path, tmp_path: Path
) -> None:
    kv = json.loads((package / "manifest.json").read_text())["kv"]
    copy = damaged(package, tmp_path / "copy", kv={**kv, "bytes_per_token": 2**44})
    with pytest.raises(PackageError, match=r"may need \d+ MiB with all its lanes full; this machine has \d+ MiB"):
        subject.runtime.configure(GenerationId(2), copy)


def test_a_graph_with_other_inputs_than_its_manifest_is_refused(
    subject: Subject, package: Path, tmp_path: Path
) -> None:
    submodels = json.loads((package / "manifest.json").read_text())["submodels"]
    for submodel in submodels:
        submodel["inputs"][0]["name"] = "tokens"
    copy = damaged(package, tmp_path / "copy", submodels=submodels)
    with pytest.raises(PackageError, match="disagree on inputs: ids, tokens"):
        subject.runtime.configure(GenerationId(2), copy)


# ---- generations --------------------------------------------------------------------------------------


def test_two_generations_are_resident_at_once_and_share_nothing(subject: Subject, make_package: MakePackage) -> None:
    runtime, second = subject.runtime, Subject(subject.runtime, GenerationId(2))
    alone = subject.run(subject.prefill_job(0, subject.allocate(0)))
    runtime.configure(second.generation, make_package(TinyModel(seed=2), WeightForm.FP32))
    other = second.run(second.prefill_job(1, second.allocate(1)))
    again = subject.run(subject.prefill_job(1, subject.allocate(1)))
    np.testing.assert_array_equal(alone, again)
    assert np.abs(other - alone).max() > 1
    assert isinstance(runtime.allocate(GenerationId(3), LaneId(0), 1), NotAllocated)


# ---- time ---------------------------------------------------------------------------------------------


def test_a_wait_without_time_is_unknown_and_commits_nothing(subject: Subject) -> None:
    sequence = subject.allocate(0)
    submitted = subject.submit(subject.prefill_job(0, sequence))
    assert isinstance(submitted, Submitted)
    assert subject.runtime.wait(EngineId.PING, submitted.ticket, 0.0) == Unknown(FaultReason.TIMEOUT)
    subject.run(subject.prefill_job(0, sequence))


def test_a_run_over_its_time_is_stopped(make_package: MakePackage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_timer, "LOOK_S", 0.0005)
    slow = make_package(SLOW_MODEL, WeightForm.FP32)
    runtime = HostRuntime(threads=1)
    runtime.open()
    runtime.configure(GENERATION, slow)
    subject = Subject(runtime, GENERATION)
    sequence = subject.allocate(0)
    prompt = [3] * (subject.shape.max_seq - 1)
    submitted = subject.submit(subject.prefill_job(0, sequence, prompt))
    assert isinstance(submitted, Submitted)
    assert runtime.wait(EngineId.PING, submitted.ticket, 1e-6) == Unknown(FaultReason.TIMEOUT)
    subject.run(subject.prefill_job(0, sequence, prompt))
    runtime.close()


SLOW_MODEL = TinyModel(layers=24, width=256, feed_forward=512)
"""Some ten milliseconds for a prompt: several looks of the timer, many operators to stop between."""


def test_a_ticket_is_waited_for_once(subject: Subject) -> None:
    sequence = subject.allocate(0)
    submitted = subject.submit(subject.prefill_job(0, sequence))
    assert isinstance(submitted, Submitted)
    assert subject.runtime.wait(EngineId.PING, Ticket(submitted.ticket + 1), 1.0) == Unknown(FaultReason.RUNTIME_ERROR)
    assert isinstance(subject.wait(submitted), Finished)
    assert subject.wait(submitted) == Unknown(FaultReason.RUNTIME_ERROR)


def test_the_device_s_own_time_is_told(subject: Subject) -> None:
    submitted = subject.submit(subject.prefill_job(0, subject.allocate(0)))
    assert isinstance(submitted, Submitted)
    outcome = subject.wait(submitted)
    assert isinstance(outcome, Finished)
    assert outcome.device_s is not None
    assert outcome.device_s > 0


# ---- memory -------------------------------------------------------------------------------------------


def test_a_decode_step_allocates_nothing_that_stays(subject: Subject) -> None:
    profile = subject.shape.decode[-1]
    sequences = [subject.allocate(lane) for lane in range(profile.compiled_batch)]
    for lane, sequence in enumerate(sequences):
        subject.run(subject.prefill_job(lane, sequence))
    buffers = set()
    for step in range(subject.shape.max_seq - len(PROMPT)):
        lanes = [lane for lane in range(profile.compiled_batch) if (lane + step) % 3]
        lengths = [len(PROMPT) + sum((lane + past) % 3 != 0 for past in range(step)) for lane in lanes]

        works = [work(lane, sequences[lane], lane, 3, length) for lane, length in zip(lanes, lengths, strict=True)]
        submitted = subject.submit(subject.decode_job(profile, 0, works))
        assert isinstance(submitted, Submitted)
        outcome = subject.wait(submitted)
        assert isinstance(outcome, Finished)
        assert outcome.logits is not None
        buffers.add(outcome.logits.ctypes.data)
    assert len(buffers) == 1, "logits lie in one pooled buffer"


def test_what_was_freed_goes_back_to_the_system_with_a_model(subject: Subject) -> None:
    library = ctypes.CDLL(None)
    if not hasattr(library, "malloc_trim"):
        pytest.skip("the C library keeps nothing that it could be asked for")
    library.malloc.restype = ctypes.c_void_p
    blocks = [ctypes.c_void_p(library.malloc(FREED_BYTES // FREED_BLOCKS)) for _ in range(FREED_BLOCKS)]
    above = ctypes.c_void_p(library.malloc(64))  # what holds the heap of everything below it
    for block in blocks:
        ctypes.memset(block, 1, FREED_BYTES // FREED_BLOCKS)
    for block in blocks:
        library.free(block)
    kept_bytes = resident_bytes()
    assert subject.runtime.unload(GENERATION)
    assert kept_bytes - resident_bytes() > FREED_BYTES // 2
    library.free(above)


# ---- golden -------------------------------------------------------------------------------------------


def test_golden_notices_a_model_that_says_something_else(
    subject: Subject, make_package: MakePackage, package: Path, tmp_path: Path
) -> None:
    copy = damaged(package, tmp_path / "copy")
    other = make_package(TinyModel(seed=2), WeightForm.FP32)
    for name in ("model.onnx", "weights.bin"):
        shutil.copyfile(other / name, copy / name)
    subject.runtime.configure(GenerationId(2), copy)
    result = subject.runtime.golden(GenerationId(2))
    assert not result.passed
    assert "clear decisions changed" in result.detail


def test_a_package_without_golden_is_refused_when_it_is_replayed(
    subject: Subject, package: Path, tmp_path: Path
) -> None:
    copy = damaged(package, tmp_path / "copy", golden=None)
    subject.runtime.configure(GenerationId(2), copy)
    with pytest.raises(PackageError, match="has no golden recording"):
        subject.runtime.golden(GenerationId(2))
