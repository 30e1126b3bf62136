"""Recording and replaying golden on the CPU runtime's models; what a recording is, `packages.golden` says.

A package that was just built has no golden: ``record_golden(directory)`` runs it, writes the recording and
enters it in the manifest. A replay goes through every profile the package offers, several sequences in one
batch, so that a lane that reads another's KV is found before anybody is served. The smallest profile repeats
the whole recording; the others its first steps, one after the other, since every start waits for this.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from calculet_trio.packages import golden
from calculet_trio.packages.golden import Deviation, GoldenSequence
from calculet_trio.packages.manifest import Manifest
from calculet_trio.runtimes.host_model import HostModel, LaneStep
from calculet_trio.runtimes.port import GoldenResult

STEPS_OF_LARGER_PROFILES: Final = 2
"""Two: the second reads the KV that the first has written."""


def record_golden(directory: Path) -> Manifest:
    """Run the package's model alone on each of `golden.prompts`, and record what it says.

    Returns:
        The manifest with its golden, as it now stands in ``directory``.

    Raises:
        calculet_trio.errors.PackageError: the package cannot be run here.
    """
    manifest = Manifest.load(directory)
    model = HostModel(directory, manifest, threads=len(os.sched_getaffinity(0)))
    sequences = []
    for prompt in golden.prompts(manifest):
        steps = [golden.likeliest(model.prefill(0, prompt, position=0)[0])]
        for position in range(len(prompt), len(prompt) + golden.DECODE_STEPS):
            smallest = model.manifest.shape().decode[0]
            row = model.decode(0, smallest.compiled_batch, [LaneStep(0, steps[-1][0].token, position)])[0]
            steps.append(golden.likeliest(row))
        sequences.append(GoldenSequence(prompt, tuple(steps)))
    return golden.save(directory, manifest, tuple(sequences))


def replay(model: HostModel) -> GoldenResult:
    """Run the recording through prefill and every decode profile, and compare.

    No lane may hold a sequence: lanes from 0 on are overwritten.

    Raises:
        calculet_trio.errors.PackageError: the package has no recording, or a damaged one.
    """
    sequences = golden.load(model.directory, model.manifest)[: model.manifest.kv.lanes]
    recorded = model.manifest.golden
    assert recorded is not None, "golden.load refuses a package without"
    worst = Deviation(0.0, decided_otherwise=False)
    changed = 0
    for deviation in _deviations(model, sequences, recorded.decisive_gap):
        changed += deviation.decided_otherwise
        worst = max(worst, deviation, key=lambda one: one.logit)
    detail = (
        f"largest logit difference {worst.logit:.4g} (allowed {recorded.logit_tolerance:g}), "
        f"{changed} clear decisions changed (allowed 0)"
    )
    return GoldenResult(passed=worst.logit <= recorded.logit_tolerance and not changed, detail=detail)


def _deviations(model: HostModel, sequences: tuple[GoldenSequence, ...], gap: float) -> Iterator[Deviation]:
    for lane, sequence in enumerate(sequences):
        row = model.prefill(lane, sequence.prompt, position=0)[0]
        yield golden.deviation(sequence.steps[0], row, decisive_gap=gap)
    smallest, *_ = profiles = model.manifest.shape().decode
    for profile in profiles:
        active = sequences[: profile.compiled_batch]
        decoded = max(len(sequence.steps) for sequence in active) - 1
        if profile is not smallest:
            decoded = min(decoded, STEPS_OF_LARGER_PROFILES)
        for done in range(1, decoded + 1):
            lanes = [index for index, sequence in enumerate(active) if done < len(sequence.steps)]
            fed = [
                LaneStep(index, active[index].steps[done - 1][0].token, len(active[index].prompt) + done - 1)
                for index in lanes
            ]
            rows = model.decode(0, profile.compiled_batch, fed)
            for index in lanes:
                yield golden.deviation(active[index].steps[done], rows[index], decisive_gap=gap)
