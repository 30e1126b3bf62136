"""The store and the keys of this machine, where the configuration says they are."""

from __future__ import annotations

from calculet_trio.cli import paths
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
