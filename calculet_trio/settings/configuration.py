"""A whole configuration: the service's file, a scheduler's file for each alias, and what flags put over them.

Source: SPEC section 10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs

from calculet_trio.core.policy import Policy
from calculet_trio.settings import scheduler as scheduler_file
from calculet_trio.settings import service as service_file
from calculet_trio.settings.allowed import KeyPath
from calculet_trio.settings.document import Document, read_document
from calculet_trio.settings.faults import Fault, Origin, described, refuse
from calculet_trio.settings.key_ring import KeyRing
from calculet_trio.settings.keys import Key, leaves_of
from calculet_trio.settings.scheduler import SchedulerSettings
from calculet_trio.settings.service import ModelSettings, ServiceSettings
from calculet_trio.settings.structuring import structured

KINDS: Final[dict[str, type[SchedulerSettings] | type[ServiceSettings]]] = {
    service_file.SCHEMA: ServiceSettings,
    scheduler_file.SCHEMA: SchedulerSettings,
}

MODEL_FLAG: Final = "--model"


@attrs.frozen
class Override:
    """A value from the command line.

    Args:
        schema: of the kind of file it is put over: every scheduler's, or the service's.
        path: the key.
        value: as YAML would have it.
        flag: the option, as it was written.
    """

    schema: str
    path: tuple[str, ...]
    value: object
    flag: str


@attrs.frozen
class EffectiveValue:
    """One key as it holds: ``value`` of ``path``, which ``origin`` gave."""

    path: KeyPath
    key: Key
    value: Any
    origin: Origin


@attrs.frozen
class Served:
    """An alias and its policy.

    Args:
        index: its place in ``models``.
        model: its entry there.
        scheduler: its policy.
        document: what the policy came from.
    """

    index: int
    model: ModelSettings
    scheduler: SchedulerSettings
    document: Document


@attrs.frozen
class Configuration:
    """Everything an operator set, checked as a whole.

    Args:
        service: the daemon's own settings.
        served: the models, in order, or the one that was chosen; without any in the file, one that names nothing.
        document: what ``service`` came from.
        read_again: the same from the same files as they are now; raises as `load` does.
    """

    service: ServiceSettings
    served: tuple[Served, ...]
    document: Document
    read_again: Callable[[], Configuration] = attrs.field(eq=False, repr=False)

    def policy(self, served: Served) -> Policy:
        """The core's policy for that model, tenants included."""
        return served.scheduler.policy({tenant.name: tenant.policy for tenant in self.service.tenants})

    def key_ring(self) -> KeyRing:
        """The keys of all tenants."""
        return KeyRing(self.service.tenants)

    def path(self, text: str) -> Path:
        """A path of the service's file: ``~`` is the home, a relative one begins at the file's directory."""
        return _place(text, self.document)

    def effective(self) -> tuple[tuple[str, tuple[EffectiveValue, ...]], ...]:
        """Every key of every part, with its title: the service first, then each model's scheduler."""
        parts = [(service_file.SCHEMA, _effective(self.service, self.document))]
        for each in self.served:
            title = f"{scheduler_file.SCHEMA} of {each.model.alias or f'models[{each.index}]'}"
            parts.append((title, _effective(each.scheduler, each.document)))
        return tuple(parts)


def load(path: Path | None, overrides: Sequence[Override] = (), *, model: str | None = None) -> Configuration:
    """The configuration at ``path`` with ``overrides`` over it.

    Args:
        path: a service's file; None for the defaults.
        overrides: from the command line.
        model: the alias to serve of those in the file, or a package that the file need not name; None for all.

    Raises:
        calculet_trio.errors.ConfigurationRefused: with every fault of every file.
    """
    configuration, faults = examine(path, overrides, model=model)
    if configuration is None:
        refuse(faults)
    return configuration


def examine(
    path: Path | None, overrides: Sequence[Override] = (), *, model: str | None = None
) -> tuple[Configuration | None, tuple[Fault, ...]]:
    """As `load`, with the faults as values: either a configuration, or at least one fault."""
    document, faults = _document(path, service_file.SCHEMA)
    return _examined(document, faults, overrides, model=model, read_again=partial(load, path, overrides, model=model))


def _examined(
    document: Document,
    faults: tuple[Fault, ...],
    overrides: Sequence[Override] = (),
    *,
    model: str | None = None,
    read_again: Callable[[], Configuration],
) -> tuple[Configuration | None, tuple[Fault, ...]]:
    """`examine`, of a service's file that has been read: a pipe says what it says once."""
    if _unread(document, faults):
        return None, faults
    document = _under(document, overrides, service_file.SCHEMA)
    if model is not None and not _names(document, model):
        model = str(Path(model).expanduser().absolute()) if "/" in model else model
        document = document.overlaid(("models",), [{"package": model}], MODEL_FLAG)
    service, more = structured(document, ServiceSettings)
    found = [*faults, *more]
    if service is None:
        return None, tuple(found)
    served = []
    for index, entry in enumerate(service.models or (ModelSettings(),)):
        if model is None or model in (entry.alias, entry.package):
            each, faults = _served(entry, index, document, overrides)
            found += faults
            served += [each] if each else []
    return (None, tuple(found)) if found else (Configuration(service, tuple(served), document, read_again), ())


def _names(document: Document, model: str) -> bool:
    """Whether an entry of ``models`` is called so, or serves that package."""
    models = document.values.get("models")
    entries = models if isinstance(models, list) else []
    return any(isinstance(each, dict) and model in (each.get("alias"), each.get("package")) for each in entries)


def check_file(path: Path) -> tuple[Fault, ...]:
    """Everything that is wrong with one file of either kind; with a service's, also with the files it names."""
    document, faults = read_document(path)
    if not document.values:
        return faults or (_schema_fault(document),)
    kind = KINDS.get(str(document.values.get("schema")))
    if kind is None:
        return (*faults, _schema_fault(document))
    if kind is ServiceSettings:
        return _examined(document, faults, read_again=partial(load, path))[1]
    return (*faults, *structured(document, SchedulerSettings)[1])


def _schema_fault(document: Document) -> Fault:
    value = document.values.get("schema")
    problem = described(value) if "schema" in document.values else "is missing"
    return Fault(document.nearest_origin(("schema",)), ("schema",), problem, " or ".join(KINDS))


def _document(path: Path | None, schema: str) -> tuple[Document, tuple[Fault, ...]]:
    """The file; without one, an empty one of that schema."""
    return (Document("default", Path.cwd(), {"schema": schema}), ()) if path is None else read_document(path)


def _under(document: Document, overrides: Sequence[Override], schema: str) -> Document:
    """The document with what flags put over it."""
    for override in overrides:
        if override.schema == schema:
            document = document.overlaid(override.path, override.value, override.flag)
    return document


def _unread(document: Document, faults: Sequence[Fault]) -> bool:
    return bool(faults) and not document.values


def _served(
    model: ModelSettings, index: int, document: Document, overrides: Sequence[Override]
) -> tuple[Served | None, tuple[Fault, ...]]:
    path = None if model.scheduler is None else _place(model.scheduler, document)
    own, faults = _document(path, scheduler_file.SCHEMA)
    if _unread(own, faults):
        place: KeyPath = ("models", index, "scheduler")
        named = Fault(document.nearest_origin(place), place, f"names a file that cannot be used: {path}")
        return None, (named, *faults)
    own = _under(own, overrides, scheduler_file.SCHEMA)
    scheduler, more = structured(own, SchedulerSettings)
    if scheduler is None:
        return None, (*faults, *more)
    return Served(index, model, scheduler, own), (*faults, *more, *_mix_up(scheduler, own, model))


def _mix_up(scheduler: SchedulerSettings, own: Document, model: ModelSettings) -> Iterator[Fault]:
    if scheduler.model_alias is not None and model.alias is not None and scheduler.model_alias != model.alias:
        yield Fault(
            own.nearest_origin(("model_alias",)),
            ("model_alias",),
            f"is {scheduler.model_alias}, but the service names this file for {model.alias}",
        )


def _place(text: str, document: Document) -> Path:
    return document.directory / Path(text).expanduser()


def _effective(settings: ServiceSettings | SchedulerSettings, document: Document) -> tuple[EffectiveValue, ...]:
    return tuple(EffectiveValue(path, each, value, document.origin(path)) for path, each, value in leaves_of(settings))
