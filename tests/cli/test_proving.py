"""Proving at the start: earned once, on this machine; refused where it was not shown; nothing for later starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from calculet_trio.cli.proving import Prover, Wish
from calculet_trio.conformance.agreement import EXACT
from calculet_trio.conformance.evidence_store import EvidenceStore
from calculet_trio.conformance.result import Verdict
from calculet_trio.conformance.run_record import combination_of
from calculet_trio.core.evidence import BATCH_CONDITIONS, Evidence, batch_capability
from calculet_trio.core.policy import AdmissionPolicy, BatchPolicy, ExecutorPolicy, Policy, ReusePolicy
from calculet_trio.errors import ConfigurationRefused, Unavailable
from calculet_trio.runtimes.emulated import EmulatedRuntime
from calculet_trio.settings.service import RuntimeKind
from calculet_trio.shell.loading import ModelSource, ModelText
from calculet_trio.text.byte_tokenizer import ByteTokenizer
from tests.conformance import boards
from tests.conformance.stores import store_in

ASKS_FOR_FOUR = Policy(batch=BatchPolicy(profiles=(1, 4)))
SOURCE = ModelSource(
    alias="m", package=Path("board"), verify=lambda: None, open_text=lambda: ModelText(ByteTokenizer(), None), meta={}
)


class Start:
    """A start of the daemon, as far as proving goes."""

    def __init__(self, store: EvidenceStore, policy: Policy, kind: type[EmulatedRuntime] = EmulatedRuntime) -> None:
        self.said: list[str] = []
        self.store = store
        board = boards.board(kind)
        self.device = attrs.evolve(board.open(), kind=self.board_kind)
        self.prover = Prover(
            runtime=board,
            trial_runtime=lambda _generation: board,
            kind=RuntimeKind.EMULATED,
            policy=policy,
            source=SOURCE,
            agreement=EXACT,
            store=store,
            say=self.said.append,
        )

    board_kind = "emulated"

    def evidence(self) -> Evidence:
        combination = combination_of("ab" * 32, self.device)
        proof = self.prover.prove(boards.GENERATION, self.device, self.store.found().evidence(combination))
        for step in proof.steps():
            step()
        return proof.evidence()


class OnABoard(Start):
    """The same, where the device says that it is a board."""

    board_kind = "calculet"


@pytest.fixture
def store(tmp_path: Path) -> EvidenceStore:
    return store_in(tmp_path / "evidence")


def earned(evidence: Evidence, batch: int) -> bool:
    return evidence.standing(batch_capability(batch)).earned


def test_batches_are_earned_once_and_a_later_start_does_nothing(store: EvidenceStore) -> None:
    first = Start(store, Policy())
    assert earned(first.evidence(), 4)
    assert first.said[0].startswith("showing, once,")
    assert len(first.said) == 1 + len(BATCH_CONDITIONS)
    [record] = store.found().records
    assert record.cases(Verdict.PASS) == set(BATCH_CONDITIONS)
    assert record.short
    later = Start(store, Policy())
    assert earned(later.evidence(), 4)
    assert later.said == []
    assert len(store.found().records) == 1


def test_where_no_record_could_be_kept_nothing_is_tried(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    start = Start(store_in(tmp_path / "file" / "evidence", keys=tmp_path / "keys"), Policy())
    with pytest.raises(Unavailable, match="cannot be written"):
        start.evidence()
    assert start.said == [], "minutes of work that would be lost"


def test_what_fails_is_on_record_is_not_tried_again_and_is_not_used(store: EvidenceStore) -> None:
    first = Start(store, Policy(), boards.SwapsRows)
    assert not earned(first.evidence(), 4)
    later = Start(store, Policy(), boards.SwapsRows)
    later.evidence()
    assert len(later.said) <= 1 + 1, "only what has not failed before"


def test_an_unearned_capability_that_was_asked_for_refuses_the_start_and_names_the_command(
    store: EvidenceStore,
) -> None:
    with pytest.raises(ConfigurationRefused, match="asks for batch:4, which is not earned here") as refused:
        Start(store, ASKS_FOR_FOUR, boards.SwapsRows).evidence()
    assert refused.value.hint == "`calculet-trio conformance run --runtime emulated` would earn it"


def test_nothing_is_tried_on_a_board_by_itself(store: EvidenceStore) -> None:
    start = OnABoard(store, ASKS_FOR_FOUR)
    with pytest.raises(ConfigurationRefused, match="batch:4"):
        start.evidence()
    assert start.said == []
    assert not earned(OnABoard(store, Policy()).evidence(), 4)


def test_time_that_is_over_begins_no_further_case(store: EvidenceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calculet_trio.cli.proving.EARNING_S", -1.0)
    assert not earned(Start(store, Policy()).evidence(), 4)
    assert store.found().records == ()


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        (lambda policy: policy, ()),
        (lambda policy: attrs.evolve(policy, admission=AdmissionPolicy(max_inflight_jobs=2)), ("ping_pong",)),
        (
            lambda policy: attrs.evolve(
                policy,
                admission=AdmissionPolicy(max_inflight_jobs=2),
                executor=ExecutorPolicy(fixed_engine=True),
            ),
            (),
        ),
        (lambda _policy: ASKS_FOR_FOUR, ("batch:1", "batch:4")),
        (lambda policy: attrs.evolve(policy, reuse=ReusePolicy(enabled=True)), ("prefix_reuse",)),
    ],
)
def test_what_a_configuration_names_is_asked_for(change: Callable[[Policy], Policy], asked: tuple[str, ...]) -> None:
    board = boards.board()
    wish = Wish.of(change(Policy()), board.model.shape(), board.open())
    assert tuple(each.name for each in wish.asked) == asked


def test_prefix_reuse_that_was_asked_for_and_not_shown_refuses_the_start(store: EvidenceStore, tmp_path: Path) -> None:
    asks = Policy(reuse=ReusePolicy(enabled=True))
    assert Start(store_in(tmp_path / "of a good board"), asks).evidence().allows("prefix_reuse")
    with pytest.raises(ConfigurationRefused, match=r"asks for prefix_reuse, .* conformance cases: prefix_reuse$") as no:
        Start(store, asks, boards.ForgetsWhatWasDecoded).evidence()
    assert no.value.hint == "`calculet-trio conformance run --runtime emulated` would earn it"


@pytest.mark.parametrize("enabled", [None, False])
def test_prefix_reuse_that_nobody_asked_for_is_not_tried_at_a_start(store: EvidenceStore, enabled: bool | None) -> None:
    assert not Start(store, Policy(reuse=ReusePolicy(enabled=enabled))).evidence().allows("prefix_reuse")
