"""JSON as RFC 8259 has it, in both directions, and no more of it than a bound allows.

Python's own parser takes ``NaN``, turns ``1e400`` into infinity, and passes lone surrogates on, which then
break whoever encodes them; its encoder writes ``NaN`` back.

Source: RFC 8259; CONVENTIONS.md trap 6; RFC 8259 section 8.2 on unpaired surrogates.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from calculet_trio.api.settings import RequestLimits
from calculet_trio.errors import InvalidRequest

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

# Line ends to Python's and httpx's line readers, though not to the SSE standard; JSON may hold them raw.
_LINE_ENDS: Final = {0x0085: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}

INTEGER_DIGITS_MAX: Final = 40
"""No field of ours needs more, and converting thousands takes quadratic time."""

Path = list[str | int]


def encode(value: Any) -> str:
    """One line of JSON, whatever reads the lines; raises `ValueError` for a number that is not finite."""
    text = _ENCODER.encode(value)
    # Most text is ASCII, and ASCII has none of the three.
    return text if text.isascii() else text.translate(_LINE_ENDS)


def decode(raw: bytes, limits: RequestLimits) -> dict[str, Any]:
    """The JSON object in a body.

    Raises:
        InvalidRequest: anything but one object of finite numbers and encodable strings within ``limits``; where
            a top-level field is at fault, ``param`` names it.
    """
    marks = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
    if marks > limits.json_marks:
        raise InvalidRequest(f"the body has {marks} separators and brackets; at most {limits.json_marks} are taken")
    try:
        # A byte order mark is harmless, and some editors write it.
        value = json.loads(raw.decode("utf-8-sig"), parse_int=_integer)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8: byte {error.start} is wrong") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise InvalidRequest(_too_deep(limits)) from None
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    _inspect(value, [], limits)
    return value


def _integer(digits: str) -> int:
    if len(digits) > INTEGER_DIGITS_MAX:
        raise InvalidRequest(f"the body has an integer of {len(digits)} digits; at most {INTEGER_DIGITS_MAX} are taken")
    return int(digits)


def _inspect(value: Any, path: Path, limits: RequestLimits) -> None:
    if isinstance(value, str):
        _inspect_text(value, path)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _at(path, "is not a finite number")
    elif isinstance(value, dict):
        if len(path) >= limits.json_depth:
            raise _at(path, _too_deep(limits))
        for key, member in value.items():
            _inspect_text(key, path)
            path.append(key)
            _inspect(member, path, limits)
            path.pop()
    elif isinstance(value, list):
        if len(path) >= limits.json_depth:
            raise _at(path, _too_deep(limits))
        for index, member in enumerate(value):
            if type(member) is int:
                continue  # token ids: long lists in which nothing can be wrong
            path.append(index)
            _inspect(member, path, limits)
            path.pop()


def _inspect_text(text: str, path: Path) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _at(path, "has half of a surrogate pair, which is no character") from None


def _too_deep(limits: RequestLimits) -> str:
    return f"is nested deeper than the {limits.json_depth} levels that are taken"


def _at(path: Path, fault: str) -> InvalidRequest:
    if not path:
        return InvalidRequest(f"the body {fault}")
    top, *rest = path
    shown = f"{top}"[:64] + "".join(f"[{step}]" if isinstance(step, int) else f".{step[:64]}" for step in rest[:8])
    # The name of a field may itself be what cannot be encoded.
    shown = shown.encode(errors="replace").decode()
    return InvalidRequest(f"{shown} {fault}", param=f"{top}"[:64].encode(errors="replace").decode())
