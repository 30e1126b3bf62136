"""What prefix reuse does for a chat: the time to the first token of each turn, with it and without, in turns.

    tools/bench_reuse                              # smollm2 from the store, three rounds of each
    tools/bench_reuse --package NAME --rounds 5 --turns 5 --words 60 --reply 48 --json bench.json
    tools/bench_reuse --short --package PATH       # as little as shows that it works

The production daemon without HTTP, over the CPU runtime, in this process. One client talks: each turn sends all that
was said and a question of so many words. "With" is `prefix_reuse.enabled: true`, which the first start earns if no
record is there yet; "without" is false. Whether both said the same is printed. Wall time on this machine, whatever
else it does: compare the ratios, not the milliseconds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Final

import attrs
import structlog
import trio

from calculet_trio.cli.wiring import wire
from calculet_trio.settings.configuration import load
from calculet_trio.shell.daemon import Daemon
from calculet_trio.shell.lifecycle import run
from calculet_trio.shell.service import InferenceRequest, Service
from calculet_trio.text.params import ChatPrompt, ReplyParams, SamplingParams

ROUND_S: Final = 900.0
WORDS: Final = ("sea", "river", "wide", "old", "and", "every", "that", "we", "know", "goes", "down", "to", "it", "time")
KINDS: Final = ("without", "with")


@attrs.frozen
class Turn:
    """One turn: seconds to its first token, tokens of its prompt, those that were there already, and its reply."""

    first_token_s: float
    prompt_tokens: int
    cached_tokens: int
    text: str


@attrs.frozen
class Chat:
    """The one client."""

    alias: str
    turns: int
    words: int
    reply_tokens: int

    async def talk(self, service: Service) -> list[Turn]:
        """All turns, one after the other."""
        messages: list[dict[str, str]] = []
        said = []
        for number in range(self.turns):
            question = " ".join(WORDS[(number + place) % len(WORDS)] for place in range(self.words))
            messages.append({"role": "user", "content": f"{question}?"})
            said.append(await self._ask(service, messages))
            messages.append({"role": "assistant", "content": said[-1].text})
        return said

    async def _ask(self, service: Service, messages: list[dict[str, str]]) -> Turn:
        request = InferenceRequest(
            alias=self.alias,
            tenant="default",
            prompt=ChatPrompt(messages=tuple(messages)),
            reply=ReplyParams(sampling=SamplingParams(temperature=0.0)),
            max_new_tokens=self.reply_tokens,
            deadline_s=ROUND_S,
        )
        asked_s = trio.current_time()
        first_s: float | None = None
        text = ""
        async with service.open(request) as handle:
            async for output in handle:
                first_s = trio.current_time() if first_s is None else first_s
                text += output.text
            assert first_s is not None, "a reply has at least one token"
            return Turn(first_s - asked_s, handle.prompt_tokens, handle.cached_tokens, text)


def measured(daemon: Daemon, chat: Chat) -> list[Turn]:
    """Start the daemon, let the client talk, end it."""
    found: list[Turn] = []

    async def live() -> None:
        send, signals = trio.open_memory_channel[int](1)
        ready = trio.Event()

        async def surface(service: Service, stop: trio.Event, *, task_status: trio.TaskStatus[int]) -> None:
            task_status.started(0)
            await ready.wait()
            found.extend(await chat.talk(service))
            await send.send(15)
            await stop.wait()

        here = attrs.evolve(daemon, serve_http=surface, on_ready=lambda _port: ready.set())
        with trio.fail_after(ROUND_S):
            await run(here, signals=signals)

    trio.run(live)
    return found


def daemon_of(package: str, *, reuse: bool, directory: Path) -> Daemon:
    """A fresh daemon that reuses prefixes, or does not."""
    scheduler = directory / f"scheduler-{reuse}.yaml"
    scheduler.write_text(f"schema: calculet-scheduler/v1\nprefix_reuse: {{enabled: {str(reuse).lower()}}}\n")
    service = directory / f"service-{reuse}.yaml"
    models = json.dumps([{"package": package, "scheduler": str(scheduler)}])
    service.write_text(f"schema: calculet-service/v1\nmodels: {models}\n")
    return wire(load(service), on_ready=lambda _port: None)


def show(rounds: dict[str, list[list[Turn]]]) -> None:
    """A row for each turn."""
    print(f"\n{'turn':>6}{'prompt':>8}{'cached':>8}{'without, ms':>13}{'with, ms':>10}{'ratio':>8}   of medians")
    for place, turn in enumerate(rounds["with"][0]):
        without_s, with_s = (median(each[place].first_token_s for each in rounds[kind]) for kind in KINDS)
        figures = f"{without_s * 1000:13.1f}{with_s * 1000:10.1f}{with_s / without_s:8.3f}"
        print(f"{place + 1:>6}{turn.prompt_tokens:>8}{turn.cached_tokens:>8}{figures}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", default="smollm2")
    parser.add_argument("--rounds", type=int, default=3, help="of each kind")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--words", type=int, default=60, help="of each question")
    parser.add_argument("--reply", type=int, default=48, help="tokens of each reply, at most")
    parser.add_argument("--short", action="store_true", help="one round of two short turns")
    parser.add_argument("--json", type=Path, help="write every turn here")
    options = parser.parse_args()
    if options.short:
        options.rounds, options.turns, options.words, options.reply = 1, 2, 12, 4
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    rounds: dict[str, list[list[Turn]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as directory:
        for number in range(options.rounds):
            for kind in KINDS if number % 2 == 0 else reversed(KINDS):
                daemon = daemon_of(options.package, reuse=kind == "with", directory=Path(directory))
                chat = Chat(daemon.source.alias, options.turns, options.words, options.reply)
                rounds[kind].append(measured(daemon, chat))
                last_ms = rounds[kind][-1][-1].first_token_s * 1000
                print(f"round {number + 1}, {kind} reuse: turn {options.turns} after {last_ms:.0f} ms", flush=True)
    texts = {tuple(turn.text for turn in talk) for found in rounds.values() for talk in found}
    print(f"\n{options.package}, host runtime, {options.turns} turns of {options.words} words")
    show(rounds)
    if options.json:
        turns = {kind: [list(map(attrs.asdict, talk)) for talk in found] for kind, found in rounds.items()}
        options.json.write_text(json.dumps(turns))
    print(
        "both said the same" if len(texts) == 1 else "they did not say the same: config/README.md says when that may be"
    )


if __name__ == "__main__":
    main()
