"""One request to a daemon in trouble, and what came of it to the last byte."""

from __future__ import annotations

import json
import random
import socket
import struct
from typing import Any, Final

import attrs
import h11
import trio

PROMPTS: Final = 24
BOUND_S: Final = 120.0
"""Nothing takes so long: who waits longer was forgotten."""
READ_BYTES: Final = 65_536


@attrs.frozen
class Errand:
    """What one client wants.

    Args:
        prompt: which of the `PROMPTS`.
        body: the request's.
        deadline_ms: for ``x-request-deadline-ms``; None for none.
        patience_s: when it leaves.
        resets: whether it leaves with a reset.
        pause_s: before it asks.
    """

    prompt: int
    body: dict[str, Any]
    deadline_ms: int | None = None
    patience_s: float = BOUND_S
    resets: bool = False
    pause_s: float = 0.0

    def request(self) -> bytes:
        raw = json.dumps(self.body).encode()
        deadline = "" if self.deadline_ms is None else f"x-request-deadline-ms: {self.deadline_ms}\r\n"
        head = "POST /v1/completions HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Type: application/json\r\n"
        return f"{head}{deadline}Content-Length: {len(raw)}\r\n\r\n".encode() + raw


def calm_errand(prompt: int, *, stream: bool = True) -> Errand:
    """The request whose text is known; the same for everybody who has that number."""
    draw = random.Random(prompt)
    text = "".join(draw.choices("abcdefghij ", k=draw.randint(3, 50)))
    body = {"model": "m", "prompt": text, "max_tokens": draw.randint(4, 24), "temperature": 0, "stream": stream}
    return Errand(prompt, body)


def drawn_errand(draw: random.Random) -> Errand:
    """Some client: most stay, some leave, some have a deadline."""
    leaves = draw.random() < 0.25
    return attrs.evolve(
        calm_errand(draw.randrange(PROMPTS), stream=draw.random() < 0.75),
        deadline_ms=draw.randint(1, 2000) if draw.random() < 0.1 else None,
        patience_s=draw.uniform(0.0, 1.0) if leaves else BOUND_S,
        resets=draw.random() < 0.5,
        pause_s=draw.uniform(0.0, 0.2),
    )


@attrs.frozen(kw_only=True)
class Answer:
    """What one request came to.

    Args:
        status: 0 where no reply began.
        text: as far as it came.
        finish: its ``finish_reason``.
        code: of the error, in the reply's body or as its last event.
        is_whole: the end was said: an end mark, an error's event, or a body to its last byte.
        left: the client did not wait for the end.
        forgot: nothing came in `BOUND_S`.
    """

    status: int = 0
    text: str = ""
    finish: str | None = None
    code: str | None = None
    is_whole: bool = False
    left: bool = False
    forgot: bool = False


async def ask(port: int, errand: Errand) -> Answer:
    """Ask, and listen as long as the errand wants.

    **Cancellation**: safe; nothing was heard then.
    """
    heard = bytearray()
    with trio.move_on_after(errand.patience_s) as patience:
        try:
            connection = await trio.open_tcp_stream("127.0.0.1", port)
            if errand.resets:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            async with connection:
                await connection.send_all(errand.request())
                while data := await connection.receive_some(READ_BYTES):
                    heard += data
        except (OSError, trio.BrokenResourceError):
            pass  # what was heard until then says how it ended
    answer = understood(bytes(heard), is_over=not patience.cancelled_caught)
    is_impatient = errand.patience_s < BOUND_S
    return attrs.evolve(
        answer,
        left=patience.cancelled_caught and is_impatient,
        forgot=patience.cancelled_caught and not is_impatient,
    )


def understood(raw: bytes, *, is_over: bool) -> Answer:
    """The answer in a reply's bytes, whole or not."""
    status, body, is_whole = _reply(raw, is_over=is_over)
    if not body.startswith(b"data:") and not body.startswith(b":"):
        if not (is_whole and body):
            return Answer(status=status)
        said = json.loads(body)
        if "error" in said:
            return Answer(status=status, code=said["error"]["code"], is_whole=True)
        [choice] = said["choices"]
        return Answer(status=status, text=choice["text"], finish=choice["finish_reason"], is_whole=True)
    text, finish, code, is_ended = "", None, None, False
    for line in body.split(b"\n")[:-1]:
        if line == b"data: [DONE]":
            is_ended = True
        elif line.startswith(b"data: "):
            event = json.loads(line[6:])
            code = event["error"]["code"] if "error" in event else code
            for choice in event.get("choices", ()):
                text += choice["text"]
                finish = choice["finish_reason"] or finish
    return Answer(status=status, text=text, finish=finish, code=code, is_whole=is_ended or code is not None)


def _reply(raw: bytes, *, is_over: bool) -> tuple[int, bytes, bool]:
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="POST", target="/", headers=[("Host", "h"), ("Content-Length", "0")]))
    client.send(h11.EndOfMessage())
    client.receive_data(raw)
    if is_over and raw:
        client.receive_data(b"")
    status, body = 0, bytearray()
    while raw:
        try:
            event = client.next_event()
        except h11.RemoteProtocolError:
            break  # it broke off
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return status, bytes(body), True
        elif event in (h11.NEED_DATA, h11.PAUSED) or isinstance(event, h11.ConnectionClosed):
            break
    return status, bytes(body), False


def objection(answer: Answer, errand: Errand, texts: dict[int, str], *, may_break_off: bool) -> str | None:
    """What is wrong with the answer, or None.

    Args:
        answer: what the client has.
        errand: what it wanted.
        texts: what each prompt's reply is where nothing disturbs it.
        may_break_off: whether its daemon was killed, so that replies end without a word.
    """
    known = texts[errand.prompt]
    is_early = answer.finish is None or (answer.finish == "length" and errand.deadline_ms is not None)
    if answer.forgot:
        return f"nothing came in {BOUND_S:g} s"
    if not known.startswith(answer.text.rstrip("\ufffd") if is_early else answer.text):
        return f"{answer.text!r} is no part of {known!r}: a text was mixed up, doubled or has a hole"
    if answer.finish is not None and not is_early and answer.text != known:
        return f"{answer.text!r} ended before {known!r}"
    if answer.status in (0, 200):
        if not (answer.is_whole or answer.left or may_break_off):
            return f"a reply broke off without a word after {answer.text!r}"
    elif answer.is_whole and not _may_be_told(answer, errand):
        return f"{answer.status} {answer.code}"
    return None


def _may_be_told(answer: Answer, errand: Errand) -> bool:
    if answer.status == 400:  # no idle device could have been in time
        return answer.code == "deadline_too_short" and errand.deadline_ms is not None
    return answer.status in (429, 500, 503) and answer.code is not None


def ending(answer: Answer) -> str:
    """In a word, how it went."""
    if answer.left:
        return "left"
    if answer.code is not None:
        return f"{answer.status or 200} {answer.code}"
    return "whole" if answer.is_whole else "broken off"
