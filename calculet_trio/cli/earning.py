"""Earning: what a package that was just built may be trusted with on this machine, so that its first start is quick.

The same cases as at a start (`calculet_trio.cli.proving`), once, on the CPU runtime that will serve the package. A
package that was built elsewhere, or on a machine that could keep no record, is tried when it is first served.

Source: SPEC section 12; CLI.md "Keys and trust".
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from calculet_trio.cli.proving import StartingProof, Wish, agreement_of
from calculet_trio.cli.trusted_store import evidence_store, recorded
from calculet_trio.conformance.rig import Rig
from calculet_trio.core.evidence import Evidence
from calculet_trio.errors import Unavailable
from calculet_trio.ids import GenerationId
from calculet_trio.packages.build_options import Progress
from calculet_trio.packages.manifest import MANIFEST_FILE, Manifest
from calculet_trio.runtimes.port import DeviceInfo, Runtime
from calculet_trio.settings.configuration import Configuration
from calculet_trio.settings.service import RuntimeKind

GENERATION: Final = GenerationId(1)
STEP: Final = "build: what it may do here"


def earn(package: Path, runtime: Runtime, *, configuration: Configuration, report: Callable[[Progress], None]) -> None:
    """Try what a start under ``configuration`` would try, and keep the record; what fails is on record, too.

    Args:
        package: with golden; its manifest is final.
        runtime: that will serve it; not opened yet.
        configuration: whose policy says what is wished for, and where records are kept.
        report: told of each case.
    """
    device = runtime.open()
    try:
        runtime.configure(GENERATION, package)
        proof, wish = _proof(package, configuration, runtime, device)
        steps = proof.steps()
        for done, step in enumerate(steps):
            report(Progress(STEP, done, len(steps)))
            step()
        report(Progress(STEP, len(steps), len(steps)))
        _say_what_is_missing(proof.evidence(), wish)
    except Unavailable as error:
        click.echo(f"it is not on record what the package may do here; its first start will show it: {error}", err=True)
    finally:
        runtime.close()


def _proof(
    package: Path, configuration: Configuration, runtime: Runtime, device: DeviceInfo
) -> tuple[StartingProof, Wish]:
    policy = configuration.policy(configuration.served[0])
    wished = Wish.of(policy, runtime.inspect(GENERATION).shape, device)
    wish = Wish(asked=(), welcome=(*wished.asked, *wished.welcome))  # a build is refused nothing for want of it
    agreement = agreement_of(package)

    def rig() -> Rig:
        return Rig(
            runtime,
            GENERATION,
            package=package,
            engines=device.engines,
            agreement=agreement,
            chunk_tokens=policy.queues.prefill_chunk_tokens,
        )

    proof = StartingProof(
        wish,
        recorded(configuration, package / MANIFEST_FILE, device),
        evidence_store(configuration),
        kind=RuntimeKind.HOST,
        model=Manifest.load(package).name,
        device=device,
        rig=rig,
        say=lambda _sentence: None,  # its caller shows how far it is
    )
    return proof, wish


def _say_what_is_missing(evidence: Evidence, wish: Wish) -> None:
    missing = [each.name for each in wish.welcome if not evidence.standing(each).earned]
    if missing:
        click.echo(
            f"not shown here, and not used: {', '.join(missing)}; see `calculet-trio conformance evidence`", err=True
        )
