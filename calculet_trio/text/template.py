"""A model's chat template: conversations into prompts, in a process of its own that may be killed."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import attrs

from calculet_trio.errors import InvalidRequest, PackageError, ServiceUnavailable
from calculet_trio.text.params import ChatPrompt
from calculet_trio.text.tokenizer import Segment

_START_S: Final = 30.0
"""For the interpreter and the template's compilation; 0.1 s is usual, a machine under load may need more."""

_REPLY_BYTES_PER_CHARACTER: Final = 12
"""JSON's longest spelling of a character."""

_REPLY_OVERHEAD_BYTES: Final = 1 << 20

_RECEIVE_BYTES: Final = 1 << 20


@attrs.frozen(kw_only=True)
class TemplateLimits:
    """Bounds on one rendering."""

    time_s: float = 2.0
    memory_bytes: int = 512 << 20
    output_characters_max: int = 8 << 20


class _ProcessEnded(Exception):
    """The process is gone, by itself or by `TemplateWorker.close`."""


class TemplateWorker:
    """Renders prompts, one at a time, in a process that lives on between them.

    A rendering that breaks a limit costs the process; the next one starts another. Safe in any thread;
    all calls block. Close it when done.

    Args:
        template: jinja2 source, as it came with the model.
        special_literals: texts of the special tokens: they are special where the template writes them, and
            text where a user did.
        bos_token, eos_token: the literals under these names in the template.
        limits: bounds on one rendering.
        process: the first process, where it was begun ahead; the worker's from here on.

    Raises:
        PackageError: the template does not compile.
    """

    def __init__(
        self,
        template: str,
        *,
        special_literals: Sequence[str],
        bos_token: str = "",
        eos_token: str = "",
        limits: TemplateLimits | None = None,
        process: TemplateProcess | None = None,
    ) -> None:
        self._limits = limits or TemplateLimits()
        self._settings = attrs.asdict(self._limits) | {
            "template": template,
            "variables": {"bos_token": bos_token, "eos_token": eos_token},
            "special_literals": list(special_literals),
        }
        self._rendering = threading.Lock()
        self._closed = False
        self._process: TemplateProcess | None = self._set_up(process or TemplateProcess())

    def render(self, prompt: ChatPrompt) -> list[Segment]:
        """The prompt as text and special tokens.

        Blocks for the renderings before it and its own, each at most ``limits.time_s``.

        Raises:
            InvalidRequest: the template refused the conversation, or broke a limit on it.
            ServiceUnavailable: the worker is closed.
        """
        request = {
            "messages": prompt.messages,
            "tools": prompt.tools,
            "template_kwargs": prompt.template_kwargs,
            "add_generation_prompt": prompt.add_generation_prompt,
        }
        with self._rendering:
            reply = self._ask(_frame(request))
            if reply.get("failed") == "memory":
                self._discard()  # what it freed may lie in pieces
        if "failed" in reply:
            raise InvalidRequest(self._sentence(reply), param="messages")
        return [Segment(text, special) for text, special in reply["result"]]

    def close(self) -> None:
        """End the process, in the middle of a rendering too. Idempotent."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()

    def _ask(self, frame: bytes) -> dict[str, Any]:
        # A process found dead had died before; one that dies twice, on a fresh start, dies of this prompt.
        for _ in range(2):
            try:
                process = self._running()
                return process.ask(frame, time_s=self._limits.time_s, reply_bytes_max=self._reply_bytes_max)
            except _ProcessEnded:
                self._discard()
            except TimeoutError:
                self._discard()
                return {"failed": "time"}
        return {"failed": "ended"}

    def _running(self) -> TemplateProcess:
        if self._process is None and not self._closed:
            try:
                self._process = self._set_up(TemplateProcess())
            except PackageError as error:  # it did start once: the machine is short of something
                raise ServiceUnavailable(error.message, code="template_unavailable") from None
        if self._closed or self._process is None:  # `close` may have come while it started
            self._discard()
            raise ServiceUnavailable("the model is being unloaded", code="unloading")
        return self._process

    @property
    def _reply_bytes_max(self) -> int:
        return self._limits.output_characters_max * _REPLY_BYTES_PER_CHARACTER + _REPLY_OVERHEAD_BYTES

    def _set_up(self, process: TemplateProcess) -> TemplateProcess:
        try:
            reply = process.ask(_frame(self._settings), time_s=_START_S, reply_bytes_max=_REPLY_OVERHEAD_BYTES)
        except (TimeoutError, _ProcessEnded):
            process.kill()
            raise PackageError(
                "the package's chat template does not compile in time, or the process for it does not start",
                hint="`python -m calculet_trio.text.template_process </dev/null` tells the one from the other",
            ) from None
        if "failed" in reply:
            process.kill()
            detail = reply.get("detail", reply["failed"])
            raise PackageError(f"the package's chat template does not compile: {detail}")
        return process

    def _discard(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _sentence(self, reply: dict[str, Any]) -> str:
        limits = self._limits
        template = "the model's chat template"
        kind = reply["failed"]
        if kind == "raised":
            return str(reply["detail"]) or f"{template} refused this conversation"
        return {
            "time": f"{template} took longer than {limits.time_s:g} s on this conversation",
            "memory": f"{template} needed more than {limits.memory_bytes >> 20} MiB on this conversation",
            "output": f"{template} wrote more than {limits.output_characters_max} characters",
            "placeholders": "the conversation uses every private-use character there is",
            "ended": f"{template} ended its process on this conversation",
        }.get(kind, f"{template} cannot render this conversation ({reply.get('detail')})")


class TemplateProcess:
    """One child process and the socket to it. It starts while the caller does something else, and waits for a template.

    Raises:
        PackageError: the machine has no process left to give.
    """

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        # -P: a module in the working directory must not stand in for one of ours
        command = [sys.executable, "-P", "-m", "calculet_trio.text.template_process"]
        try:
            with theirs:
                self._child = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # the terminal's Ctrl-C is the daemon's
                )
        except OSError as error:
            self._socket.close()
            raise PackageError(f"the process that renders the chat template cannot be made: {error.strerror}") from None

    def ask(self, frame: bytes, *, time_s: float, reply_bytes_max: int) -> dict[str, Any]:
        """Send a frame and wait for its reply.

        Raises:
            TimeoutError: no whole reply within ``time_s``.
            _ProcessEnded: the process closed its end, or sent what is no reply.
        """
        deadline_s = time.monotonic() + time_s
        try:
            self._socket.settimeout(time_s)
            self._socket.sendall(frame)
            size = int.from_bytes(self._receive(4, deadline_s))
            if size > reply_bytes_max:
                raise _ProcessEnded
            reply: dict[str, Any] = json.loads(self._receive(size, deadline_s))
        except TimeoutError:
            raise
        except OSError:
            raise _ProcessEnded from None
        return reply

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits in `ask`
        self._child.kill()
        self._child.wait()
        self._socket.close()

    def _receive(self, size: int, deadline_s: float) -> bytes:
        received = bytearray()
        while len(received) < size:
            self._socket.settimeout(max(deadline_s - time.monotonic(), 1e-3))
            part = self._socket.recv(min(size - len(received), _RECEIVE_BYTES))
            if not part:
                raise _ProcessEnded
            received += part
        return bytes(received)


def _frame(body: dict[str, Any]) -> bytes:
    encoded = json.dumps(body, default=dict).encode()
    return len(encoded).to_bytes(4) + encoded
