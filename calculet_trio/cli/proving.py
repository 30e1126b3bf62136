"""Proving: what a configuration asks of a model, held against what has been shown, at every start.

A runtime that needs no board earns what is missing by itself, once: the cases run on the model that was just loaded,
and a record signed with this machine's key spares the next start all of it. For a board the start is refused, and
the command that would earn it is named.

Source: SPEC section 12; CLI.md "Keys and trust".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

import attrs

from calculet_trio.conformance.agreement import Agreement
from calculet_trio.conformance.evidence_store import EvidenceStore
from calculet_trio.conformance.result import Result
from calculet_trio.conformance.run_record import RunRecord
from calculet_trio.core.evidence import CAPABILITIES, Capability, Evidence, batch_capability
from calculet_trio.core.policy import Policy
from calculet_trio.core.profiles import ModelShape
from calculet_trio.errors import ConfigurationRefused, PackageError
from calculet_trio.ids import GenerationId
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.trust import LOCAL_KINDS
from calculet_trio.runtimes.port import DeviceInfo, Runtime
from calculet_trio.settings.service import RuntimeKind
from calculet_trio.shell.loading import ModelSource

if TYPE_CHECKING:
    from calculet_trio.conformance.case import Case
    from calculet_trio.conformance.rig import Rig

EARNING_S: Final = 300.0
"""Past this no further case is begun: the model is served with what has been shown by then."""


def agreement_of(package: Path) -> Agreement:
    """What may differ where kernels do, as the package's golden says.

    Raises:
        calculet_trio.errors.PackageError: it has no golden recording.
    """
    golden = Manifest.load(package).golden
    if golden is None:
        raise PackageError(f"{package} has no golden recording", hint="build or pull the package again")
    return Agreement(golden.logit_tolerance, golden.decisive_gap)


@attrs.frozen(kw_only=True)
class Wish:
    """Capabilities that a configuration asks for.

    Args:
        asked: named by it; without them the start is refused.
        welcome: used where they have been shown.
    """

    asked: tuple[Capability, ...]
    welcome: tuple[Capability, ...]

    @classmethod
    def of(cls, policy: Policy, shape: ModelShape, device: DeviceInfo) -> Wish:
        """What ``policy`` asks of a model of this shape on this device."""
        usable = [profile.compiled_batch for profile in shape.decode if profile.is_usable]
        named = policy.batch.profiles
        batches = [batch_capability(batch) for batch in usable if named is None or batch in named]
        two = policy.admission.max_inflight_jobs > 1 and not policy.executor.fixed_engine and len(device.engines) > 1
        asked = [CAPABILITIES["ping_pong"]] if two else []
        if policy.reuse.enabled:
            asked.append(CAPABILITIES["prefix_reuse"])
        if named is None and 1 in usable:
            return cls(asked=tuple(asked), welcome=tuple(batches))
        return cls(asked=(*asked, *batches), welcome=())


class StartingProof:
    """See `calculet_trio.shell.proof.Proof`.

    Args:
        wish: what is asked for.
        evidence: what has been shown until now.
        store: where records are kept.
        kind: of the runtime, for the command that would earn more.
        model: its alias.
        device: where it runs.
        rig: makes the rig on the configured model.
        say: told of each case, for people.
    """

    def __init__(
        self,
        wish: Wish,
        evidence: Evidence,
        store: EvidenceStore,
        *,
        kind: RuntimeKind,
        model: str,
        device: DeviceInfo,
        rig: Callable[[], Rig],
        say: Callable[[str], None],
    ) -> None:
        self._wish = wish
        self._evidence = evidence
        self._store = store
        self._kind = kind
        self._rig = rig
        self._say = say
        self._ends_s = monotonic() + EARNING_S
        self._record = RunRecord.begin(evidence.combination, device, model=model, short=True)
        self._results: list[Result] = []
        self._can_go_on = True

    def steps(self) -> Sequence[Callable[[], None]]:
        """A case each: those that would show what is missing; none for a board, which is shared."""
        if self._evidence.combination.board_kind not in LOCAL_KINDS:
            return ()
        wished = (*self._wish.asked, *self._wish.welcome)
        names = {name for each in wished if not self._evidence.standing(each).earned for name in each.conditions}
        if names:
            names -= self._store.found().failures(self._evidence.combination)  # once: a failure is on record, too
        return self._tries(names) if names else ()

    def evidence(self) -> Evidence:
        """The records, with what was shown just now.

        Raises:
            ConfigurationRefused: something that is asked for was not shown.
        """
        evidence = self._evidence
        if self._results:
            record = attrs.evolve(self._record, results=tuple(self._results))
            self._store.keep(record)
            evidence = self._store.found().evidence(evidence.combination)
        for capability in self._wish.asked:
            standing = evidence.standing(capability)
            if not standing.earned:
                raise ConfigurationRefused(
                    f"the configuration asks for {capability.name}, which is not earned here ({standing.level.value}): "
                    f"{standing.missing}",
                    hint=f"`calculet-trio conformance run --runtime {self._kind.value}` would earn it",
                )
        return evidence

    def _tries(self, names: Collection[str]) -> Sequence[Callable[[], None]]:
        from calculet_trio.conformance.suite import chosen  # the cases: most starts need none

        self._store.require_room()  # what is not on record would be shown again at each start
        self._say("showing, once, what this machine is to be trusted with:")
        return [lambda case=case: self._try(case) for case in chosen(names, short=True)]  # type: ignore[misc]

    def _try(self, case: Case) -> None:
        if not self._can_go_on or monotonic() > self._ends_s:
            return
        self._say(f"  {case.says}")
        result, self._can_go_on = case.tried(self._rig())
        self._results.append(result)


@attrs.frozen(kw_only=True)
class Prover:
    """Makes the proof of a start.

    Args:
        runtime: with the model.
        trial_runtime: where cases are tried, given the generation: the same, or one that stands for it.
        kind: of the runtime.
        policy: as configured.
        source: the model.
        agreement: what may differ where kernels do.
        store: where records are kept.
        say: told of progress, for people.
    """

    runtime: Runtime
    trial_runtime: Callable[[GenerationId], Runtime]
    kind: RuntimeKind
    policy: Policy
    source: ModelSource
    agreement: Agreement
    store: EvidenceStore
    say: Callable[[str], None]

    def prove(self, generation: GenerationId, device: DeviceInfo, evidence: Evidence | None) -> StartingProof:
        """See `calculet_trio.shell.model_manager.ModelSource`."""
        assert evidence is not None, "what can be proved can be on record"
        return StartingProof(
            Wish.of(self.policy, self.runtime.inspect(generation).shape, device),
            evidence,
            self.store,
            kind=self.kind,
            model=self.source.alias,
            device=device,
            rig=partial(self._rig, generation, device),
            say=self.say,
        )

    def _rig(self, generation: GenerationId, device: DeviceInfo) -> Rig:
        from calculet_trio.conformance.rig import Rig

        return Rig(
            self.trial_runtime(generation),
            generation,
            package=self.source.package,
            engines=device.engines,
            agreement=self.agreement,
            chunk_tokens=self.policy.queues.prefill_chunk_tokens,
        )
