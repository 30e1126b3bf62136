"""What an operator may set about the service socket: every bound on what a stranger can make us hold.

Source: API.md "Parameters", CONVENTIONS.md "Traps of this stack".
"""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class RequestLimits:
    """How large one request may be; each is checked before anything that costs time or memory.

    Args:
        body_bytes: a body's length; beyond it 413.
        json_depth: nesting of arrays and objects.
        json_marks: commas and opening brackets in a body. Parsing holds the interpreter, so this bounds how
            long one body can make all others wait (200,000 take about 40 ms).
        text_bytes: UTF-8 bytes of all text of one prompt; more could not fit a context anyway.
        messages, tools, stops, logit_bias_entries, template_kwargs: entries of the field of that name.
        stop_bytes: UTF-8 bytes of one stop string.
        choices: prompts times ``n``; each takes a lane of its own.
        top_logprobs: the likeliest alternatives shown per token.
        token_ids: ids in one prompt, or in one ``/detokenize``.
    """

    body_bytes: int = 8 * 2**20
    json_depth: int = 64
    json_marks: int = 200_000
    text_bytes: int = 2**20
    messages: int = 2048
    tools: int = 128
    stops: int = 4
    stop_bytes: int = 1024
    logit_bias_entries: int = 1024
    template_kwargs: int = 32
    choices: int = 16
    top_logprobs: int = 20
    token_ids: int = 131_072


@attrs.frozen(kw_only=True)
class ConnectionLimits:
    """How long and how much one connection may take.

    Args:
        connections: open at once; one more is told 503 and closed.
        head_bytes: a request's line and headers together; beyond it 431.
        head_s: from a head's first byte to its last.
        body_s: from a request's head to its body's last byte; beyond it 408.
        idle_s: an open connection without a request.
        write_stall_s: without one byte taken by the reader; then the connection is cut. Also the kernel's
            ``TCP_USER_TIMEOUT``, so that a stalled reader cannot outlive a drain.
        linger_s: how long what a refused client still sends is read and thrown away, so that it can read the
            refusal (closing on unread bytes would reset the connection and lose it).
        read_ahead_chunks: reads (of 64 KiB at most) kept while an earlier request is answered.
        graceful_s: from shutdown until connections that still work are cut; the shell cuts them long before, when
            the replies' time is over and the device has ended their last jobs.
        backlog: connections the kernel keeps for us to accept.
    """

    connections: int = 1024
    head_bytes: int = 32 * 2**10
    head_s: float = 15.0
    body_s: float = 60.0
    idle_s: float = 75.0
    write_stall_s: float = 20.0
    linger_s: float = 2.0
    read_ahead_chunks: int = 4
    graceful_s: float = 120.0
    backlog: int = 512


@attrs.frozen(kw_only=True)
class ApiSettings:
    """Everything about the service socket that is not its address.

    Args:
        keep_alive_s: silence in an admitted stream after which a comment line is sent.
        cors_origins: origins whose pages may call us (``*`` for all). None by default: a service that needs
            no key must not be open to every page its owner visits.
        request: see `RequestLimits`.
        connection: see `ConnectionLimits`.
    """

    keep_alive_s: float = 15.0
    cors_origins: tuple[str, ...] = ()
    request: RequestLimits = attrs.field(factory=RequestLimits)
    connection: ConnectionLimits = attrs.field(factory=ConnectionLimits)
