"""The table of keys as JSON Schema, with which an editor completes and checks a configuration as it is typed.

Source: JSON Schema, draft 2020-12.
"""

from __future__ import annotations

from typing import Any

from calculet_trio.settings.keys import Key, keys_of
from calculet_trio.settings.structuring import plain


def json_schema(kind: type) -> dict[str, Any]:
    """The JSON Schema of the settings class ``kind``: every key with its sentence, default and range."""
    title = next(each.allowed.words for each in keys_of(kind) if each.name == "schema" and each.allowed)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **_mapping(kind)}


def _mapping(kind: type) -> dict[str, Any]:
    keys = keys_of(kind)
    required = [each.name for each in keys if each.is_required]
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {each.name: _property(each) for each in keys},
        **({"required": required} if required else {}),
    }


def _property(key: Key) -> dict[str, Any]:
    described = {"description": key.says, **({} if key.is_required else {"default": plain(key.default)})}
    if key.section is None:
        assert key.allowed is not None
        return {**described, **key.allowed.schema()}
    if key.entries_max is None:
        return {"description": key.says, **_mapping(key.section)}
    return {**described, "type": "array", "maxItems": key.entries_max, "items": _mapping(key.section)}
