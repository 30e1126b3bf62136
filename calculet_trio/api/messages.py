"""Chat messages as clients send them → as the chat template takes them: plain strings, known roles.

Source: API.md "Parameters"; reports B21, B24, B26.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from calculet_trio.api.fields import Fields, type_name
from calculet_trio.api.settings import RequestLimits
from calculet_trio.errors import InvalidRequest
from calculet_trio.text.params import ChatPrompt

# OpenAI's later name for the system's role is one that few templates know.
ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}

PARTS_MAX: Final = 1024
TOOL_CALLS_MAX: Final = 128
NAME_BYTES_MAX: Final = 256
REFUSED_PARTS: Final = {
    "image_url": "images",
    "input_image": "images",
    "image": "images",
    "input_audio": "audio",
    "video_url": "video",
    "file": "files",
}


def chat_prompt(fields: Fields, limits: RequestLimits) -> ChatPrompt:
    """The conversation of a request.

    Raises:
        InvalidRequest: naming the message (``messages[2].content``) and what is wrong with it.
    """
    messages = fields.array("messages", maximum=limits.messages)
    if not messages:
        raise fields.refuse("messages", "must have at least one message")
    taken = []
    text_bytes = 0
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        if not isinstance(message, dict):
            raise InvalidRequest(f"{path} must be an object, not {type_name(message)}", param=path)
        one = _message(Fields(message, path))
        taken.append(one)
        text_bytes += _text_bytes(one)
        if text_bytes > limits.text_bytes:
            raise fields.refuse("messages", f"hold more than {limits.text_bytes} bytes of text")
    fields.array("tools", maximum=limits.tools)  # taken with tool_choice "none" only, and then not shown
    return ChatPrompt(
        messages=taken,
        template_kwargs=fields.object("chat_template_kwargs", maximum=limits.template_kwargs) or {},
        add_generation_prompt=fields.boolean("add_generation_prompt", True),
    )


def _text_bytes(message: Mapping[str, Any]) -> int:
    texts = [message["content"] or "", message.get("reasoning_content") or ""]
    texts += [call["function"]["arguments"] for call in message.get("tool_calls", ())]
    return sum(len(text) if text.isascii() else len(text.encode()) for text in texts)


def _message(fields: Fields) -> dict[str, Any]:
    role = ROLES.get(fields.string("role") or "")
    if role is None:
        raise fields.refuse("role", f"must be one of {', '.join(ROLES)}")
    message: dict[str, Any] = {"role": role}
    calls = _tool_calls(fields) if role == "assistant" else []
    content = _content(fields)
    # A turn that only called tools has no content: what we said ourselves may be sent back to us.
    if content is None and not calls:
        raise fields.refuse("content", f"must be a string or an array of text parts{fields.instead('content')}")
    message["content"] = content
    if calls:
        message["tool_calls"] = calls
    if role == "tool" and (call_id := fields.string("tool_call_id")) is not None:
        message["tool_call_id"] = call_id
    for name in ("name", "reasoning_content"):
        if (value := fields.string(name)) is not None:
            message[name] = value
    if len(message.get("name", "")) > NAME_BYTES_MAX:
        raise fields.refuse("name", f"must have at most {NAME_BYTES_MAX} characters")
    return message


def _content(fields: Fields) -> str | None:
    value = fields.raw("content")
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise fields.refuse("content", f"must be a string or an array of text parts{fields.instead('content')}")
    parts = fields.array("content", maximum=PARTS_MAX)
    if not parts:
        raise fields.refuse("content", "must have at least one part")
    return "".join(_part(part, f"{fields.param('content')}[{index}]") for index, part in enumerate(parts))


def _part(part: object, path: str) -> str:
    if not isinstance(part, dict):
        raise InvalidRequest(f"{path} must be an object, not {type_name(part)}", param=path)
    fields = Fields(part, path)
    kind = fields.raw("type")
    if kind in ("text", "refusal"):
        text = fields.string(kind)
        if text is None:
            raise fields.refuse(kind, f"must be a string{fields.instead(kind)}")
        return text
    if isinstance(kind, str) and kind in REFUSED_PARTS:
        raise fields.refuse("type", f"cannot be served: this model takes text only, no {REFUSED_PARTS[kind]}")
    raise fields.refuse("type", 'must be "text"')


def _tool_calls(fields: Fields) -> list[dict[str, Any]]:
    calls = fields.array("tool_calls", maximum=TOOL_CALLS_MAX) or []
    taken = []
    for index, call in enumerate(calls):
        path = f"{fields.param('tool_calls')}[{index}]"
        if not isinstance(call, dict):
            raise InvalidRequest(f"{path} must be an object, not {type_name(call)}", param=path)
        one = Fields(call, path)
        call_id = one.string("id")
        if not call_id:
            raise one.refuse("id", "must be a string that is not empty")
        function = one.object("function", maximum=16)
        if function is None:
            raise one.refuse("function", "must be an object with name and arguments")
        inner = Fields(function, one.param("function"))
        name, arguments = inner.string("name"), inner.string("arguments")
        if not name or arguments is None:
            raise inner.refuse("name" if not name else "arguments", "must be a string")
        taken.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})
    return taken
