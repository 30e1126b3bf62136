"""One seed, one run."""

from __future__ import annotations

import attrs

from calculet_trio.sim.determinism import Trace
from calculet_trio.sim.scenario import Scenario
from calculet_trio.sim.world import run_world
from tests.sim.small import small


def test_the_same_seed_is_the_same_run() -> None:
    steps = 0
    for seed in range(6):
        spec = Scenario(seed=seed, seconds=4.0, faults="harsh", varied=True).spec()
        first, second = (run_world(spec, hashed=True) for _ in range(2))
        assert first.trace_hash == second.trace_hash
        assert attrs.evolve(first, record=None) == attrs.evolve(second, record=None)
        assert first.record.replies == second.record.replies
        steps += first.steps
    assert steps > 500, "these worlds do nothing"


def test_another_seed_is_another_run() -> None:
    hashes = {run_world(small(seed=seed), hashed=True).trace_hash for seed in range(4)}
    assert len(hashes) == 4


def test_what_is_measured_does_not_depend_on_the_hash() -> None:
    hashed, plain = run_world(small(), hashed=True), run_world(small())
    assert plain.trace_hash is None
    assert (plain.steps, plain.ended_s, plain.clients) == (hashed.steps, hashed.ended_s, hashed.clients)


def test_a_trace_tells_moments_and_order_apart() -> None:
    def digest(*notes: tuple[float, str]) -> str:
        trace = Trace()
        for moment_s, what in notes:
            trace.note(moment_s, what)
        return trace.digest()

    lines = ((0.0, "a"), (1.0, "b"))
    assert digest(*lines) == digest(*lines)
    assert len({digest(*lines), digest(*lines[::-1]), digest((0.0, "a"), (1.0 + 1e-12, "b")), digest(lines[0])}) == 4
