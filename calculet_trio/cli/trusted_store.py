"""The store, the evidence and the keys of this machine, where the configuration says they are."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import structlog

from calculet_trio.cli import paths
from calculet_trio.cli.state_files import state_directory
from calculet_trio.conformance.evidence_store import EvidenceStore
from calculet_trio.conformance.run_record import combination_of
from calculet_trio.core.evidence import Evidence
from calculet_trio.packages.digests import sha256_of
from calculet_trio.packages.signing import SigningKey
from calculet_trio.packages.store import Store
from calculet_trio.packages.trust import Trust
from calculet_trio.runtimes.port import DeviceInfo
from calculet_trio.settings.configuration import Configuration, load

_log = structlog.get_logger(__name__)


def own_configuration() -> Configuration:
    """The service's configuration; the defaults where there is none.

    Raises:
        calculet_trio.errors.ConfigurationRefused: it is not valid.
    """
    return load(paths.configuration_there())


def store_of(configuration: Configuration) -> Store:
    """Where its packages are."""
    root = configuration.service.store
    return Store(paths.package_store() if root is None else configuration.path(root))


def trust_of(configuration: Configuration) -> Trust:
    """Whose signatures count under it.

    Raises:
        calculet_trio.errors.ConfigurationRefused: a key cannot be read.
    """
    return Trust.load(paths.keys(), map(configuration.path, configuration.service.trusted_keys))


def evidence_store(configuration: Configuration) -> EvidenceStore:
    """Where the records of conformance runs are kept."""
    return EvidenceStore(
        state_directory(configuration) / "evidence",
        trust=partial(trust_of, configuration),
        key=partial(SigningKey.local, paths.keys()),
    )


def recorded(configuration: Configuration, identity: Path, device: DeviceInfo) -> Evidence:
    """The evidence that counts for the package which the file ``identity`` stands for."""
    found = evidence_store(configuration).found()
    for sentence in found.unreadable:
        _log.warning("evidence_unreadable", error=sentence)
    return found.evidence(combination_of(sha256_of(identity), device))
