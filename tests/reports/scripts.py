"""What the scripted models of these tests say. A reply is called by its row's id in the prompt."""

from __future__ import annotations

from typing import Any

NAN, INF = float("nan"), float("inf")
ALWAYS = 1_000_000

SPECIAL = ["<|im_start|>", "<|note|>", "<|im_end|>", "<|endoftext|>"]
"""``<|note|>`` is hidden as the others are, but ends nothing by itself."""

STRICT_TEMPLATE = """\
{%- for message in messages -%}
{%- if 'spin for ever' in (message.content or '') -%}
{%- for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor -%}
{%- endif -%}
{%- if 'range too far' in (message.content or '') %}{% for a in range(10 ** 9) %}{% endfor %}{% endif -%}
{%- if loop.first and message.role in ('assistant', 'tool') -%}
{{ raise_exception('a conversation begins with the user') }}
{%- endif -%}
{%- if not loop.first and message.role == 'user' and messages[loop.index0 - 1].role == 'user' -%}
{{ raise_exception('roles must alternate') }}
{%- endif -%}
<|im_start|>{{ message.role }}
{{ message.content or '' }}{{ message.tool_calls or '' }}<|im_end|>
{% endfor -%}
{%- if messages[-1].role == 'system' %}{{ raise_exception('nobody asked anything') }}{% endif -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""


def text(said: str, **how: Any) -> dict[str, Any]:
    return {"text": said, **how}


def gated(*said: str, gate: str) -> list[dict[str, Any]]:
    return [text(one, gate=gate) for one in said]


REPLIES: list[dict[str, Any]] = [
    {"when": "b01 halves", "tokens": [{"bytes": "f09f"}, {"bytes": "98b8"}, {"bytes": "c3"}, {"bytes": "a9"}, " ok"]},
    {"when": "b01 bytes", "tokens": [{"bytes": f"{byte:02x}"} for byte in "😸é ok".encode()]},
    {"when": "b03", "tokens": ["a\u2028b", "\u2029c\u0085", "d\r\ne"]},
    {"when": "b05 user", "tokens": ["Hi", "\nUs", "er", ": x", " and more"]},
    {"when": "b05 five", "tokens": ["four, fi", "ve, six", ","]},
    {"when": "b05 emoji", "tokens": ["a", {"bytes": "62f09f"}, {"bytes": "98b863"}, "d"]},
    {"when": "b06", "tokens": gated("a", "b", "x<", "|a", "y", gate="b06")},
    {"when": "b08 end", "tokens": ["ok", {"special": "<|im_end|>"}, "more"]},
    {"when": "b08 note", "tokens": ["ok", {"special": "<|note|>"}, "more"]},
    {"when": "b08 turn", "tokens": ["ok", {"special": "<|im_start|>"}, "user", "more"]},
    {"when": "b12 eos", "tokens": ["a", "b", {"eos": True}, "c"]},
    {"when": "endless", "tokens": ["x "], "afterwards": "repeat"},
    {"when": "b13 chosen", "tokens": [{"logits": [-INF] * 97 + [0.0, -INF, NAN, -INF]}, "b"]},
    {"when": "b13 none", "tokens": ["a", {"logits": [NAN, -INF, NAN]}]},
    {"when": "b15", "tokens": ["a", "z", "b"]},
    {"when": "b39 late", "tokens": ["a", "b", "c", text("d", fault="output", fault_times=ALWAYS)]},
    {"when": "b39 early", "tokens": [text("a", fault="output", fault_times=ALWAYS)]},
    {"when": "held", "tokens": [text("x ", gate="held")], "afterwards": "repeat"},
    {"when": "other", "tokens": [text(f"{n} ", gate="other") for n in range(50)]},
    {"when": "brief", "tokens": gated("one", " two", gate="brief")},
    {"when": "proxied", "tokens": [text("x ", gate="proxied")], "afterwards": "repeat"},
    {"when": "large", "tokens": ["l" * 8000], "afterwards": "repeat"},
    {"when": "b47 long", "tokens": [text("B", gate="b47"), " done"]},
    {"tokens": ["Hello", " world"]},
]
COMMON: dict[str, Any] = {
    "schema": "calculet-script/v1",
    "model": "m",
    "lanes": 4,
    "profiles": [1, 4],
    "context_tokens": 2048,
    "prompt_tokens_max": 1024,
    "special": SPECIAL,
    "chat_template": STRICT_TEMPLATE,
    "replies": REPLIES,
}

ONE_LANE: dict[str, Any] = {**COMMON, "lanes": 1, "profiles": [1]}

SLOWLY: dict[str, Any] = {"model": "m", "lanes": 1, "replies": [{"tokens": [text("x ", delay_s=2.0, times=35)]}]}
"""One token in two seconds for seventy: longer than Quart's own limit on a response."""
