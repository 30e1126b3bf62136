"""CHOICES.md, row by row, over a real socket; and that no row is without a test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import calculet_trio.api
from calculet_trio.errors import InvalidRequest
from tests.api.conftest import Server
from tests.api.wire import post

CHOICES = Path(calculet_trio.api.__file__).with_name("CHOICES.md")
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
HI = {"role": "user", "content": "hi"}

# row, fields of a chat request, status, param of the refusal
CHAT_ROWS: list[tuple[str, dict[str, Any], int, str | None]] = [
    ("B11", {"stream_options": {"include_usage": True}}, 400, "stream_options"),
    ("B11", {"stream_options": None}, 200, None),
    ("B12", {"max_tokens": 5, "max_completion_tokens": 3}, 200, None),
    ("B12", {"max_tokens": 0, "max_completion_tokens": 3}, 400, "max_tokens"),
    ("B16", {"max_tokens": 0}, 400, "max_tokens"),
    ("B16", {"max_tokens": 2**63}, 200, None),
    ("B17", {"top_p": 0}, 400, "top_p"),
    ("B17", {"top_k": 1e9}, 400, "top_k"),
    ("B17", {"top_k": 1_000_001}, 400, "top_k"),
    ("B19", {"logit_bias": dict.fromkeys(map(str, range(1025)), 0)}, 400, "logit_bias"),
    ("B21", {"messages": [{"role": "user", "content": "   "}]}, 200, None),
    ("B21", {"messages": [{"role": "user", "content": ""}]}, 200, None),
    ("B24", {"messages": [{"role": "user", "content": []}]}, 400, "messages[0].content"),
    ("B24", {"messages": [{"role": "developer", "content": "x"}, HI]}, 200, None),
    ("B24", {"messages": [{"role": "robot", "content": "x"}]}, 400, "messages[0].role"),
    ("B28", {"response_format": {"type": "json_object"}}, 400, "response_format"),
    ("B30", {"tools": [TOOL]}, 400, "tools"),
    ("B30", {"tools": [TOOL], "tool_choice": "none"}, 200, None),
    ("B30", {"tool_choice": "auto"}, 200, None),
]


@pytest.mark.parametrize(("row", "fields", "status", "param"), CHAT_ROWS)
async def test_a_row_of_fields(
    server: Server, row: str, fields: dict[str, Any], status: int, param: str | None
) -> None:
    answer = await server.chat(**fields)
    assert answer.status == status
    assert param is None or answer.error["param"] == param
    assert (await server.chat()).status == 200


async def test_an_empty_prompt_is_the_models_affair(server: Server) -> None:
    """CHOICES.md: B21."""
    request = post("/v1/completions", {"model": "m", "prompt": ""})
    assert (await server.ask(request)).status == 200
    server.service.refusal = InvalidRequest("the prompt is empty", param="prompt")
    assert (await server.ask(request)).status == 400


async def test_two_lists_of_ids_are_two_choices(server: Server) -> None:
    """CHOICES.md: B22."""
    reply = (await server.ask(post("/v1/completions", {"model": "m", "prompt": [[1], [2]]}))).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]


async def test_a_byte_order_mark_is_accepted(server: Server) -> None:
    """CHOICES.md: B34."""
    assert (await server.ask(post("/tokenize", b'\xef\xbb\xbf{"content":""}'))).status == 200


def test_every_row_is_named_by_a_test() -> None:
    rows = set(re.findall(r"^\| (B\d+|n|retry) \|", CHOICES.read_text(encoding="utf-8"), re.MULTILINE))
    here = Path(__file__).parent
    files = (*here.glob("test_*.py"), *(here.parent / "reports").glob("test_*.py"))
    tests = "".join(path.read_text(encoding="utf-8") for path in files)
    named = set(re.findall(r"CHOICES\.md: (\w+)", tests)) | {row for row, *_ in CHAT_ROWS}
    assert rows == named
