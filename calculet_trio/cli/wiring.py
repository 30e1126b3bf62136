"""Wiring: the one place that connects a runtime to package, text, shell and surface.

Source: ARCHITECTURE.md "Layout".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, Final, TypeVar

import attrs
import structlog
import trio

from calculet_trio.api.listening import bound_socket
from calculet_trio.api.settings import ApiSettings, ConnectionLimits, RequestLimits
from calculet_trio.cli.packaged_models import PackageFinder
from calculet_trio.cli.proving import Prover, agreement_of
from calculet_trio.cli.residency import longest_shape, require_declared, require_strategy
from calculet_trio.cli.runtime_choice import MODELS, RUNTIMES, on_emulated_board
from calculet_trio.cli.state_files import history_file
from calculet_trio.cli.surface_code import imported
from calculet_trio.cli.timeouts import checked_order, job_timeout
from calculet_trio.cli.trusted_store import evidence_store
from calculet_trio.cli.wiring_admin import admin_server, dump_sources
from calculet_trio.conformance.agreement import EXACT
from calculet_trio.core.policy import Policy, TenantPolicy
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.ids import GenerationId
from calculet_trio.observe.metrics import ServiceMetrics
from calculet_trio.runtimes.port import Runtime
from calculet_trio.settings.configuration import Configuration, Served
from calculet_trio.settings.key_ring import KeyRing
from calculet_trio.settings.service import RuntimeKind, ServiceSettings
from calculet_trio.shell.daemon import Daemon, HttpServer
from calculet_trio.shell.fault_history import FaultHistory
from calculet_trio.shell.loading import ModelSource
from calculet_trio.shell.model_manager import FindModel
from calculet_trio.shell.service import Service

T = TypeVar("T")


_log = structlog.get_logger(__name__)


def wire(
    configuration: Configuration,
    *,
    on_ready: Callable[[int], None],
    say: Callable[[str], None] = lambda _sentence: None,
) -> Daemon:
    """Everything a daemon needs, chosen and connected; nothing is opened or loaded yet.

    Args:
        configuration: what is to be served, and how.
        on_ready: called once, with the bound port, when a chat request would be answered.
        say: told what a load is doing that takes long.

    Raises:
        calculet_trio.errors.PackageError: no such package or script, or one that must not be served.
        calculet_trio.errors.ConfigurationRefused: what is asked for and what there is do not fit.
    """
    service = configuration.service
    served = _first(configuration)
    policy = configuration.policy(served)
    make = RUNTIMES.get(service.device.runtime)
    if make is None:
        raise ConfigurationRefused(
            f"the runtime {service.device.runtime.value} is not part of this version; "
            f"it has {', '.join(kind.value for kind in RUNTIMES)}",
            hint="set device.runtime (--runtime) to one of these",
        )
    require_strategy(configuration)
    runtime, source = make(configuration, served, policy)
    beside = tuple(
        MODELS[service.device.runtime](configuration, each, configuration.policy(each))
        for each in configuration.served[1:]
    )
    require_declared(service.residency.strategy, (source, *beside))
    order = checked_order(service, longest_shape((source, *beside)))
    policies = {
        each.alias: configuration.policy(one) for one, each in zip(configuration.served, (source, *beside), strict=True)
    }
    if service.device.runtime in _PROVABLE:
        source, *others = (
            attrs.evolve(each, prove=_prover(configuration, policies[each.alias], runtime, each, say).prove)
            for each in (source, *beside)
        )
        beside = tuple(others)
    metrics = ServiceMetrics()
    tenants = _Tenants(configuration)
    return Daemon(
        runtime=runtime,
        source=source,
        beside=beside,
        residency=service.residency.policy,
        policies=policies,
        find=_finder(configuration, lambda alias: policies.get(alias, policy), runtime, say),
        policy=policy,
        metrics=metrics,
        serve_admin=admin_server(configuration),
        dump=dump_sources(configuration, metrics),
        serve_http=_surface(service, metrics, tenants, drain_s=order.drain_s),
        history=FaultHistory(history_file(configuration, source.alias)),
        reload_tenants=tenants.reload,
        on_ready=on_ready,
        drain_s=service.timeouts.streams_s,
        job_timeout=job_timeout(service.timeouts),
        watchdog_s=order.watchdog_s,
        quiet_s=service.timeouts.quiet_s,
        watches_device=True,
        backlog_bytes_max=service.limits.stream_backlog_bytes,
    )


def _first(configuration: Configuration) -> Served:
    """The model that is loaded first, and whose policy is the device's."""
    return configuration.served[0]


def api_settings(service: ServiceSettings, *, drain_s: float) -> ApiSettings:
    """The surface's bounds, from the configuration's keys of the same names, and the drain time as it holds."""
    sources = (service.limits, service.timeouts)
    return ApiSettings(
        keep_alive_s=service.timeouts.keep_alive_s,
        cors_origins=service.listen.cors_origins,
        request=_named_alike(RequestLimits, *sources),
        connection=_named_alike(ConnectionLimits, *sources, graceful_s=drain_s),
    )


def _named_alike(kind: type[T], *sources: object, **known: Any) -> T:
    """An attrs object whose fields are the sources' attributes of the same names."""
    for field in attrs.fields(kind):  # type: ignore[arg-type]
        for source in sources:
            if hasattr(source, field.name):
                known.setdefault(field.name, getattr(source, field.name))
    return kind(**known)


class _Tenants:
    """Keys and policies of the tenants, as the configuration file has them now.

    Args:
        configuration: as it was at the start; where it came from is read again.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._key_ring = configuration.key_ring()

    def keys(self) -> KeyRing:
        """The keys of now."""
        return self._key_ring

    def reload(self) -> Mapping[str, TenantPolicy]:
        """Read the file again: keys change at once, the policies are handed on. All or nothing.

        Raises:
            calculet_trio.errors.ConfigurationRefused: it is not valid now; what was before stays.
        """
        fresh = self._configuration.read_again()
        policies = fresh.policy(_first(fresh)).tenants
        self._key_ring = fresh.key_ring()
        return policies


def _surface(configured: ServiceSettings, metrics: ServiceMetrics, tenants: _Tenants, *, drain_s: float) -> HttpServer:
    settings = api_settings(configured, drain_s=drain_s)

    async def serve(service: Service, stop: trio.Event, *, task_status: trio.TaskStatus[int]) -> None:
        with bound_socket(configured.listen.host, configured.listen.port, settings.connection) as listening:
            task_status.started(listening.getsockname()[1])
            create_app, serve_http = await imported(_surface_code)
            app = create_app(service, settings, metrics=metrics.expose, keys=tenants.keys)
            await serve_http(app, listening, settings=settings, shutdown=stop)

    return serve


def _surface_code() -> tuple[Callable[..., Any], Callable[..., Awaitable[None]]]:
    from calculet_trio.api.app import create_app
    from calculet_trio.api.server import serve

    return create_app, serve


# ---- what has been shown ------------------------------------------------------------------------------


_FROM_STORE: Final = frozenset({RuntimeKind.HOST, RuntimeKind.CALRT})
"""Whose models are packages that may be exchanged while the daemon runs."""


def _finder(
    configuration: Configuration, policy_of: Callable[[str], Policy], runtime: Runtime, say: Callable[[str], None]
) -> FindModel | None:
    if configuration.service.device.runtime not in _FROM_STORE:
        return None
    finder = PackageFinder(configuration, policy_of)

    def find(alias: str, package: str | None) -> ModelSource:
        source = finder.find(alias, package)
        return attrs.evolve(source, prove=_prover(configuration, policy_of(alias), runtime, source, say).prove)

    return find


_PROVABLE: Final = frozenset({RuntimeKind.HOST, RuntimeKind.EMULATED, RuntimeKind.CALRT})


def _prover(
    configuration: Configuration, policy: Policy, runtime: Runtime, source: ModelSource, say: Callable[[str], None]
) -> Prover:
    """What proves at the start what is asked for: on the CPU itself, or on an emulated board that lets no time pass."""
    kind = configuration.service.device.runtime
    is_emulated = kind is RuntimeKind.EMULATED

    @cache
    def twin(generation: GenerationId) -> Runtime:
        from calculet_trio.runtimes.pace import VirtualPace

        board, _ = on_emulated_board(configuration, _first(configuration), policy, VirtualPace(lambda: 0.0))
        board.open()
        board.configure(generation, source.package)
        return board

    return Prover(
        runtime=runtime,
        trial_runtime=twin if is_emulated else lambda _generation: runtime,
        kind=kind,
        policy=policy,
        source=source,
        agreement=EXACT if is_emulated else agreement_of(source.package),
        store=evidence_store(configuration),
        say=say,
    )
