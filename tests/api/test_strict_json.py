"""Reports B17, B34; CONVENTIONS.md trap 6."""

from __future__ import annotations

import json

import pytest

from calculet_trio.api import strict_json
from calculet_trio.api.settings import RequestLimits
from calculet_trio.errors import InvalidRequest

LIMITS = RequestLimits()


def refused(raw: bytes, limits: RequestLimits = LIMITS) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        strict_json.decode(raw, limits)
    json.dumps(caught.value.message).encode()  # what is told must itself be encodable
    return caught.value


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"",
        b"null",
        b"[]",
        b"5",
        b'{"a":1}x',
        '{"a":"中文"}'.encode("gbk"),
        b'{"a":"\xff"}',
        '{"a":1}'.encode("utf-16"),
        '{"a":1}'.encode("utf-16-le"),
        b"[" * 100_000,
        b'{"tools":' + b"[" * 3000 + b"]" * 3000 + b"}",
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":-' + b"9" * 41 + b"}",
    ],
)
def test_what_is_not_one_json_object_is_refused(raw: bytes) -> None:
    refused(raw)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400"])
def test_a_number_that_is_not_finite_is_refused_and_its_field_named(number: str) -> None:
    assert refused(f'{{"temperature": {number}}}'.encode()).param == "temperature"
    assert refused(f'{{"logit_bias": {{"5": [{number}]}}}}'.encode()).param == "logit_bias"


def test_half_of_a_surrogate_pair_is_refused_wherever_it_stands() -> None:
    for raw in (b'{"a": ["x\\ud83d"]}', b'{"a": {"\\ude38": 1}}', b'{"\\ud83d": 1}'):
        assert "surrogate" in refused(raw).message
    assert strict_json.decode(b'{"a": "\\ud83d\\ude38"}', LIMITS) == {"a": "😸"}


def test_nesting_is_taken_up_to_the_limit_and_no_deeper() -> None:
    limits = RequestLimits(json_depth=5)
    assert strict_json.decode(b'{"a":[[[[1]]]]}', limits)
    assert "5 levels" in refused(b'{"a":[[[[[1]]]]]}', limits).message
    assert "5 levels" in refused(b'{"a":{"b":{"c":{"d":{"e":{}}}}}}', limits).message


def test_separators_are_counted_before_anything_is_parsed() -> None:
    limits = RequestLimits(json_marks=10)
    assert strict_json.decode(b'{"a":[1,2,3,4,5,6,7,8,9]}', limits)
    refused(b'{"a":[1,2,3,4,5,6,7,8,9,0]}', limits)


def test_a_byte_order_mark_is_no_fault() -> None:
    assert strict_json.decode(b'\xef\xbb\xbf{"a":1}', LIMITS) == {"a": 1}


def test_what_is_encoded_is_one_line_to_every_reader_of_lines() -> None:
    text = "a\u2028b\u2029c\u0085d\r\ne\x1cé"
    line = strict_json.encode({"t": text})
    assert line.splitlines() == [line]
    assert json.loads(line) == {"t": text}
    assert "é" in line  # the rest of Unicode is not escaped


def test_an_infinite_number_is_never_encoded() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        strict_json.encode({"logprob": float("-inf")})
