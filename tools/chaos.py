"""Judges a daemon in trouble. Called by tools/chaos, which says how."""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import structlog

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import attrs  # noqa: E402
import trio  # noqa: E402
from chaos_crowd import Crowd, Tally, undisturbed  # noqa: E402
from chaos_kill import Kills  # noqa: E402
from chaos_place import Place, bare_place, tiny_place  # noqa: E402
from chaos_replay import eight_streams  # noqa: E402

SEEDS, REQUESTS, KILLS = 20, 1000, 50
SHORT_REQUESTS, SHORT_KILLS = 100, 2


@attrs.frozen
class Verdict:
    """One thing that must hold, what was seen, and whether it held."""

    what: str
    seen: str
    objections: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.objections


def crowd(place: Place, texts: dict[int, str], seeds: range, requests: int) -> Iterator[Verdict]:
    """A verdict for each seed."""
    total = Tally()
    for seed in seeds:
        shutil.rmtree(place.state / "faults", ignore_errors=True)  # each has its own budget of resets
        began_s = time.monotonic()
        tally = trio.run(Crowd(place, texts, seed, requests).run)
        total.add(tally)
        seen = f"{tally.answers['whole']} of {requests} whole, {tally.lives} lives, {tally.lost} lost, "
        seen += f"{tally.resets} resets, {tally.replays} replays, {time.monotonic() - began_s:.0f} s"
        yield Verdict(f"seed {seed}: nothing lost, doubled, leaked, mixed", seen, tuple(tally.objections))
    print(f"  answers: {counted(total.answers)}; turned away by a daemon on its way out: {total.turned_away}")
    print(f"  faults: {counted(total.faults)}")


def kill(place: Place, texts: dict[int, str], times: int) -> Iterator[Verdict]:
    """One verdict for all."""
    kills = trio.run(Kills(place, texts, times).run)
    slowest_s = max(kills.starts_s, default=0.0)
    seen = f"{len(kills.starts_s)} starts, the slowest {slowest_s:.1f} s, {kills.killed_early} killed while starting"
    yield Verdict(f"{times} times kill -9: starts again, nothing corrupt", seen, tuple(kills.objections))
    print(f"  answers: {counted(kills.answers)}; torn lines in the audit log: {kills.torn}")


def replay(place: Place) -> Iterator[Verdict]:
    """Whether eight streams survive three resets, and whether anything happened to them at all."""
    alone = trio.run(lambda: eight_streams(place, disturbed=False))
    hurt = trio.run(lambda: eight_streams(place, disturbed=True))
    differ = [
        f"{ours!r} is not {theirs!r}" for ours, theirs in zip(hurt.texts, alone.texts, strict=True) if ours != theirs
    ]
    differ += [] if hurt.resets == 3 and hurt.replays >= 8 else ["the faults did not come in the middle"]
    differ += [] if hurt.is_whole else ["a stream failed, or has no end"]
    seen = f"{sum(map(len, hurt.texts))} characters, {hurt.resets} resets, {hurt.replays} replays"
    yield Verdict("eight undamaged texts", seen, tuple(differ))


def counted(counts: Counter[str]) -> str:
    """Each with its count, the most frequent first."""
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tools/chaos", description=__doc__)
    parser.add_argument("part", nargs="?", choices=("crowd", "kill", "replay"), help="one part; crowd and kill")
    parser.add_argument("--short", action="store_true", help=f"one seed of {SHORT_REQUESTS}, {SHORT_KILLS} kills")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"of the crowd ({SEEDS})")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--requests", type=int, help=f"of each seed ({REQUESTS})")
    parser.add_argument("--times", type=int, help=f"kill -9 ({KILLS})")
    parser.add_argument("--package", default="smollm2", help="of the user's store, for replay (smollm2)")
    parser.add_argument("--alone", action="store_true", help="replay: no two streams in one batch")
    parser.add_argument("--json", type=Path, help="write the verdicts there")
    return parser.parse_args()


def verdicts(options: argparse.Namespace) -> Iterator[Verdict]:
    """Each as it comes."""
    if options.part == "replay":
        with bare_place() as place:
            place.configure(options.package, batches=[1] if options.alone else None, deadline_s=3600, job_s=300)
            log_to(place)
            yield from replay(place)
        return
    seeds = range(options.first, options.first + (1 if options.short else options.seeds))
    with tiny_place() as place:
        log_to(place)
        texts = trio.run(undisturbed, place)
        if options.part in (None, "crowd"):
            yield from crowd(place, texts, seeds, options.requests or (SHORT_REQUESTS if options.short else REQUESTS))
        if options.part in (None, "kill"):
            shutil.rmtree(place.state / "faults", ignore_errors=True)
            yield from kill(place, texts, options.times or (SHORT_KILLS if options.short else KILLS))


def log_to(place: Place) -> None:
    """What daemons in this process log belongs to their place, not to the verdicts."""
    file = (place.directory / "log").open("a")
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(file=file))
    logging.basicConfig(stream=file)


def main() -> int:
    """Print the verdicts as they come; 1 if anything did not hold."""
    options = parse()
    found: list[dict[str, Any]] = []
    for verdict in verdicts(options):
        found.append({**attrs.asdict(verdict), "passed": verdict.passed})
        print(f"{'✓' if verdict.passed else '✗'} {verdict.what:<52} {verdict.seen}", flush=True)
        for what in verdict.objections:
            print(f"    {what}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return 0 if all(verdict["passed"] for verdict in found) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
