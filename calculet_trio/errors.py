"""The error tree: everything this package raises on purpose.

The tree knows no HTTP; ``api.errors`` holds the one table from these classes to status codes, and
``cli.exit_codes`` the one table to exit codes. Outcomes of device jobs are *values*, not exceptions
(``runtimes.port``).
"""

from __future__ import annotations


class CalculetError(Exception):
    """Base of every error that has a sentence for the person who caused or must mend it."""


# ---- what a client did ------------------------------------------------------------------------


class InvalidRequest(CalculetError):
    """The request can never be served as it stands.

    Args:
        message: one sentence that names the field and the limit.
        param: path of the offending field (``messages[0].content``), or None.
        code: machine-readable code, or None.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class ContextLengthExceeded(InvalidRequest):
    """Prompt and reply cannot fit the model's context.

    Args:
        prompt_tokens: tokens of the prompt, as counted by the model's tokenizer.
        limit_tokens: the largest prompt that leaves room for one token of reply.
    """

    def __init__(self, *, prompt_tokens: int, limit_tokens: int, param: str | None = None) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens; this model takes at most {limit_tokens}",
            param=param,
            code="context_length_exceeded",
        )
        self.prompt_tokens = prompt_tokens
        self.limit_tokens = limit_tokens


class ModelNotFound(CalculetError):
    """No alias of that name is served."""

    def __init__(self, name: str, *, served: tuple[str, ...]) -> None:
        shown = name if len(name) <= 64 else f"{name[:64]}… ({len(name)} characters)"
        known = ", ".join(served) or "none yet"
        super().__init__(f"the model {shown!r} is not served here; served: {known}")
        self.served = served


class KeyRefused(CalculetError):
    """No key was presented where one is needed, or one that nobody knows."""

    def __init__(self) -> None:
        super().__init__("a valid key is needed: send Authorization: Bearer KEY, or x-api-key: KEY")


class NotPermitted(CalculetError):
    """The key is known, and this is not for its holder."""


# ---- what the service cannot do now -----------------------------------------------------------


class RequestRefused(CalculetError):
    """The request was not admitted, or its wait ended; it may be sent again.

    Args:
        message: one sentence that names the limit met.
        code: machine-readable code (``queue_full``, ``loading``, ``deadline_exceeded`` ...).
        retry_after_s: when to come back, from the queue's own drain estimate; None if unknown.
    """

    def __init__(self, message: str, *, code: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.retry_after_s = retry_after_s


class CapacityExceeded(RequestRefused):
    """A queue or budget (a tenant's or the server's) is full: 429."""


class ServiceUnavailable(RequestRefused):
    """Loading, draining, recovering, failed, or a wait that its deadline ended: 503."""


class GenerationFailed(CalculetError):
    """An admitted request lost its device job or its sequence; nothing more will come.

    Args:
        reason: the fault's reason code (closed set, see ``runtimes.port.FaultReason``).
        retryable: whether the same request may succeed if sent again.
    """

    def __init__(self, reason: str, *, retryable: bool) -> None:
        super().__init__(f"the generation was ended by a fault: {reason}")
        self.reason = reason
        self.retryable = retryable


# ---- what the operator must mend --------------------------------------------------------------


class OperatorError(CalculetError):
    """Base of errors that end a command; ``hint`` says what to do next."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigurationRefused(OperatorError):
    """The configuration, or a package it names, must not be served (exit 78)."""


class PackageError(OperatorError):
    """A package or its source is missing, damaged, untrusted or of an unsupported kind (exit 78)."""


class LoadBroken(OperatorError):
    """A step of a load met an error that nobody foresaw, of a disk or of the device's library, say (exit 1)."""


class Unavailable(OperatorError):
    """Something needed is taken or unreachable: a port, a device, a hub (exit 69)."""


class OperationRefused(OperatorError):
    """What an operator asked for cannot be done now, or not of this daemon: another operation runs, say (exit 69)."""


class OperationFailed(OperatorError):
    """The daemon was asked for something and refused it, or failed at it; the sentence is the daemon's own (exit 1)."""


class DeviceLost(OperatorError):
    """The device's state is unknown; only a fresh process may touch it again (exit 75)."""


class DeviceNotQuiet(OperatorError):
    """A process before left the device at work, and it still is (exit 76).

    Args:
        seen: what was seen last, a clause.
    """

    def __init__(self, seen: str) -> None:
        super().__init__(
            f"the device is not quiet: {seen}; it is not configured while a job of a process before may be on it",
            hint="wait and start again; if it stays so, reset the board or power-cycle the host",
        )
