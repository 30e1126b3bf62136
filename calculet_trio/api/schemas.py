"""Request bodies → `InferenceRequest`s: the one place where a client's fields become ours.

Nothing here tokenizes, renders or waits; counts are bounded before anything is built from them.

Source: API.md "Service endpoints", "Parameters"; reports B11–B35.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from calculet_trio.api.fields import Fields
from calculet_trio.api.messages import chat_prompt
from calculet_trio.api.sampling import chat_top_logprobs, completion_top_logprobs, max_new_tokens, reply_params
from calculet_trio.api.settings import RequestLimits
from calculet_trio.api.unsupported import refuse_unsupported
from calculet_trio.errors import InvalidRequest
from calculet_trio.shell.service import InferenceRequest, ServedModel
from calculet_trio.text.params import Prompt, ReplyParams, SamplingParams, TextPrompt, TokenPrompt

OPENAI_DEFAULTS: Final = SamplingParams()
LLAMA_DEFAULTS: Final = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
"""llama-server's own, which its clients count on when they send none."""


@attrs.frozen(kw_only=True)
class Asker:
    """Who asks, and until when: what stands in headers and not in the body.

    Args:
        tenant: decided by the key alone.
        deadline_s: seconds from now; None for the policy's default.
    """

    tenant: str
    deadline_s: float | None


@attrs.frozen(kw_only=True)
class ParsedRequest:
    """One HTTP request for replies.

    Args:
        model: the alias that serves it.
        choices: one request each, by index; choices of one prompt stand together.
        prompts: how many different prompts there are.
        stream: whether it is answered by events.
        include_usage: whether a stream ends with a chunk of usage.
        logprobs: whether log-probabilities were asked for.
    """

    model: ServedModel
    choices: tuple[InferenceRequest, ...]
    prompts: int
    stream: bool
    include_usage: bool = False
    logprobs: bool = False


def parse_chat(body: Mapping[str, Any], *, model: ServedModel, asker: Asker, limits: RequestLimits) -> ParsedRequest:
    """A body of ``POST /v1/chat/completions``; raises `InvalidRequest`."""
    fields = Fields(body)
    refuse_unsupported(fields)
    stream, include_usage = _stream(fields)
    top_logprobs = chat_top_logprobs(fields, limits)
    n = _n(fields, limits, prompts=1)
    reply = reply_params(
        fields, limits=limits, vocab_size=model.vocab_size, top_logprobs=top_logprobs, defaults=OPENAI_DEFAULTS
    )
    tokens = max_new_tokens(fields, "max_completion_tokens", "max_tokens", context_tokens=model.context_tokens)
    prompt = chat_prompt(fields, limits)
    return ParsedRequest(
        model=model,
        choices=_choices([prompt], n, model=model, asker=asker, reply=reply, tokens=tokens),
        prompts=1,
        stream=stream,
        include_usage=include_usage,
        logprobs=top_logprobs is not None,
    )


def parse_completion(
    body: Mapping[str, Any], *, model: ServedModel, asker: Asker, limits: RequestLimits
) -> ParsedRequest:
    """A body of ``POST /v1/completions``; raises `InvalidRequest`."""
    fields = Fields(body)
    refuse_unsupported(fields)
    stream, include_usage = _stream(fields)
    top_logprobs = completion_top_logprobs(fields, limits)
    prompts = _prompts(fields, limits, vocab_size=model.vocab_size)
    n = _n(fields, limits, prompts=len(prompts))
    _refuse_best_of(fields, n)
    reply = reply_params(
        fields, limits=limits, vocab_size=model.vocab_size, top_logprobs=top_logprobs, defaults=OPENAI_DEFAULTS
    )
    tokens = max_new_tokens(fields, "max_tokens", context_tokens=model.context_tokens)
    return ParsedRequest(
        model=model,
        choices=_choices(prompts, n, model=model, asker=asker, reply=reply, tokens=tokens),
        prompts=len(prompts),
        stream=stream,
        include_usage=include_usage,
        logprobs=top_logprobs is not None,
    )


def parse_llama_completion(
    body: Mapping[str, Any], *, model: ServedModel, asker: Asker, limits: RequestLimits
) -> ParsedRequest:
    """A body of llama-server's ``POST /completion``: one prompt; ``n_predict`` of -1 means no limit."""
    unlimited = {"n_predict", "max_tokens"}
    # llama-server says "no limit" and "draw a seed" by -1; OpenAI's fields have no such value.
    fields = Fields({k: v for k, v in body.items() if not (v == -1 and (k in unlimited or k == "seed"))})
    refuse_unsupported(fields)
    prompts = _prompts(fields, limits, vocab_size=model.vocab_size)
    if len(prompts) != 1:
        raise fields.refuse("prompt", f"has {len(prompts)} prompts; /completion takes one")
    reply = reply_params(fields, limits=limits, vocab_size=model.vocab_size, top_logprobs=None, defaults=LLAMA_DEFAULTS)
    tokens = max_new_tokens(fields, "n_predict", "max_tokens", context_tokens=model.context_tokens)
    return ParsedRequest(
        model=model,
        choices=_choices(prompts, 1, model=model, asker=asker, reply=reply, tokens=tokens),
        prompts=1,
        stream=fields.boolean("stream"),
    )


def parse_tokens(fields: Fields, *, vocab_size: int, limits: RequestLimits) -> list[int]:
    """The ids of ``POST /detokenize``."""
    tokens = fields.array("tokens", maximum=limits.token_ids)
    if tokens is None:
        raise fields.refuse("tokens", f"must be an array of token ids{fields.instead('tokens')}")
    return list(_token_ids(tokens, fields.refuse, "tokens", vocab_size))


def parse_text(fields: Fields, name: str, limits: RequestLimits) -> str:
    """A string that must be there, of bounded length."""
    text = fields.string(name)
    if text is None:
        raise fields.refuse(name, f"must be a string{fields.instead(name)}")
    return _bounded(text, fields, name, limits)


def _bounded(text: str, fields: Fields, name: str, limits: RequestLimits) -> str:
    if len(text) > limits.text_bytes or len(text.encode()) > limits.text_bytes:
        raise fields.refuse(name, f"holds more than {limits.text_bytes} bytes of text")
    return text


def _choices(
    prompts: list[Prompt], n: int, *, model: ServedModel, asker: Asker, reply: ReplyParams, tokens: int | None
) -> tuple[InferenceRequest, ...]:
    return tuple(
        InferenceRequest(
            alias=model.alias,
            tenant=asker.tenant,
            prompt=prompt,
            reply=_with_own_seed(reply, choice),
            max_new_tokens=tokens,
            deadline_s=asker.deadline_s,
        )
        for prompt in prompts
        for choice in range(n)
    )


def _with_own_seed(reply: ReplyParams, choice: int) -> ReplyParams:
    # One seed would make all n choices the same text, which nobody who asks for several wants.
    seed = reply.sampling.seed
    if seed is None or choice == 0:
        return reply
    return attrs.evolve(reply, sampling=attrs.evolve(reply.sampling, seed=(seed + choice) % 2**64))


def _stream(fields: Fields) -> tuple[bool, bool]:
    stream = fields.boolean("stream")
    options = fields.object("stream_options", maximum=16)
    if options is None:
        return stream, False
    if not stream:
        raise fields.refuse("stream_options", "needs stream to be true")
    return stream, Fields(options, "stream_options").boolean("include_usage")


def _n(fields: Fields, limits: RequestLimits, *, prompts: int) -> int:
    n = fields.integer("n", minimum=1, maximum=limits.choices) or 1
    if n * prompts > limits.choices:
        raise fields.refuse("n", f"times {prompts} prompts makes {n * prompts} choices; at most {limits.choices}")
    return n


def _refuse_best_of(fields: Fields, n: int) -> None:
    best_of = fields.integer("best_of", minimum=1)
    if best_of is not None and best_of != n:
        raise fields.refuse("best_of", "cannot be served: choices are not ranked; leave it out or set it to n")


def _prompts(fields: Fields, limits: RequestLimits, *, vocab_size: int) -> list[Prompt]:
    """``prompt``: a string, an array of strings, of ids, or of arrays of ids."""
    value = fields.raw("prompt")
    if isinstance(value, str):
        return [TextPrompt(_bounded(value, fields, "prompt", limits))]
    if not isinstance(value, list):
        raise fields.refuse("prompt", f"must be a string or an array{fields.instead('prompt')}")
    if not value:
        raise fields.refuse("prompt", "must not be an empty array")
    if not isinstance(value[0], str | list):
        return [_token_prompt(value, fields, "prompt", limits, vocab_size)]
    if len(value) > limits.choices:
        raise fields.refuse("prompt", f"has {len(value)} prompts; at most {limits.choices} are taken")
    prompts: list[Prompt] = []
    for index, one in enumerate(value):
        if isinstance(one, str):
            prompts.append(TextPrompt(_bounded(one, fields, "prompt", limits)))
        elif isinstance(one, list) and one:
            prompts.append(_token_prompt(one, fields, f"prompt[{index}]", limits, vocab_size))
        else:
            raise fields.refuse(f"prompt[{index}]", "must be a string or an array of token ids that is not empty")
    return prompts


def _token_prompt(value: list[Any], fields: Fields, name: str, limits: RequestLimits, vocab_size: int) -> TokenPrompt:
    if len(value) > limits.token_ids:
        raise fields.refuse(name, f"has {len(value)} token ids; at most {limits.token_ids} are taken")
    return TokenPrompt(_token_ids(value, fields.refuse, name, vocab_size))


def _token_ids(
    value: list[Any], refuse: Callable[[str, str], InvalidRequest], name: str, vocab_size: int
) -> tuple[int, ...]:
    for index, token in enumerate(value):
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
            raise refuse(name, f"has no token id at [{index}]; ids are integers from 0 to {vocab_size - 1}")
    return tuple(value)
