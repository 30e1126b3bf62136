"""Scripts: what a scripted runtime says, from a YAML file.

A script is for testing clients and the daemon itself: exact bytes, token by token, with gates, delays and
faults, through the whole real service. ``SCRIPTS.md`` beside this file has the format, with examples.

Source: ``RT[...]`` in the public bug reports that the tests replay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final

import attrs
import yaml

from calculet_trio.core.profiles import BatchProfile, InactiveLanePolicy, ModelShape, PrefillProfile
from calculet_trio.errors import PackageError
from calculet_trio.text.byte_tokenizer import BYTE_SPECIALS, ByteTokenizer

SCHEMA: Final = "calculet-script/v1"


class ScriptedFault(Enum):
    """What may go wrong in the job that makes a token."""

    BUSY = "busy"  # the device does not take the job; tried again, it may
    OUTPUT = "output"  # the job ends, its output is unusable
    HANG = "hang"  # the wait ends by its timeout
    STUCK = "stuck"  # the wait never ends, whatever its timeout
    LOST = "lost"  # the wait ends at once, the device is gone
    RAISE = "raise"  # the runtime itself breaks


class Afterwards(Enum):
    """What a reply does when its tokens are used up."""

    EOS = "eos"
    REPEAT = "repeat"


@attrs.frozen(kw_only=True)
class ScriptedToken:
    """One token.

    Args:
        token: its id, or None where ``logits`` speaks.
        logits: the row itself; shorter than the vocabulary, the rest is minus infinity.
        delay_s: the job takes at least so long.
        gate: the job waits until somebody lets one through this gate.
        fault: what goes wrong in the job; with ``fault_times``, only so many times.
    """

    token: int | None = None
    logits: tuple[float, ...] | None = None
    delay_s: float = 0.0
    gate: str | None = None
    fault: ScriptedFault | None = None
    fault_times: int = 1


@attrs.frozen
class ScriptedReply:
    """A reply for prompts whose text contains ``when`` (every prompt, where it is empty)."""

    when: str
    tokens: tuple[ScriptedToken, ...]
    afterwards: Afterwards

    def token_at(self, index: int, eos: ScriptedToken) -> ScriptedToken:
        """The reply's token number ``index``, from 0."""
        if index < len(self.tokens):
            return self.tokens[index]
        return eos if self.afterwards is Afterwards.EOS else self.tokens[index % len(self.tokens)]


@attrs.frozen(kw_only=True)
class Script:
    """A whole scripted model.

    Args:
        model: its alias.
        shape: lanes, context and profiles.
        tokenizer: bytes, the special tokens, and the tokens that the script names.
        replies: the first whose ``when`` matches speaks.
        load_s: how long configuring takes.
        step_s: how long every job takes at least.
        left_over: jobs of a process before that the device still has, until they are let through the gate
            ``left_over``.
        control: path of a Unix socket for gates and counters, or None.
        chat_template: the model's template, or None for a plain one.
    """

    model: str
    shape: ModelShape
    tokenizer: ByteTokenizer
    replies: tuple[ScriptedReply, ...]
    load_s: float
    step_s: float
    left_over: int
    control: Path | None
    chat_template: str | None

    @property
    def eos(self) -> ScriptedToken:
        return ScriptedToken(token=self.tokenizer.special.eos)

    def reply_to(self, prompt: str) -> ScriptedReply:
        """The first matching reply; one that says nothing where none matches."""
        for reply in self.replies:
            if reply.when in prompt:
                return reply
        return ScriptedReply("", (), Afterwards.EOS)


def load_script(path: Path) -> Script:
    """Read a script.

    Raises:
        calculet_trio.errors.PackageError: it cannot be read, or a key is wrong; the key's path is named.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise PackageError(f"cannot read the script {path}: {error}") from error
    return parse_script(document)


def parse_script(document: object) -> Script:
    """Make a script of a parsed YAML document; see `load_script`."""
    top = _Keys(document, "script")
    schema = top.take("schema", str, SCHEMA)
    if schema != SCHEMA:
        raise PackageError(f"script.schema is {schema!r}; this version reads {SCHEMA!r}")
    specials = tuple(top.take("special", list, list(BYTE_SPECIALS)))
    entries = [_Keys(entry, f"script.replies[{n}]") for n, entry in enumerate(top.take("replies", list, []))]
    tokens = [entry.take("tokens", list, []) for entry in entries]
    extra = tuple(dict.fromkeys(bytes_ for entry in tokens for bytes_ in _spelled(entry) if len(bytes_) != 1))
    tokenizer = ByteTokenizer(extra, specials)
    replies = tuple(_reply(entry, spelled, tokenizer) for entry, spelled in zip(entries, tokens, strict=True))
    control = top.take("control", str, "")
    script = Script(
        model=top.take("model", str, "scripted"),
        shape=_shape(top, tokenizer.vocab_size),
        tokenizer=tokenizer,
        replies=replies,
        load_s=top.number("load_s"),
        step_s=top.number("step_s"),
        left_over=top.take("left_over", int, 0),
        control=Path(control) if control else None,
        chat_template=top.take("chat_template", str, "") or None,
    )
    top.done()
    return script


def _shape(top: _Keys, vocab_size: int) -> ModelShape:
    lanes = top.take("lanes", int, 4)
    context = top.take("context_tokens", int, 2048)
    profiles = sorted(top.take("profiles", list, [1, lanes] if lanes > 1 else [1]))
    if lanes < 1 or context < 2 or not profiles or not all(isinstance(b, int) and 1 <= b <= lanes for b in profiles):
        raise PackageError(
            f"script: lanes {lanes}, context_tokens {context}, profiles {profiles}: "
            "lanes must be at least 1, context_tokens at least 2, profiles between 1 and lanes"
        )
    return ModelShape(
        prefill=PrefillProfile("prefill", top.take("prompt_tokens_max", int, context)),
        decode=tuple(
            BatchProfile(f"decode_b{batch}", batch, context, InactiveLanePolicy.VALID_MASK) for batch in profiles
        ),
        lanes=lanes,
        max_seq=context,
        vocab_size=vocab_size,
    )


def _spelled(tokens: Sequence[object]) -> list[bytes]:
    """The bytes of every token in ``tokens`` that has some of its own."""
    spelled = []
    for token in tokens:
        if isinstance(token, str):
            spelled.append(token.encode())
        elif isinstance(token, Mapping) and isinstance(token.get("text"), str):
            spelled.append(token["text"].encode())
        elif isinstance(token, Mapping) and isinstance(token.get("bytes"), str):
            spelled.append(_from_hex(token["bytes"]))
    return spelled


def _from_hex(digits: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise PackageError(f"script: bytes {digits!r} are not pairs of hexadecimal digits") from None


def _reply(entry: _Keys, tokens: Sequence[object], tokenizer: ByteTokenizer) -> ScriptedReply:
    expanded: list[ScriptedToken] = []
    for n, token in enumerate(tokens):
        keys = _Keys({"text": token} if isinstance(token, str) else token, f"{entry.path}.tokens[{n}]")
        times = keys.take("times", int, 1)
        expanded += [_token(keys, tokenizer)] * times
        keys.done()
    reply = ScriptedReply(
        entry.take("when", str, ""), tuple(expanded), entry.choice("afterwards", Afterwards, Afterwards.EOS)
    )
    entry.done()
    if reply.afterwards is Afterwards.REPEAT and not reply.tokens:
        raise PackageError(f"{entry.path}.afterwards is 'repeat', but there are no tokens to repeat")
    return reply


def _token(keys: _Keys, tokenizer: ByteTokenizer) -> ScriptedToken:
    logits: tuple[float, ...] | None = None
    token: int | None = None
    kinds = [kind for kind in ("text", "bytes", "special", "id", "eos", "logits") if kind in keys]
    if len(kinds) != 1:
        raise PackageError(
            f"{keys.path} must have exactly one of text, bytes, special, id, eos, logits; it has {kinds}"
        )
    match kinds[0]:
        case "text":
            token = tokenizer.token_of(keys.take("text", str, "").encode())
        case "bytes":
            token = tokenizer.token_of(_from_hex(keys.take("bytes", str, "")))
        case "special":
            literal = keys.take("special", str, "")
            token = tokenizer.special_id(literal)
            if token is None:
                raise PackageError(f"{keys.path}.special is {literal!r}; there are {tokenizer.special_literals}")
        case "id":
            token = keys.take("id", int, 0)
        case "eos":
            keys.take("eos", bool, True)
            token = tokenizer.special.eos
        case _:
            logits = tuple(float(value) for value in keys.take("logits", list, []))
    return ScriptedToken(
        token=token,
        logits=logits,
        delay_s=keys.number("delay_s"),
        gate=keys.take("gate", str, "") or None,
        fault=keys.choice("fault", ScriptedFault, None),
        fault_times=keys.take("fault_times", int, 1),
    )


class _Keys:
    """A mapping that must be used up: what is left over was misspelt."""

    def __init__(self, mapping: object, path: str) -> None:
        if not isinstance(mapping, Mapping):
            raise PackageError(f"{path} must be a mapping, not {type(mapping).__name__}")
        self.path = path
        self._left: dict[Any, Any] = dict(mapping)

    def __contains__(self, key: str) -> bool:
        return key in self._left

    def take(self, key: str, kind: type[Any], default: Any) -> Any:
        value = self._left.pop(key, default)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise PackageError(f"{self.path}.{key} is {value!r}; it must be of type {kind.__name__}")
        return value

    def number(self, key: str) -> float:
        value = self._left.pop(key, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
            raise PackageError(f"{self.path}.{key} is {value!r}; it must be seconds, from 0 to a million")
        return float(value)

    def choice(self, key: str, kind: type[Any], default: Any) -> Any:
        value = self._left.pop(key, None)
        if value is None:
            return default
        try:
            return kind(value)
        except ValueError:
            allowed = ", ".join(member.value for member in kind)
            raise PackageError(f"{self.path}.{key} is {value!r}; allowed: {allowed}") from None

    def done(self) -> None:
        if self._left:
            raise PackageError(f"{self.path} has unknown keys: {', '.join(map(repr, self._left))}")
