"""Checks run side by side, each within its bound; whatever one does, every one has a finding."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from calculet_trio.doctor import wording
from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.examination import Report, Result, examine
from calculet_trio.doctor.finding import TEXT_CHARACTERS_MAX, Finding, Mark, failure, ok, printable, warning
from calculet_trio.doctor.host_tree import HostTree
from calculet_trio.doctor.registry import CHECKS, UnknownCheck, chosen
from calculet_trio.doctor.surroundings import Surroundings
from tests.doctor.recorded import surroundings

MEET_S = 30


@pytest.fixture
def around(tmp_path: Path) -> Surroundings:
    return surroundings(HostTree(tmp_path), tmp_path)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Lets checks that hang go, so that no thread outlives the test."""
    event = threading.Event()
    yield event
    event.set()


def check(name: str, examine: Callable[[Surroundings], Finding]) -> Check:
    return Check(name=name, group=Group.HOST, why="it matters", examine=examine)


async def test_a_check_that_breaks_is_a_failure_that_names_it(around: Surroundings) -> None:
    def broken(_around: Surroundings) -> Finding:
        raise ZeroDivisionError("of all things")

    report = await examine([check("broken", broken), check("well", lambda _: ok("well"))], around)
    first, second = report.results
    assert first.finding.mark is Mark.FAILURE
    assert first.finding.seen == "the check 'broken' broke: ZeroDivisionError: of all things"
    assert second.finding == ok("well")


async def test_a_check_that_hangs_is_a_failure_that_names_it(around: Surroundings, release: threading.Event) -> None:
    def hang(_around: Surroundings) -> Finding:
        release.wait(MEET_S)
        return ok("too late")

    report = await examine([check("hangs", hang), check("well", lambda _: ok("well"))], around, check_s=0.05)
    assert [result.finding.mark for result in report.results] == [Mark.FAILURE, Mark.OK]
    assert report.results[0].finding.seen == "the check 'hangs' did not end within 0.05 s"


async def test_checks_run_at_once_and_are_reported_in_order(around: Surroundings) -> None:
    barrier = threading.Barrier(50)

    def meet(_around: Surroundings) -> Finding:
        barrier.wait(MEET_S)  # passes only if all of them run at the same time
        return ok("met")

    checks = [check(f"number-{number}", meet) for number in range(50)]
    report = await examine(checks, around, check_s=MEET_S)
    assert [result.check for result in report.results] == checks
    assert report.count(Mark.OK) == 50


async def test_no_check_at_all_is_a_report_too(around: Surroundings) -> None:
    assert (await examine([], around)).passes(strict=True)


@pytest.mark.parametrize(
    ("findings", "passes", "passes_strictly"),
    [
        ([ok("a")], True, True),
        ([ok("a"), warning("b", todo="c")], True, False),
        ([ok("a"), failure("b", todo="c")], False, False),
    ],
)
def test_verdicts(findings: list[Finding], passes: bool, passes_strictly: bool) -> None:
    report = Report(tuple(Result(check(str(index), lambda _: ok("")), each) for index, each in enumerate(findings)))
    assert report.passes(strict=False) is passes
    assert report.passes(strict=True) is passes_strictly


# ---- the registry ---------------------------------------------------------------------------------------


def test_names_are_unique_and_are_no_groups() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert not set(names) & {group.value.casefold() for group in Group}


def test_groups_stand_together_in_their_order_and_none_is_empty() -> None:
    groups = list(dict.fromkeys(check.group for check in CHECKS))
    assert groups == list(Group)
    order = [list(Group).index(check.group) for check in CHECKS]
    assert order == sorted(order)


def test_every_file_of_a_group_is_registered() -> None:
    """A check that nobody runs would be found by nobody."""
    from calculet_trio import doctor

    rooms = [Path(doctor.__file__).parent / group.value.casefold() for group in Group]
    files = {path.stem for room in rooms for path in room.glob("*.py") if "CHECK = Check(" in path.read_text("utf-8")}
    assert files == {check.name.replace("-", "_") for check in CHECKS}


def test_only_takes_names_and_groups_in_any_case() -> None:
    assert chosen([]) == CHECKS
    assert [check.name for check in chosen(["health", "MEMORY"])] == ["memory", "health"]
    assert {check.group for check in chosen(["board"])} == {Group.BOARD}
    assert chosen(["Board", "pci"]) == chosen(["board"])


@pytest.mark.parametrize("name", ["", "nope", "pci,link", "x" * 10_000])
def test_an_unknown_name_is_told_those_that_exist(name: str) -> None:
    with pytest.raises(UnknownCheck) as caught:
        chosen(["pci", name])
    assert len(str(caught.value)) < 1000
    for check in CHECKS:
        assert check.name in str(caught.value)


# ---- words ----------------------------------------------------------------------------------------------


def test_findings_are_one_printable_line() -> None:
    assert printable("a\n\tb \x1b[31m \udcff") == "a b \ufffd[31m \ufffd"
    assert len(printable("x" * 10_000)) == TEXT_CHARACTERS_MAX
    assert warning("\x07", todo="\x07") == Finding(Mark.WARNING, "\ufffd", "\ufffd")


def test_the_symbols_are_those_of_the_report() -> None:
    assert [mark.symbol for mark in Mark] == ["✓", "!", "✗"]


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (98_400_000, "98.4 MB"),
        (2**35, "34.4 GB"),
        (5e15, "5,000 TB"),
    ],
)
def test_amounts(size_bytes: float, shown: str) -> None:
    assert wording.amount(size_bytes) == shown


def test_lists_are_bounded() -> None:
    assert wording.listing(["a", "b"]) == "a, b"
    assert wording.listing([str(n) for n in range(9)]) == "0, 1, 2, 3, 4, 5 and 3 more"
    assert [wording.count(number, "board") for number in (0, 1, 2)] == ["0 boards", "1 board", "2 boards"]
