"""The fault table: a row for every reason, and the document beside it says the same."""

from __future__ import annotations

from pathlib import Path

import pytest

import calculet_trio.core.faults as faults
from calculet_trio.core.events import FaultReason
from calculet_trio.core.faults import FAULTS, Held, Next, Told

DOCUMENT = Path(faults.__file__).with_name("FAULTS.md")


def test_every_reason_has_a_row_and_a_word_of_its_own_in_the_log() -> None:
    assert set(FAULTS) == set(FaultReason)
    assert len({rule.log for rule in FAULTS.values()}) == len(FAULTS)


def test_the_document_is_the_table() -> None:
    assert faults.as_markdown() in DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.parametrize("reason", FaultReason)
def test_rows_hold_together(reason: FaultReason) -> None:
    rule = FAULTS[reason]
    ends_service = rule.next in (Next.RESET, Next.RESTART, Next.RESTART_OR_RESET)
    assert (Held.GENERATION in rule.held) == ends_service, "models leave Ready for a reset, and for nothing else"
    assert (Held.JOB in rule.held) == (Held.BUFFERS in rule.held), "an Unknown job's buffers are held as it is"
    assert rule.next is not Next.TRY_AGAIN or rule.told is Told.NOTHING
