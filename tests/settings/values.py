"""Values for every kind of key: right ones and wrong ones, made without asking the code under test."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from calculet_trio.settings.allowed import Choice, Fixed, ListOf, MapOf, OrNull, Real, Text, Whole, YesNo
from calculet_trio.settings.keys import Key, keys_of

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
"""Timings are no assertions."""

INFINITE = float("inf")
NOT_A_NUMBER = float("nan")


def right(allowed: Any) -> st.SearchStrategy[Any]:
    """Values that the key must take, as YAML has them."""
    match allowed:
        case Whole(least, most):
            return st.integers(least, most)
        case Real(least, most):
            return st.floats(least, most, allow_nan=False) | st.just(least) | st.just(most)
        case YesNo():
            return st.booleans()
        case Choice(kind):
            return st.sampled_from([member.value for member in kind])
        case Fixed(text):
            return st.just(text)
        case Text():
            pattern = allowed.pattern if allowed.pattern != r"[^\x00\r\n]+" else r"[a-zé/ :#-]{1,40}"
            return st.from_regex(pattern.replace("{1,253}", "{1,20}"), fullmatch=True)
        case OrNull(inner):
            return st.none() | right(inner)
        case ListOf(inner, least=least):
            return st.lists(right(inner), min_size=least, max_size=4, unique=True)
        case MapOf(key, value):
            return st.dictionaries(right(key), right(value), max_size=4)
    raise AssertionError(f"a kind of value without a strategy: {allowed}")


def wrong(allowed: Any) -> list[Any]:
    """Values that the key must refuse."""
    match allowed:
        case Whole(least, most):
            return [least - 1, most + 1, True, False, 1.5, float(least), str(least), None, [], {}, INFINITE, 10**500]
        case Real(least, most):
            beyond = [least - 0.001, most * 1.01, 10**500, -(10**500)]
            return [*beyond, True, str(least), None, [], {}, INFINITE, -INFINITE, NOT_A_NUMBER]
        case YesNo():
            return [0, 1, "true", "yes", None, [], {}]
        case Choice(kind):
            first = next(iter(kind)).value
            return ["nothing", first.upper(), f"{first} ", 1, True, None, [first], {}]
        case Fixed(text):
            return [f"{text} ", text.upper(), "", 1, None, []]
        case Text():
            return ["", "a\nb", "a\x00", "x" * 5000, 1, 1.5, True, None, [], {}]
        case OrNull(inner):
            return [value for value in wrong(inner) if value is not None]
        case ListOf(inner, alone=alone):
            elements = [[value] for value in wrong(inner)]
            return elements + ([{}] if alone else [{}, None, "x", 1])
        case MapOf(key, value):
            keys = [{each: 1} for each in wrong(key) if isinstance(each, int | str) and not isinstance(each, bool)]
            return [*keys, *({1: each} for each in wrong(value)), None, [], "x", 1]
    raise AssertionError(f"a kind of value without wrong ones: {allowed}")


@st.composite
def documents(draw: st.DrawFn, kind: type) -> dict[str, Any]:
    """A file's values: any subset of its keys, each with a right value."""
    values: dict[str, Any] = {}
    for each in keys_of(kind):
        if each.is_required or draw(st.booleans()):
            values[each.name] = draw(value_of(each))
    return values


def value_of(key: Key) -> st.SearchStrategy[Any]:
    """A right value of a leaf, a section or a list of entries."""
    if key.section is None:
        return right(key.allowed)
    if key.entries_max is None:
        return documents(key.section)
    return st.lists(documents(key.section), max_size=3)
