"""How fast the simulator is: the world of `calculet-trio simulate --seed 1 --faults none --profiles 1 --load 1.2`.

Called by tools/bench_sim. The processor's seconds count, not the clock's, since others may share the machine; and a
yardstick (`tools/yardstick.py`) taken all along says how fast the machine was meanwhile.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median

from yardstick import yardstick_s

from calculet_trio.cli.simulate import quieten
from calculet_trio.sim.scenario import Scenario
from calculet_trio.sim.world import run_world

PACKAGE = str(Path(__file__).resolve().parent.parent / "calculet_trio")
ROOMS = ("core", "shell", "runtimes", "text", "sim/checkers", "sim")
"""Of the package; in this order, since the first that fits counts."""


def main() -> int:
    """Run the world and print how long it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="virtual time that clients come")
    parser.add_argument("--profile", action="store_true", help="where the time goes, by room")
    options = parser.parse_args()
    quieten()
    spec = Scenario(seed=1, seconds=options.seconds, profiles=(1,), load=1.2).spec()
    yards_s: list[float] = []
    profile = cProfile.Profile(time.process_time) if options.profile else None
    began_s = time.process_time()
    if profile is not None:
        profile.enable()
    outcome = run_world(spec, on_progress=lambda _moment_s: yards_s.append(yardstick_s()))
    if profile is not None:
        profile.disable()
    yard_s = median(yards_s)
    took_s = time.process_time() - began_s - yard_s * len(yards_s)
    jobs = outcome.record.jobs
    print(f"{outcome.ended_s:.0f} virtual s, {jobs} jobs, {took_s:.2f} s of processor")
    if profile is None:
        print(f"{outcome.ended_s / took_s:.1f} x real time, {took_s / jobs * 1e6:.0f} µs a job")
        print(f"yardstick {yard_s * 1e6:.0f} µs; a job is {took_s / jobs / yard_s:.2f} yardsticks")
    else:
        show(profile)
    return 0


def show(profile: cProfile.Profile) -> None:
    """Own time of all functions by room; a built-in's is its caller's."""
    own_s: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for (path, _, _), (_, count, spent_s, _, callers) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if path != "~":
            own_s[room_of(path)] += spent_s
            calls[room_of(path)] += count
            continue
        for (caller, _, _), (_, _, part_s, _) in callers.items():
            own_s[room_of(caller)] += part_s
    whole_s = sum(own_s.values())
    for room, spent_s in own_s.most_common():
        print(f"{room:<16}{spent_s / whole_s:7.1%}   {calls[room]:>9} calls")


def room_of(path: str) -> str:
    """The room, or the library, that a file belongs to."""
    if "yardstick" in path:
        return "the yardstick"
    if path.startswith(PACKAGE):
        inner = path[len(PACKAGE) + 1 :]
        return next((room for room in ROOMS if inner.startswith(room)), "the rest")
    if "attrs generated" in path:
        return "attrs objects"
    return next((name for name in ("trio", "numpy") if f"/{name}/" in path), "standard library")


if __name__ == "__main__":
    sys.exit(main())
