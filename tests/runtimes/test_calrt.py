"""The board's runtime on the emulator library: the contract on both engines, its tokens, its faults, its manners."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import numpy as np
import pytest

from calculet_trio.core.jobs import EngineId
from calculet_trio.errors import PackageError, Unavailable
from calculet_trio.ids import GenerationId
from calculet_trio.packages import golden
from calculet_trio.packages.calbin import StepTime
from calculet_trio.packages.calbin_writer import EmulatedShape
from calculet_trio.packages.manifest import Manifest
from calculet_trio.runtimes.calrt import BoardOptions, CalrtRuntime
from calculet_trio.runtimes.calrt_library import CalrtLibrary
from calculet_trio.runtimes.emulated import END_TOKEN, continuation
from calculet_trio.runtimes.port import Finished, Submitted
from tests.runtimes.contract import PROMPT, WAIT_S, RuntimeContract, Subject

GENERATION = GenerationId(1)
SMALL = EmulatedShape(batches=(1, 4, 8), lanes=8, max_seq_len=64, vocab_size=300, kv_bytes_per_token=64)
Open = Callable[..., CalrtRuntime]


@pytest.fixture
def open_board(calrt_library: CalrtLibrary, tmp_path: Path) -> Iterator[Open]:
    """Opens the emulated board; every one is closed in the end."""
    opened: list[CalrtRuntime] = []

    def open_it(**options: object) -> CalrtRuntime:
        runtime = CalrtRuntime(calrt_library, BoardOptions(lock=tmp_path / "board.lock", **options))
        opened.append(runtime)
        runtime.open()
        return runtime

    yield open_it
    for runtime in opened:
        runtime.close()


@pytest.fixture
def configured(open_board: Open, emulated_package: Callable[[EmulatedShape], Path]) -> Callable[..., Subject]:
    def configure(shape: EmulatedShape = SMALL, engine: EngineId = EngineId.PING) -> Subject:
        runtime = open_board()
        runtime.configure(GENERATION, emulated_package(shape))
        return Subject(runtime, GENERATION, engine)

    return configure


class TestContractOnPing(RuntimeContract):
    @pytest.fixture
    def subject(self, configured: Callable[..., Subject]) -> Subject:
        return configured()


class TestContractOnPong(RuntimeContract):
    @pytest.fixture
    def subject(self, configured: Callable[..., Subject]) -> Subject:
        return configured(engine=EngineId.PONG)


# ---- tokens -------------------------------------------------------------------------------------------


def greedy(subject: Subject, lane: int, tokens: int, prompt: tuple[int, ...] = PROMPT) -> list[int]:
    sequence = subject.allocate(lane)
    reply = [int(subject.run(subject.prefill_job(lane, sequence, prompt))[0].argmax())]
    while len(reply) < tokens and reply[-1] != END_TOKEN:
        position = len(prompt) + len(reply) - 1
        reply.append(int(subject.run(subject.one_token(lane, sequence, reply[-1], position))[0].argmax()))
    return reply


@pytest.mark.parametrize("engine", EngineId)
def test_it_says_what_the_emulated_board_in_python_says(configured: Callable[..., Subject], engine: EngineId) -> None:
    subject = configured(engine=engine)
    for lane, prompt in enumerate([PROMPT, (0,), (299, 258, 257), tuple(range(40))]):
        assert greedy(subject, lane, 20, prompt) == continuation(prompt, 20)


def test_both_engines_work_at_once_on_sequences_of_their_own(configured: Callable[..., Subject]) -> None:
    subject = configured()
    sequences = [subject.allocate(lane) for lane in (0, 1)]
    tickets = [
        subject.runtime.submit(engine, subject.prefill_job(lane, sequences[lane], (7 + lane, 9)))
        for lane, engine in enumerate(EngineId)
    ]
    outcomes = []
    for engine, ticket in zip(EngineId, tickets, strict=True):
        assert isinstance(ticket, Submitted)
        outcomes.append(subject.runtime.wait(engine, ticket.ticket, WAIT_S))
    said = [int(outcome.logits[0].argmax()) for outcome in outcomes if isinstance(outcome, Finished)]
    assert said == [continuation((7, 9), 1)[0], continuation((8, 9), 1)[0]]


def test_logits_are_looked_at_where_they_are(configured: Callable[..., Subject]) -> None:
    subject = configured()
    sequence = subject.allocate(0)
    seen = []
    for position in range(3):
        submitted = subject.submit(subject.prefill_job(0, sequence, (5,), position=position))
        assert isinstance(submitted, Submitted)
        outcome = subject.wait(submitted)
        assert isinstance(outcome, Finished)
        seen.append(outcome.logits)
    assert seen[0].dtype == np.uint16, "bfloat16, as the board gives it"
    assert np.shares_memory(seen[0], seen[1])
    assert np.shares_memory(seen[0], seen[2])


def test_times_are_told_apart(configured: Callable[..., Subject]) -> None:
    subject = configured(attrs.evolve(SMALL, prefill=StepTime(base_ns=20_000_000)))
    submitted = subject.submit(subject.prefill_job(0, subject.allocate(0)))
    assert isinstance(submitted, Submitted)
    outcome = subject.wait(submitted)
    assert isinstance(outcome, Finished)
    assert outcome.device_s == pytest.approx(0.02)
    assert outcome.h2d_s is not None
    assert outcome.d2h_s is not None
    assert outcome.ticket == submitted.ticket


# ---- what it says of itself ---------------------------------------------------------------------------


def test_a_model_that_was_unloaded_makes_room_for_the_next(
    open_board: Open, emulated_package: Callable[[EmulatedShape], Path]
) -> None:
    runtime = open_board()
    for generation in (GenerationId(1), GenerationId(2)):
        runtime.configure(generation, emulated_package(SMALL))
        assert runtime.golden(generation).passed
        assert runtime.unload(generation)
        assert runtime.memory().used_bytes == 0


def test_everything_says_that_it_is_the_emulator(open_board: Open) -> None:
    runtime = open_board()
    runtime.close()
    info = runtime.open()
    assert (info.kind, info.engines) == ("calrt-emulator", tuple(EngineId))
    assert info.versions["calrt"] == "0.7.6"
    assert "emulator" in info.name


def test_a_memory_total_that_is_nonsense_is_not_passed_on(open_board: Open) -> None:
    memory = open_board().memory()
    assert memory.total_bytes is None
    assert memory.used_bytes >= 0


def test_a_second_one_in_this_process_is_refused(open_board: Open) -> None:
    open_board()
    with pytest.raises(Unavailable, match="the board cannot be opened"):
        open_board()


# ---- packages that do not fit -------------------------------------------------------------------------


def changed(package: Path, tmp_path: Path, **changes: object) -> Path:
    """A copy of the package whose manifest says something else."""
    copy = tmp_path / "changed"
    shutil.copytree(package, copy)
    attrs.evolve(Manifest.load(copy), **changes).save(copy)
    return copy


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: {"target": "calculet"}, "is for 'calculet' devices; this one is 'calrt-emulator'"),
        (lambda m: {"binary": None}, "binary is null"),
        (lambda m: {"binary": attrs.evolve(m.binary, version="0.9")}, "never tried: .*calbin_schema 0.9"),
        (lambda m: {"kv": attrs.evolve(m.kv, max_seq=65)}, "kv.max_seq is 65; allowed: at most the calbin's 64"),
        (lambda m: {"binary": attrs.evolve(m.binary, shards=m.binary.shards[:1])}, "the calbin was refused"),
        (lambda m: {"binary": attrs.evolve(m.binary, overridden=())}, "the known defect prefill_typed_decode, which"),
    ],
)
def test_a_package_that_is_not_this_boards_is_refused(
    open_board: Open,
    emulated_package: Callable[[EmulatedShape], Path],
    tmp_path: Path,
    change: Callable[[Manifest], dict[str, object]],
    words: str,
) -> None:
    package = emulated_package(SMALL)
    runtime = open_board()
    with pytest.raises(PackageError, match=words):
        runtime.configure(GENERATION, changed(package, tmp_path, **change(Manifest.load(package))))
    runtime.configure(GENERATION, package)  # what was begun has been undone
    assert runtime.golden(GENERATION).passed


def test_untried_versions_are_taken_by_force_and_then_said(
    open_board: Open, emulated_package: Callable[[EmulatedShape], Path], tmp_path: Path
) -> None:
    package = emulated_package(SMALL)
    binary = attrs.evolve(Manifest.load(package).binary, version="0.9")
    runtime = open_board(accept_untried=True)
    runtime.configure(GENERATION, changed(package, tmp_path, binary=binary))
    [warning] = runtime.inspect(GENERATION).warnings
    assert warning.startswith("forced: this combination of versions was never tried: ")
    assert "calbin_schema 0.9" in warning


def test_a_golden_that_is_not_its_own_is_seen(
    open_board: Open, emulated_package: Callable[[EmulatedShape], Path], tmp_path: Path
) -> None:
    copy = tmp_path / "changed"
    shutil.copytree(emulated_package(SMALL), copy)
    manifest = Manifest.load(copy)
    first, *others = golden.load(copy, manifest)
    golden.save(copy, manifest, (attrs.evolve(first, prompt=(*first.prompt[:-1], 3)), *others))
    runtime = open_board()
    runtime.configure(GENERATION, copy)
    result = runtime.golden(GENERATION)
    assert not result.passed
    assert "clear decisions changed" in result.detail
