"""Models that are packages of the store: at the start, by an operator's load, and by a rollback.

Source: SPEC section 8 (S §11: a trusted package path; retained for rollback).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs

from calculet_trio.cli.model_text import open_text
from calculet_trio.cli.served_package import ServedPackage
from calculet_trio.cli.trusted_store import recorded, store_of, trust_of
from calculet_trio.core.policy import Policy
from calculet_trio.core.profiles import ModelShape
from calculet_trio.errors import ConfigurationRefused, PackageError, Unavailable
from calculet_trio.packages.capacity import CapacityPlan
from calculet_trio.packages.digests import sha256_of
from calculet_trio.packages.manifest import MANIFEST_FILE, Manifest
from calculet_trio.packages.manifest_parts import CoResidency
from calculet_trio.packages.store import Store
from calculet_trio.settings.configuration import Configuration, Served
from calculet_trio.settings.profiles import check_profiles
from calculet_trio.shell.loading import ModelSource


def packaged(configuration: Configuration, served: Served, policy: Policy) -> ModelSource:
    """The model that the configuration names.

    Raises:
        calculet_trio.errors.PackageError: there is no such package.
        calculet_trio.errors.ConfigurationRefused: it does not fit its policy.
    """
    store = store_of(configuration)
    named = served.model.package
    if named is None:
        package = store.only()
    else:
        package = store.resolve(str(configuration.path(named)) if "/" in named else named)
    manifest = Manifest.load(package)
    alias = fitting(served, policy, manifest.shape(), package_name=manifest.name)
    return _source(configuration, store, alias, package, manifest)


def other_of_two(configuration: Configuration, served: Served) -> str:
    """The name of the store's other package, where it holds two.

    Raises:
        calculet_trio.errors.ConfigurationRefused: it does not.
    """
    store = store_of(configuration)
    others = [name for name in store.names() if name != served.model.package]
    if len(others) != 1:
        raise ConfigurationRefused(
            f"the store {store.root} holds {len(others)} packages beside {served.model.package or 'the first'}, "
            "and none was chosen to take turns with it",
            hint="choose both with --package and --second; calculet-trio package list",
        )
    return others[0]


def fitting(served: Served, policy: Policy, shape: ModelShape, *, package_name: str) -> str:
    """The alias of a package that fits its policy.

    Raises:
        calculet_trio.errors.ConfigurationRefused: the policy is another model's, or asks for what was not compiled.
    """
    alias = served.model.alias or package_name
    meant = served.scheduler.model_alias
    if meant not in (None, alias):
        raise ConfigurationRefused(
            f"{served.document.origin(('model_alias',))}: model_alias is {meant}, but this is the policy of {alias}",
            hint="name the right file in models[].scheduler, or give the model that alias",
        )
    check_profiles(policy, shape, alias=alias)
    return alias


class PackageFinder:
    """Finds what operators ask for, in the store alone: no path of theirs is followed.

    Args:
        configuration: where the store is, and which package each alias began with.
        policy_of: what the profiles of an alias's package must satisfy.
    """

    def __init__(self, configuration: Configuration, policy_of: Callable[[str], Policy]) -> None:
        self._configuration = configuration
        self._policy_of = policy_of
        self._store = store_of(configuration)

    def find(self, alias: str, package: str | None) -> ModelSource:
        """See `calculet_trio.shell.model_manager.FindModel`. Blocks.

        Raises:
            calculet_trio.errors.PackageError: there is no such package, or nothing to go back to.
            calculet_trio.errors.ConfigurationRefused: it lacks a profile that is asked for.
        """
        if package is None:
            return self._last_good(alias)
        if "/" in package or package.startswith("."):
            raise PackageError(
                f"{package!r} is a path; a running daemon loads packages of its store",
                hint="calculet-trio package import",
            )
        directory = self._store.resolve(package)
        manifest = Manifest.load(directory)
        check_profiles(self._policy_of(alias), manifest.shape(), alias=alias)
        return _source(self._configuration, self._store, alias, directory, manifest)

    def _last_good(self, alias: str) -> ModelSource:
        name = self._name_of(alias)
        directory = self._store.last_good(name)
        manifest = Manifest.load(directory)
        source = _source(self._configuration, self._store, alias, directory, manifest)
        return attrs.evolve(source, served=partial(_rolled_back, self._store, name, source.served))

    def _name_of(self, alias: str) -> str:
        """The store's name for what is served under the alias: what the configuration names there, or the alias."""
        for each in self._configuration.served:
            named = each.model.package
            if each.model.alias in (None, alias) and (named is None or "/" not in named):
                return named or Manifest.load(self._store.only()).name
        return alias


def _rolled_back(store: Store, name: str, served: Callable[[], None] | None) -> None:
    try:
        store.roll_back(name)
    except (PackageError, Unavailable) as error:
        raise PackageError(f"the next start would serve what was given up, as {name}: {error.message}") from error
    if served is not None:
        served()


def _source(configuration: Configuration, store: Store, alias: str, package: Path, manifest: Manifest) -> ModelSource:
    stored = ServedPackage(store, package, trust_of(configuration))
    digest = sha256_of(package / MANIFEST_FILE)
    return ModelSource(
        alias=alias,
        package=package,
        verify=stored.verify,
        plan=CapacityPlan.of(manifest),
        fits=stored.require_room,
        unchanged=stored.require_unchanged,
        served=stored.record_served,
        released=stored.release,
        open_text=partial(open_text, package, manifest),
        shape=manifest.shape(),
        name=manifest.name,
        digest=digest,
        previous=_digest_before(store, manifest.name, digest),
        co_resident=manifest.co_residency is CoResidency.SHARED,
        meta={"package_version": manifest.package_version, "architecture": manifest.architecture.family},
        evidence=partial(recorded, configuration, package / MANIFEST_FILE),
    )


def _digest_before(store: Store, name: str, digest: str) -> str | None:
    """What a rollback goes back to once the package of that digest serves."""
    try:
        return store.last_good(name, once_served=digest).name
    except PackageError:
        return None
