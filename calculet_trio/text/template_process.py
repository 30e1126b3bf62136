"""The process that renders a chat template: ``python -m calculet_trio.text.template_process``.

A template is a program that came with a model: it may loop for ever or ask for all memory, and a thread
cannot be stopped. So it runs here, bounded in memory, time and output, and can be killed.

Frames both ways on stdin and stdout: four bytes of length, big-endian, then JSON. The first frame says what
to render and within which bounds; each further one is a prompt. Started by `calculet_trio.text.template`;
imports little, to start soon.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from calculet_trio.text.placeholders import Placeholders, PlaceholdersExhausted, SpecialLiterals

_MESSAGE_CHARACTERS_MAX = 500


class _OutputTooLong(Exception):
    pass


class _Generation(Extension):
    """``{% generation %}``, with which training templates mark the reply; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled template with what Hugging Face's chat templates may use.

    Source: transformers ``utils/chat_template_utils.py`` (``_compile_jinja_template``).
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._source: str = settings["template"]
        self._template = environment.from_string(self._source)
        self._variables: dict[str, str] = settings["variables"]
        self._literals = SpecialLiterals(settings["special_literals"])
        self._output_characters_max: int = settings["output_characters_max"]

    def pieces(self, prompt: dict[str, Any]) -> list[tuple[str, bool]]:
        """The rendered prompt as (text, is special) pieces."""
        placeholders = Placeholders(self._literals, prompt, apart_from=self._source)
        hidden = placeholders.hidden()
        variables = {**hidden.pop("template_kwargs"), **self._variables, **hidden}
        rendered: list[str] = []
        characters = 0
        for part in self._template.generate(variables):
            characters += len(part)
            if characters > self._output_characters_max:
                raise _OutputTooLong
            rendered.append(part)
        return placeholders.split("".join(rendered))


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _strftime_now(layout: str) -> str:
    return datetime.now().astimezone().strftime(layout)


def _to_json(
    value: Any, *, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _answer(work: Callable[[], Any]) -> dict[str, Any]:
    """What ``work`` came to, as a reply: a result, or the kind of its failure and what may be said of it."""
    try:
        return {"result": work()}
    except TemplateError as error:
        return {"failed": "raised", "detail": str(error.message or "")[:_MESSAGE_CHARACTERS_MAX]}
    except MemoryError:
        return {"failed": "memory"}
    except _OutputTooLong:
        return {"failed": "output"}
    except PlaceholdersExhausted:
        return {"failed": "placeholders"}
    except Exception as error:  # noqa: BLE001  (a template may raise anything; its text may tell too much)
        return {"failed": "error", "detail": type(error).__name__}


def _limit_resources(memory_bytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    address_space_bytes = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (address_space_bytes, address_space_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _receive(source: BinaryIO) -> dict[str, Any] | None:
    prefix = source.read(4)
    if len(prefix) < 4:
        return None
    body = source.read(int.from_bytes(prefix))
    frame: dict[str, Any] = json.loads(body)
    return frame


def _send(target: BinaryIO, reply: dict[str, Any]) -> None:
    body = json.dumps(reply).encode()
    target.write(len(body).to_bytes(4) + body)
    target.flush()


def main() -> None:
    """Render until the other side closes."""
    source, target = sys.stdin.buffer, sys.stdout.buffer
    settings = _receive(source)
    if settings is None:
        return
    # The parent kills at the limit. Should it have died itself, the alarm's default action ends this process.
    orphan_s = settings["time_s"] + 1
    _limit_resources(settings["memory_bytes"])
    signal.setitimer(signal.ITIMER_REAL, orphan_s)
    templates: list[ChatTemplate] = []
    _send(target, _answer(lambda: templates.append(ChatTemplate(settings))))
    for template in templates:
        signal.setitimer(signal.ITIMER_REAL, 0)
        while prompt := _receive(source):
            signal.setitimer(signal.ITIMER_REAL, orphan_s)
            _send(target, _answer(partial(template.pieces, prompt)))
            signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main()
