"""The store, the evidence and the keys of this machine, where the configuration says they are."""

from __future__ import annotations

from functools import partial

from calculet_trio.cli import paths
from calculet_trio.cli.state_files import state_directory
from calculet_trio.conformance.evidence_store import EvidenceStore
from calculet_trio.packages.signing import SigningKey
from calculet_trio.packages.store import Store
from calculet_trio.packages.trust import Trust
from calculet_trio.settings.configuration import Configuration, load


def own_configuration() -> Configuration:
    """The service's configuration; the defaults where there is none.

    Raises:
        calculet_trio.errors.ConfigurationRefused: it is not valid.
    """
    return load(paths.configuration() if paths.configuration().exists() else None)


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
