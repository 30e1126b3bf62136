"""The suite: a good board passes every case, and each case is seen to fail on a board that is wrong in its thing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import calculet_trio.conformance
from calculet_trio.conformance.agreement import Agreement
from calculet_trio.conformance.result import Verdict
from calculet_trio.conformance.rig import NotApplicable
from calculet_trio.conformance.suite import CASES, chosen, run_cases, verdict_of
from calculet_trio.core.evidence import CAPABILITIES, CHUNKED_PREFILL_CONDITIONS, batch_capability
from calculet_trio.core.profiles import InactiveLanePolicy, LaneLayout
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.runtimes.device_model import PrefillCurve, StepCurve
from tests.conformance import boards
from tests.conformance.boards import board, rig_of

BY_NAME = {case.name: case for case in CASES}
WIDE = Agreement(logit_tolerance=1000.0, decisive_gap=1000.0)


def tried(rig, cases=CASES, done=()):
    return run_cases(rig, cases, done=dict(done), begun=lambda _case: None, ended=lambda _result: None)


@pytest.mark.parametrize("layout", list(LaneLayout))
def test_a_good_board_passes_everything(layout):
    results = tried(rig_of(board(layout=layout)))
    assert [(result.case, result.why) for result in results if result.verdict is not Verdict.PASS] == []
    assert verdict_of(results, CASES) is Verdict.PASS


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        ("golden", boards.SaysSomethingElse),
        ("one_sequence", boards.ForgetsOnDecode),
        ("two_alternating", boards.TouchesItsNeighbour),
        ("cancel_queued", boards.KeepsWhatWasReleased),
        ("lanes_1_to_b", boards.SwapsRows),
        ("inactive_lane_writes_no_kv", boards.WritesIntoIdleLanes),
        ("mixed_lengths", boards.SwapsRows),
        ("cancel_running", boards.ReleasesInTheMiddle),
        ("cancel_running", boards.SwapsRows),
        ("remove_tail_boundaries", boards.RemovesNothing),
        ("near_max_seq", boards.EndsTooLate),
        ("near_max_seq", boards.TouchesItsNeighbour),
        ("incremental_prefill_supported", boards.LosesSamplelessPieces),
        ("kv_equal_to_whole_prefill", boards.ForgetsEarlierPieces),
        ("positions_and_csrs_clear", boards.TakesAnyPosition),
        ("positions_and_csrs_clear", boards.TouchesItsNeighbour),
        ("chunk_boundaries", boards.ForgetsEarlierPieces),
        ("golden_and_performance", boards.SaysSomethingElse),
        ("prefix_reuse", boards.ForgetsWhatWasDecoded),
        ("prefix_reuse", boards.RemovesNothing),
        ("prefix_reuse", boards.TouchesItsNeighbour),
        ("reply_reuse", boards.ForgetsWhatWasDecoded),
        ("ping_pong_two_jobs", boards.SharesOneHistory),
        ("device_busy", boards.NeverRefuses),
        ("timeout", boards.AnswersLate),
        ("timeout", boards.RemembersAcrossResets),
        ("ccu_fault", boards.RemembersAcrossResets),
        ("ccu_fault", boards.NeverQuiet),
        ("pcie_error", boards.RemembersAcrossResets),
        ("load_unload_soak", boards.KeepsMemory),
        ("load_unload_soak", boards.KeepsTheModel),
        ("load_unload_soak", boards.RemembersAcrossResets),
    ],
)
def test_each_case_finds_what_it_is_there_for(case, kind):
    result, _ = BY_NAME[case].tried(rig_of(board(kind)))
    assert result.verdict is Verdict.FAIL, result.why
    assert result.why.startswith("raised") == (kind is boards.LosesSamplelessPieces), result.why


def test_pieces_that_cost_too_much_fail_by_the_devices_own_time():
    result, _ = BY_NAME["golden_and_performance"].tried(rig_of(board(prefill=PrefillCurve(1.0, 0.001))))
    assert result.verdict is Verdict.FAIL
    assert "allowed 1.5" in result.why


def test_a_tolerance_that_hides_mix_ups_fails_the_cases_that_would_not_see_them():
    rig = rig_of(board(), agreement=WIDE)
    for name in ("one_sequence", "two_alternating", "lanes_1_to_b", "mixed_lengths", "kv_equal_to_whole_prefill"):
        result, _ = BY_NAME[name].tried(rig)
        assert result.verdict is Verdict.FAIL
        assert "cannot be told apart" in result.why


# ---- what does not apply ------------------------------------------------------------------------------


def not_applicable(runtime):
    return {result.case for result in tried(rig_of(runtime)) if result.verdict is Verdict.NOT_APPLICABLE}


def test_batches_do_not_apply_to_one_lane_profiles_or_without_a_mask_contract():
    batches = set(batch_capability(4).conditions)
    assert not_applicable(board(decode={1: StepCurve(0.01)})) == batches
    assert not_applicable(board(inactive_lane=InactiveLanePolicy.NONE)) == batches


def test_what_the_runtime_does_not_claim_does_not_apply():
    unclaimed = {"remove_tail_boundaries", "incremental_prefill_supported", "prefix_reuse", "reply_reuse"}
    assert not_applicable(board(boards.ClaimsNothing)) == unclaimed


def test_a_fault_that_may_not_be_provoked_and_a_second_engine_that_is_not_there_do_not_apply():
    rig = rig_of(board(engines=1), can_fail=False)
    missing = {result.case: result.why for result in tried(rig) if result.verdict is Verdict.NOT_APPLICABLE}
    assert missing.keys() == {"ping_pong_two_jobs", "timeout", "ccu_fault", "pcie_error"}
    assert missing["ping_pong_two_jobs"] == "the device has one engine, ping"
    assert "does not declare that ccu_fault can be provoked" in missing["ccu_fault"]


def test_a_package_without_usable_profile_or_context_is_refused():
    with pytest.raises(ConfigurationRefused, match="0 usable"):
        rig_of(board(decode={4: StepCurve(0.01)}, inactive_lane=InactiveLanePolicy.NONE))
    with pytest.raises(ConfigurationRefused, match="16 tokens"):
        rig_of(board(context_tokens=16))


def test_one_lane_has_nobody_to_alternate_with():
    with pytest.raises(NotApplicable, match="one lane"):
        BY_NAME["two_alternating"].check(rig_of(board(lanes=1, decode={1: StepCurve(0.01)})))


# ---- the run ------------------------------------------------------------------------------------------


def test_a_device_that_stops_ends_the_run_and_the_verdict_is_fail():
    results = tried(rig_of(board(boards.NeverAnswers)))
    assert [result.case for result in results] == ["golden", "one_sequence"]
    assert "unknown: timeout" in results[-1].why
    assert verdict_of(results, CASES) is Verdict.FAIL
    assert verdict_of(results[:1], CASES) is Verdict.FAIL, "not everything was tried"


def test_a_runtime_that_raises_fails_the_case_with_what_it_said():
    result, _ = BY_NAME["incremental_prefill_supported"].tried(rig_of(board(boards.LosesSamplelessPieces)))
    assert result.why.startswith("raised RuntimeError: no logits were asked for")


def test_what_was_done_before_is_not_tried_again():
    rig = rig_of(board())
    first = tried(rig, CASES[:3])
    seen = []
    again = run_cases(
        rig, CASES[:4], done={r.case: r for r in first}, begun=lambda case: seen.append(case.name), ended=seen.append
    )
    assert again[:3] == first
    assert seen == [CASES[3].name, again[3]]


def test_cases_are_chosen_by_name_and_a_short_run_leaves_the_long_ones_out():
    assert chosen((), short=False) == CASES
    assert {case.name for case in CASES} - {case.name for case in chosen((), short=True)} == {
        "near_max_seq",
        "golden_and_performance",
        "load_unload_soak",
    }
    assert [case.name for case in chosen(("near_max_seq",), short=True)] == ["near_max_seq"]
    with pytest.raises(ConfigurationRefused, match="no conformance case 'nonsense'"):
        chosen(("nonsense",), short=False)


def test_the_readme_names_a_case_for_every_row_of_the_matrix_and_every_case():
    text = (Path(calculet_trio.conformance.__file__).parent / "README.md").read_text("utf-8")
    matrix, _, others = text.partition("## Milestones")[0].partition("## Beyond the matrix")
    rows = [line for line in matrix.splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) == 9, "the rows of S §18"
    assert set(re.findall(r"`([a-z_0-9]+)`", "\n".join(rows) + others)) == {case.name for case in CASES}


def test_every_condition_that_can_be_earned_today_is_a_case():
    names = {case.name for case in CASES}
    assert len(names) == len(CASES)
    assert names.issuperset(CHUNKED_PREFILL_CONDITIONS)
    assert names.issuperset(batch_capability(8).conditions)
    assert names.issuperset(CAPABILITIES["remove_tail"].conditions)
    assert names.issuperset(CAPABILITIES["prefix_reuse"].conditions)
    assert names.issuperset(CAPABILITIES["ping_pong"].conditions)
    assert all(case.says.endswith(".") for case in CASES)
