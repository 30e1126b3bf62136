"""The bounds of the service socket as configuration has them: ``limits`` and ``timeouts``.

Keys are called as the attributes of `calculet_trio.api.settings`, which say more; wiring hands them over by name.
Source: SPEC section 9; CONVENTIONS.md "Traps of this stack".
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from calculet_trio.settings.allowed import KeyPath, OrNull, Real, Whole
from calculet_trio.settings.keys import Contradiction, key


@attrs.frozen(kw_only=True)
class LimitSettings:
    """How much one client may make the daemon hold."""

    body_bytes: int = key(Whole(1024, 2**28), 8 * 2**20, "A request's body; beyond it 413.")
    json_depth: int = key(Whole(4, 200), 64, "Nesting of arrays and objects in a body.")
    json_marks: int = key(
        Whole(1000, 2_000_000),
        200_000,
        "Commas and opening brackets in a body. Parsing holds everybody up, so this bounds for how long.",
    )
    text_bytes: int = key(Whole(1024, 2**28), 2**20, "UTF-8 bytes of all text of one prompt.")
    messages: int = key(Whole(1, 100_000), 2048, "Messages in a chat.")
    tools: int = key(Whole(0, 10_000), 128, "Tools in a request.")
    stops: int = key(Whole(1, 64), 4, "Stop strings in a request.")
    stop_bytes: int = key(Whole(1, 65_536), 1024, "UTF-8 bytes of one stop string.")
    logit_bias_entries: int = key(Whole(0, 100_000), 1024, "Entries of logit_bias.")
    template_kwargs: int = key(Whole(0, 1024), 32, "Entries of chat_template_kwargs.")
    choices: int = key(Whole(1, 1024), 16, "Prompts times n; each takes a lane of its own.")
    top_logprobs: int = key(Whole(0, 100), 20, "The likeliest alternatives shown per token.")
    token_ids: int = key(Whole(1, 10_000_000), 131_072, "Token ids in one prompt, or in one /detokenize.")
    connections: int = key(Whole(1, 65_536), 1024, "Connections open at once; one more is told 503.")
    head_bytes: int = key(Whole(1024, 2**20), 32 * 2**10, "A request's line and headers together; beyond it 431.")
    read_ahead_chunks: int = key(Whole(1, 64), 4, "Reads of 64 KiB kept while an earlier request is answered.")
    backlog: int = key(Whole(1, 65_536), 512, "Connections that the kernel keeps until they are accepted.")
    stream_backlog_bytes: int = key(Whole(1024, 2**28), 2**20, "Unread output of a stream; beyond it it is given up.")


@attrs.frozen(kw_only=True)
class TimeoutSettings:
    """How long things may take. job < watchdog < drain, so that each notices what the one before let through.

    The order with the longest job that a model admits is `calculet_trio.settings.timeout_order`'s.
    """

    job_s: float = key(
        Real(0.1, 3600.0),
        60.0,
        "A device job; then its fate is unknown and its lanes are lost. More than the driver's own DMA timeout.",
    )
    job_per_token_ms: float = key(Real(0.0, 10_000.0), 50.0, "Added to job_s for each token that a job appends.")
    watchdog_s: float | None = key(
        OrNull(Real(0.1, 86_400.0), "30 s more than the longest job of the model"),
        None,
        "The daemon without progress, before it leaves with 75; more than the longest job's bound.",
    )
    drain_s: float | None = key(
        OrNull(Real(0.1, 86_400.0), "what the longest job needs, which the service manager is asked for"),
        None,
        "From SIGTERM until the device is closed; more than watchdog_s, less than the service manager's "
        "TimeoutStopSec.",
    )
    quiet_s: float = key(
        Real(0.0, 3600.0),
        30.0,
        "For the device to become quiet, where the process before left a job on it; then this one leaves with 76.",
    )
    streams_s: float = key(
        Real(0.0, 86_400.0), 30.0, "From SIGTERM until open replies are cut; at most drain_s. --drain overrides it."
    )
    keep_alive_s: float = key(
        Real(0.1, 3600.0), 15.0, "Silence in an admitted stream after which a comment line is sent."
    )
    head_s: float = key(Real(0.1, 3600.0), 15.0, "From a request's first byte to its head's last.")
    body_s: float = key(Real(0.1, 3600.0), 60.0, "From a request's head to its body's last byte; beyond it 408.")
    idle_s: float = key(Real(0.1, 3600.0), 75.0, "An open connection without a request.")
    write_stall_s: float = key(
        Real(0.1, 3600.0),
        20.0,
        "A reader that takes no byte; then its connection is cut. Less than drain_s, so that nobody outlives a drain.",
    )
    linger_s: float = key(Real(0.0, 60.0), 2.0, "Reading on after a refusal, so that the client gets to see it.")

    def contradictions(self, below: KeyPath) -> Iterator[Contradiction]:
        """Times in the wrong order."""
        ordered = (
            ("job_s", "watchdog_s", "less than"),
            ("job_s", "drain_s", "less than"),
            ("watchdog_s", "drain_s", "less than"),
            ("write_stall_s", "drain_s", "less than"),
            ("streams_s", "drain_s", "at most"),
        )
        for shorter, longer, relation in ordered:
            shorter_s, longer_s = getattr(self, shorter), getattr(self, longer)
            if shorter_s is None or longer_s is None:  # derived: right by construction
                continue
            if shorter_s > longer_s or (shorter_s == longer_s and relation == "less than"):
                yield Contradiction(
                    ((*below, shorter), (*below, longer)),
                    f"contradicts another key: timeouts.{shorter} ({shorter_s:g}) must be {relation} "
                    f"timeouts.{longer} ({longer_s:g})",
                )
