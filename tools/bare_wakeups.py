"""How long this machine takes to wake a thread: a decode step's chain without the daemon. For `tools/bench_overhead`.

An engine's thread waits for its time to pass, runs again, and goes on with the next step: by the daemon's own means and
at its pace. The trio thread, which is told of every step, has no part in it. What a step's stages take beyond this is
the daemon's; on a virtual machine that has gone to sleep between two steps this may be much of it.
"""

from __future__ import annotations

from itertools import pairwise

import trio

from calculet_trio.runtimes.pace import RealPace
from calculet_trio.shell.blocking import ThreadRunner


def bare_stages_ms(step_s: float, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each stage of a decode step with nothing in it, over so many steps of ``step_s``."""
    return trio.run(_chain, step_s, rounds)


async def _chain(step_s: float, rounds: int) -> dict[str, list[float]]:
    line, pace = ThreadRunner().line(), RealPace()
    moments: list[tuple[float, float, float, float]] = []

    def step() -> tuple[float, float, float]:
        begun_s = pace.now()
        pace.pass_until(begun_s + step_s)
        return begun_s, begun_s + step_s, pace.now()

    def hear(answer: tuple[float, float, float]) -> None:
        moments.append((*answer, pace.now()))
        if len(moments) <= rounds:
            line.put(step)
        else:
            line.close()

    line.put(step)
    await line.run(hear)
    chains = [(*before[1:], after[0]) for before, after in pairwise(moments)]
    stages = zip(*([(b - a) * 1e3 for a, b in pairwise(chain)] for chain in chains), strict=True)
    return dict(zip(("woken", "told", "decided"), map(list, stages), strict=True))


if __name__ == "__main__":
    from statistics import median

    for name, took_ms in bare_stages_ms(0.017, 300).items():
        print(f"{name} {median(took_ms):.3f} ms")
