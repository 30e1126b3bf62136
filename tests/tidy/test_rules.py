"""Every file keeps every rule; and every rule finds the breach that is planted for it."""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePosixPath

import pytest

from tests.tidy import rules
from tests.tidy.rules import Rule, Source

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("calculet_trio", "tests", "tools")


def python_files() -> list[Path]:
    """The Python files of our rooms, scripts without a suffix included."""
    found = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    for script in sorted((ROOT / "tools").iterdir()):
        if script.is_file() and not script.suffix and b"python" in script.read_bytes().split(b"\n", 1)[0]:
            found.append(script)
    return found


SOURCES = [Source(PurePosixPath(path.relative_to(ROOT).as_posix()), path.read_text("utf-8")) for path in python_files()]


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_every_file_keeps(rule: Rule) -> None:
    breaches = [breach for source in SOURCES for breach in rule(source)]
    assert not breaches, f"{rule.__doc__}\n" + "\n".join(breaches)


def test_the_files_are_found() -> None:
    paths = {str(source.path) for source in SOURCES}
    assert {"calculet_trio/errors.py", "calculet_trio/core/transition.py", "tests/tidy/rules.py"} <= paths
    assert len(paths) > 30


LONG_FUNCTION = "def long():\n" + "    pass\n" * rules.FUNCTION_LINES_MAX
LATER = "todo".upper()
SOMEBODYS_PLACE = "/HOME/somebody/models".replace("HOME", "home")

PLANTED: list[tuple[Rule, str, str]] = [
    (rules.one_shield, "calculet_trio/shell/executor.py", "with trio.CancelScope(shield=True): pass"),
    (rules.one_shield, "calculet_trio/api/server.py", "scope.shield = True"),
    (rules.one_caller_of_the_core, "calculet_trio/api/app.py", "core.handle(event, now)"),
    (rules.core_imports_only_data, "calculet_trio/core/decode.py", "import time"),
    (rules.core_imports_only_data, "calculet_trio/core/decode.py", "from random import choice"),
    (rules.core_imports_only_data, "calculet_trio/core/decode.py", "def later():\n    import trio"),
    (rules.core_imports_only_data, "calculet_trio/core/decode.py", "from calculet_trio.runtimes import port"),
    (rules.state_moves_by_table, "calculet_trio/core/lanes.py", "lane._state = LaneState.FREE"),
    (rules.state_moves_by_table, "calculet_trio/core/lanes.py", "lane._state: LaneState = LaneState.FREE"),
    (rules.state_moves_by_table, "calculet_trio/core/lanes.py", "lane.x, lane._state = 1, 2"),
    (rules.state_moves_by_table, "calculet_trio/shell/loop.py", "setattr(lane, '_state', 1)"),
    (rules.files_fit_a_sitting, "calculet_trio/core/lanes.py", "x = 1\n" * (rules.FILE_LINES_MAX + 1)),
    (rules.functions_fit_a_screen, "calculet_trio/core/lanes.py", LONG_FUNCTION),
    (rules.modules_are_nouns, "calculet_trio/text/utils.py", "x = 1"),
    (rules.modules_are_nouns, "calculet_trio/helpers/lanes.py", "x = 1"),
    (rules.tests_do_not_sleep, "tests/core/test_lanes.py", "time.sleep(1)"),
    (rules.tests_do_not_sleep, "tests/core/test_lanes.py", "from time import sleep"),
    (rules.public_things_say_what_they_are, "calculet_trio/core/lanes.py", "x = 1"),
    (rules.public_things_say_what_they_are, "calculet_trio/core/lanes.py", '"""Lanes."""\nclass Lane: pass'),
    (rules.public_things_say_what_they_are, "calculet_trio/core/lanes.py", '"""Lanes."""\nasync def lane(): pass'),
    (rules.names_no_workplace, "calculet_trio/text/template.py", f"HERE = '{SOMEBODYS_PLACE}'"),
    (rules.nothing_is_left_for_later, "calculet_trio/text/template.py", f"x = 1  # {LATER}: mend"),
    (rules.libraries_have_one_owner, "calculet_trio/observe/logging.py", "import prometheus_client"),
    (rules.libraries_have_one_owner, "calculet_trio/shell/loop.py", "from quart import Quart"),
]


@pytest.mark.parametrize(("rule", "path", "text"), PLANTED, ids=lambda value: getattr(value, "__name__", ""))
def test_finds_the_planted_breach(rule: Rule, path: str, text: str) -> None:
    assert list(rule(Source.planted(path, text)))


def test_every_rule_is_proven() -> None:
    assert {rule for rule, _, _ in PLANTED} == set(rules.RULES)


ALLOWED: list[tuple[Rule, str, str]] = [
    (rules.one_shield, "calculet_trio/shell/drain.py", "with trio.CancelScope(shield=True): pass"),
    (rules.one_caller_of_the_core, "calculet_trio/shell/loop.py", "core.handle(event, now)"),
    (rules.one_caller_of_the_core, "tests/core/test_serving.py", "core.handle(event, now)"),
    (
        rules.core_imports_only_data,
        "calculet_trio/core/decode.py",
        "import attrs\nfrom calculet_trio.core import lanes",
    ),
    (rules.state_moves_by_table, "calculet_trio/core/transition.py", "self._state = 1"),
    (rules.state_moves_by_table, "calculet_trio/core/lanes.py", "x = lane._state"),
    (rules.functions_fit_a_screen, "calculet_trio/core/lanes.py", LONG_FUNCTION.removesuffix("    pass\n")),
    (rules.public_things_say_what_they_are, "calculet_trio/core/x.py", '"""X."""\nclass State(Enum): pass'),
    (rules.libraries_have_one_owner, "calculet_trio/observe/metrics.py", "import prometheus_client"),
]


@pytest.mark.parametrize(("rule", "path", "text"), ALLOWED, ids=lambda value: getattr(value, "__name__", ""))
def test_leaves_alone_what_is_right(rule: Rule, path: str, text: str) -> None:
    assert not list(rule(Source.planted(path, text)))


def test_no_file_of_the_repository_names_a_workplace() -> None:
    """Not only Python: documents, scripts and configuration too."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    breaches: list[str] = []
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and path.stat().st_size < 1_000_000:
            breaches += rules.names_no_workplace(Source.planted(name, path.read_text("utf-8", errors="replace")))
    assert not breaches, "\n".join(breaches)
