"""Reports of a run: JUnit XML for machines, one HTML page for people; both say when the board was emulated.

Source: SPEC section 12, 13.
"""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import Final
from xml.etree import ElementTree

from calculet_trio.conformance.case import Case
from calculet_trio.conformance.result import Verdict
from calculet_trio.conformance.run_record import RunRecord
from calculet_trio.conformance.suite import verdict_of


def verdict_line(record: RunRecord, cases: tuple[Case, ...]) -> str:
    """The verdict and the counts; with ``emulated`` beside it where that is what it rests on."""
    counts = Counter(result.verdict for result in record.results)
    untried = len(cases) - len(record.results)
    words = [f"{counts[verdict]} {verdict.value}" for verdict in Verdict]
    words += [f"{untried} not tried"] if untried else []
    words += ["long cases left out"] if record.short else []
    kind = " (emulated)" if record.is_emulated else ""
    return f"{verdict_of(record.results, cases).value}{kind}: {', '.join(words)}"


def junit(record: RunRecord, cases: tuple[Case, ...]) -> str:
    """The run as a JUnit test suite; a case that was not tried is an error."""
    results = {result.case: result for result in record.results}
    counts = Counter(result.verdict for result in record.results)
    suite = ElementTree.Element(
        "testsuite",
        name=f"conformance of {record.model}{' (emulated)' if record.is_emulated else ''}",
        tests=str(len(cases)),
        failures=str(counts[Verdict.FAIL]),
        skipped=str(counts[Verdict.NOT_APPLICABLE]),
        errors=str(len(cases) - len(results)),
        time=f"{sum(result.took_s for result in record.results):.3f}",
        timestamp=record.begun_at,
    )
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in _facts(record):
        ElementTree.SubElement(properties, "property", name=name, value=_printable(value))
    for case in cases:
        result = results.get(case.name)
        took_s = 0.0 if result is None else result.took_s
        entry = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"conformance.{record.combination.board_kind}",
            name=case.name,
            time=f"{took_s:.3f}",
        )
        if result is None:
            ElementTree.SubElement(entry, "error", message="not tried: the run ended before")
        elif result.verdict is Verdict.FAIL:
            ElementTree.SubElement(entry, "failure", message=_printable(result.why))
        elif result.verdict is Verdict.NOT_APPLICABLE:
            ElementTree.SubElement(entry, "skipped", message=_printable(result.why))
        else:
            ElementTree.SubElement(entry, "system-out").text = _printable(result.why)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def html(record: RunRecord, cases: tuple[Case, ...]) -> str:
    """The run as a page that needs no other file."""
    results = {result.case: result for result in record.results}
    rows = []
    for case in cases:
        result = results.get(case.name)
        verdict, why, took = (
            ("not tried", "the run ended before", "")
            if result is None
            else (
                result.verdict.value,
                result.why,
                f"{result.took_s:.2f} s",
            )
        )
        rows.append(
            f'<tr class="{verdict.split()[0].lower()}"><td>{verdict}</td>'
            f"<td><b>{escape(case.name)}</b><br>{escape(case.says)}</td><td>{escape(why)}</td><td>{took}</td></tr>"
        )
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in _facts(record))
    return _PAGE.format(
        title=escape(f"Conformance of {record.model}"),
        verdict=escape(verdict_line(record, cases)),
        word=verdict_of(record.results, cases).value.lower(),
        facts=facts,
        rows="\n".join(rows),
    )


def _facts(record: RunRecord) -> tuple[tuple[str, str], ...]:
    combination = record.combination
    return (
        ("record", record.record_id),
        ("begun", record.begun_at),
        ("board", combination.board_kind),
        ("device", record.device),
        ("runtime", combination.runtime_version),
        ("package sha256", combination.package_sha256),
        ("suite", f"calculet-trio {record.suite_version}"),
    )


def _printable(text: str) -> str:
    """XML 1.0 holds no control characters; an error's message might."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
.verdict {{ padding: .6rem 1rem; border-radius: .4rem; color: #fff; font-weight: 600; background: #b3261e; }}
.verdict.pass {{ background: #1b6e3c; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; }}
dt {{ color: #666; }} dd {{ margin: 0; overflow-wrap: anywhere; }}
table {{ border-collapse: collapse; width: 100%; }}
td, th {{ text-align: left; vertical-align: top; padding: .4rem .6rem; border-top: 1px solid #ddd; }}
td:last-child {{ white-space: nowrap; text-align: right; }}
tr.pass td:first-child {{ color: #1b6e3c; }} tr.fail td:first-child {{ color: #b3261e; font-weight: 600; }}
tr.not td:first-child {{ color: #666; }}
</style></head><body>
<h1>{title}</h1>
<p class="verdict {word}">{verdict}</p>
<dl>{facts}</dl>
<table><tr><th>verdict</th><th>case</th><th>what was seen</th><th>took</th></tr>
{rows}
</table></body></html>
"""
