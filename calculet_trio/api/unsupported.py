"""Known fields that would change the reply and are not supported: told, never ignored.

Unknown fields are ignored, as OpenAI's clients expect. A field is known when a server that our users come from
(OpenAI, llama-server, vLLM) gives it a meaning. Each row lists the values that mean "as if absent".

Source: API.md "Parameters".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from calculet_trio.api.fields import Fields

OFF: Final[tuple[Any, ...]] = (None, False, [], {}, "")

# field: (what is missing, values that change nothing)
FIELDS: Final[Mapping[str, tuple[str, tuple[Any, ...]]]] = {
    # structured output
    "grammar": ("grammars are not supported", OFF),
    "json_schema": ("structured output is not supported", OFF),
    "guided_json": ("structured output is not supported", OFF),
    "guided_regex": ("structured output is not supported", OFF),
    "guided_choice": ("structured output is not supported", OFF),
    "guided_grammar": ("structured output is not supported", OFF),
    "structured_outputs": ("structured output is not supported", OFF),
    # other modalities
    "audio": ("audio is not supported", OFF),
    "modalities": ("only text is supported", (*OFF, ["text"])),
    "images": ("images are not supported", OFF),
    "image_data": ("images are not supported", OFF),
    "web_search_options": ("web search is not supported", (None,)),
    # tools of the old kind
    "functions": ("functions are not supported", OFF),
    "function_call": ("functions are not supported", (*OFF, "none", "auto")),
    # adapters and other weights
    "lora": ("adapters are not supported", OFF),
    "chat_template": ("the model's own chat template is used", OFF),
    # other ways to choose tokens
    "typical_p": ("typical sampling is not supported", (*OFF, 1)),
    "tfs_z": ("tail-free sampling is not supported", (*OFF, 1)),
    "mirostat": ("mirostat is not supported", (*OFF, 0)),
    "dry_multiplier": ("DRY is not supported", (*OFF, 0)),
    "xtc_probability": ("XTC is not supported", (*OFF, 0)),
    "dynatemp_range": ("dynamic temperature is not supported", (*OFF, 0)),
    "samplers": ("the order of samplers is fixed", OFF),
    "use_beam_search": ("beam search is not supported", OFF),
    "bad_words": ("banned words are not supported; logit_bias bans tokens", OFF),
    "allowed_token_ids": ("an allow-list of tokens is not supported", OFF),
    "stop_token_ids": ("stopping at token ids is not supported; use stop", OFF),
    "min_tokens": ("a least length is not supported", (*OFF, 0)),
    "n_probs": ("n_probs is not supported; use logprobs", (*OFF, 0)),
    "prompt_logprobs": ("log-probabilities of the prompt are not supported", OFF),
    "t_max_predict_ms": ("a time limit in the body is not supported; use x-request-deadline-ms", (*OFF, 0)),
    # other shapes of prompt and reply
    "suffix": ("infilling is not supported", OFF),
    "echo": ("echoing the prompt is not supported", OFF),
    "continue_final_message": ("continuing a message is not supported", OFF),
    "include_stop_str_in_output": ("a stop string is never shown", OFF),
    "return_tokens": ("token ids are not returned", OFF),
    "add_special": ("special tokens are not added; write them and set parse_special", OFF),
    "with_pieces": ("pieces are not returned", OFF),
}


def refuse_unsupported(fields: Fields) -> None:
    """Raises `InvalidRequest` for the first known field that asks for what is missing."""
    for name, (missing, neutral) in FIELDS.items():
        if not fields.has(name):
            continue
        value = fields.raw(name)
        # True == 1 in Python, and 1 is what turns some of these off; it is not what true asks for.
        if value not in neutral or (value is True):
            raise fields.refuse(name, f"cannot be served: {missing}")
    refuse_response_format(fields)
    refuse_tools(fields)


def refuse_response_format(fields: Fields) -> None:
    """Only ``{"type": "text"}`` is served, until the sampler can be constrained."""
    value = fields.raw("response_format")
    if value is None or (isinstance(value, dict) and value.get("type") == "text"):
        return
    raise fields.refuse("response_format", 'cannot be served: only {"type": "text"} is supported yet')


def refuse_tools(fields: Fields) -> None:
    """Tools are served only where the request forbids to call them: calls are not parsed out of the reply yet."""
    choice = fields.raw("tool_choice")
    if fields.raw("tools") and choice != "none":
        raise fields.refuse("tools", 'cannot be served yet: tool calls are not parsed; set tool_choice to "none"')
    if choice not in (None, "none", "auto"):
        raise fields.refuse("tool_choice", 'must be "none" or "auto" where no tools can be called')
