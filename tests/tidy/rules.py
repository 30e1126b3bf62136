"""The rules of our conventions that a linter does not know, each a function from a source file to its breaches.

A rule reads the AST where it can and the text where it must, and says where and why in one line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
PACKAGE = "calculet_trio"

CORE_MAY_IMPORT = frozenset(
    {"__future__", "attrs", "collections", "dataclasses", "enum", "functools", "heapq", "itertools", "math", "operator"}
    | {"types", "typing"}
)
"""Data and arithmetic. Not ``time``, ``random``, ``threading``, ``logging``, ``socket``, ``os``, ``io``, ``trio``."""

WORTHLESS_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "misc", "manager2", "base", "stuff"})


@dataclass(frozen=True)
class Source:
    """One Python file: its path from the repository's root, and its text."""

    path: PurePosixPath
    text: str

    @classmethod
    def planted(cls, path: str, text: str) -> Source:
        return cls(PurePosixPath(path), text)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def is_package(self) -> bool:
        return self.path.parts[0] == PACKAGE

    @property
    def is_test(self) -> bool:
        return self.path.parts[0] == "tests"

    def at(self, node: ast.stmt | ast.expr | ast.keyword | ast.alias, why: str) -> str:
        return f"{self.path}:{node.lineno}: {why}"


Rule = Callable[[Source], Iterator[str]]


def one_shield(source: Source) -> Iterator[str]:
    """A job is either not submitted or drained: one place holds cancellation back, so that one place can be proved."""
    if source.path == PurePosixPath(PACKAGE, "shell", "drain.py") or not source.is_package:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.keyword) and node.arg == "shield":
            yield source.at(node, "shield= belongs to shell/drain.py alone")
        if isinstance(node, ast.Attribute) and node.attr == "shield" and isinstance(node.ctx, ast.Store):
            yield source.at(node, ".shield is set outside shell/drain.py")


def one_caller_of_the_core(source: Source) -> Iterator[str]:
    """The core is told things by one task in one order; two callers would be a race."""
    if source.path == PurePosixPath(PACKAGE, "shell", "loop.py") or not source.is_package:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "handle":
            yield source.at(node, "core.handle() is called by shell/loop.py alone")


def core_imports_only_data(source: Source) -> Iterator[str]:
    """A pure core can be run at any speed, by a simulator and by a shrinking test."""
    if source.path.parts[:2] != (PACKAGE, "core"):
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        for name in names:
            ours = name.startswith((f"{PACKAGE}.core", f"{PACKAGE}.ids", f"{PACKAGE}.errors"))
            if not ours and name.split(".")[0] not in CORE_MAY_IMPORT:
                yield source.at(node, f"the core may not import {name}")


def state_moves_by_table(source: Source) -> Iterator[str]:
    """A state that is written anywhere else makes its table a comment."""
    if source.path == PurePosixPath(PACKAGE, "core", "transition.py") or not source.is_package:
        return
    for node in ast.walk(source.tree):
        written = (
            isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del) and node.attr == "_state"
        )
        by_name = (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("setattr", "object.__setattr__")
            and any(isinstance(argument, ast.Constant) and argument.value == "_state" for argument in node.args)
        )
        if written or by_name:
            yield source.at(node, "_state is written by Machine.advance() alone (core/transition.py)")


def files_fit_a_sitting(source: Source) -> Iterator[str]:
    """What is longer is not read but searched."""
    lines = source.text.count("\n")
    if lines > FILE_LINES_MAX:
        yield f"{source.path}:{lines}: {lines} lines; at most {FILE_LINES_MAX}"


def functions_fit_a_screen(source: Source) -> Iterator[str]:
    """What is longer does more than one thing."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield source.at(node, f"{node.name} has {lines} lines; at most {FUNCTION_LINES_MAX}")


def modules_are_nouns(source: Source) -> Iterator[str]:
    """A room named `utils` is where things go that nobody can find again."""
    for part in (*source.path.parent.parts, source.path.stem):
        if part in WORTHLESS_NAMES and source.path.parts[0] in (PACKAGE, "tests") and part != "tests":
            yield f"{source.path}:1: {part!r} says nothing of what is in it"


def tests_do_not_sleep(source: Source) -> Iterator[str]:
    """A sleeping test is slow when it passes and lies when the machine is busy; wait for an event, bounded."""
    if not source.is_test:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep":
            yield source.at(node, "time.sleep in a test; wait for what is to happen")
        if isinstance(node, ast.ImportFrom) and node.module == "time" and any(a.name == "sleep" for a in node.names):
            yield source.at(node, "time.sleep in a test; wait for what is to happen")


def public_things_say_what_they_are(source: Source) -> Iterator[str]:
    """A sentence at each door; a frozen record or an enum may be said by its name and its fields."""
    if not source.is_package:
        return
    if not ast.get_docstring(source.tree):
        yield f"{source.path}:1: the module has no docstring"
    for node in source.tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node) and not _speaks_by_itself(node):
            yield source.at(node, f"{node.name} has no docstring")


def _speaks_by_itself(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    if not isinstance(node, ast.ClassDef):
        return False
    is_record = any("attrs.frozen" in ast.unparse(decorator) for decorator in node.decorator_list)
    is_enum = any(ast.unparse(base).endswith(("Enum", "Symbol")) for base in node.bases)
    return is_record or is_enum


PLACES = re.compile(r"/wor[k]/|/roo[t]/|/hom[e]/\w+/|/old_roo[t]\b|/op[t]/(?:pypi|wheels)")
"""Paths of the machine that somebody worked on. The brackets keep this pattern from finding itself."""


def names_no_workplace(source: Source) -> Iterator[str]:
    """The repository works on every machine; a path of one of them is a mistake, or tells tales."""
    for number, line in enumerate(source.text.splitlines(), 1):
        if PLACES.search(line):
            yield f"{source.path}:{number}: names a place of somebody's machine"


UNFINISHED = re.compile(r"\b(?:TOD[O]|FIXM[E]|XX[X]|HAC[K])\b")


def nothing_is_left_for_later(source: Source) -> Iterator[str]:
    """What is in the repository is finished; what is not stands in the list of issues."""
    for number, line in enumerate(source.text.splitlines(), 1):
        if UNFINISHED.search(line):
            yield f"{source.path}:{number}: a note for later; do it, or open an issue"


OWNERS = {
    "prometheus_client": f"{PACKAGE}/observe/metrics",
    "quart": f"{PACKAGE}/api/",
    "quart_trio": f"{PACKAGE}/api/",
    "hypercorn": f"{PACKAGE}/api/",
    "click": f"{PACKAGE}/cli/",
    "rich": f"{PACKAGE}/cli/",
    "cryptography": f"{PACKAGE}/packages/signing",
    "onnxruntime": f"{PACKAGE}/runtimes/host",
    "tokenizers": f"{PACKAGE}/text/",
    "jinja2": f"{PACKAGE}/text/",
}
"""Libraries that one room owns, by the beginning of its files' paths."""


def libraries_have_one_owner(source: Source) -> Iterator[str]:
    """A library that is known in one room can be replaced in one room."""
    if not source.is_package:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        for name in names:
            owner = OWNERS.get(name.split(".")[0])
            if owner is not None and not str(source.path).startswith((owner, owner.replace("/api/", "/admin/"))):
                yield source.at(node, f"{name} is imported below {owner} alone")


RULES: tuple[Rule, ...] = (
    one_shield,
    one_caller_of_the_core,
    core_imports_only_data,
    state_moves_by_table,
    files_fit_a_sitting,
    functions_fit_a_screen,
    modules_are_nouns,
    tests_do_not_sleep,
    public_things_say_what_they_are,
    names_no_workplace,
    nothing_is_left_for_later,
    libraries_have_one_owner,
)
