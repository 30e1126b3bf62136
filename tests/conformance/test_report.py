"""Reports: the verdict, what it rests on, and every case, for machines and for people."""

from __future__ import annotations

from xml.etree import ElementTree

import attrs
import pytest

from calculet_trio.conformance.report import html, junit, verdict_line
from calculet_trio.conformance.result import Result, Verdict
from calculet_trio.conformance.suite import CASES
from tests.conformance.test_evidence_store import HERE, record

SOME = CASES[:15]
EMULATED = attrs.evolve(HERE, board_kind="emulated")
MIXED = tuple(
    Result(case.name, verdict, "a <b> & \x1b\x00", 1.25)
    for case, verdict in zip(SOME, [Verdict.PASS, Verdict.FAIL, Verdict.NOT_APPLICABLE] * 5, strict=True)
)
ALL_PASS = tuple(Result(case.name, Verdict.PASS, "seen", 0.5) for case in SOME)


def of(results, combination=HERE, **changes):
    return attrs.evolve(record(combination=combination), results=results, **changes)


def test_the_line_says_the_verdict_the_counts_and_what_was_left_out():
    assert verdict_line(of(ALL_PASS), SOME) == "PASS: 15 PASS, 0 FAIL, 0 NOT APPLICABLE"
    assert verdict_line(of(MIXED), SOME) == "FAIL: 5 PASS, 5 FAIL, 5 NOT APPLICABLE"
    assert verdict_line(of(ALL_PASS[:4]), SOME).endswith("11 not tried")
    assert verdict_line(of(ALL_PASS, short=True), SOME).endswith("long cases left out")


@pytest.mark.parametrize("make", [verdict_line, junit, html])
def test_every_report_of_an_emulated_board_says_so_beside_the_verdict(make):
    assert "(emulated)" in make(of(ALL_PASS, EMULATED), SOME)
    assert "emulated" not in make(of(ALL_PASS), SOME)


def test_junit_has_every_case_and_is_well_formed_whatever_a_runtime_said():
    suite = ElementTree.fromstring(junit(of(MIXED[:9]), SOME))
    assert {key: suite.get(key) for key in ("tests", "failures", "skipped", "errors")} == {
        "tests": "15",
        "failures": "3",
        "skipped": "3",
        "errors": "6",
    }
    kinds = [case[0].tag for case in suite.iter("testcase")]
    assert kinds == ["system-out", "failure", "skipped"] * 3 + ["error"] * 6


def test_the_page_has_every_case_escaped_and_needs_no_other_file():
    page = html(of(MIXED[:9]), SOME)
    assert all(case.name in page for case in SOME)
    assert "a &lt;b&gt; &amp;" in page
    assert page.count("not tried") == 6 + 1
    assert "src=" not in page
    assert "href=" not in page
