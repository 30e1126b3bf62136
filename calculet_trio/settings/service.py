"""``calculet-service/v1``: sockets, models, tenants and their keys, paths, bounds of the whole daemon.

Source: SPEC section 4, 9, 10, 15.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from enum import Enum
from typing import Final

import attrs

from calculet_trio.core.policy import ResidencyPolicy, ResidencyStrategy, TenantPolicy
from calculet_trio.settings.allowed import Choice, Fixed, KeyPath, ListOf, OrNull, Real, Text, Whole, YesNo
from calculet_trio.settings.keys import Contradiction, entries, key, section
from calculet_trio.settings.scheduler import ALIAS, DEADLINE_MS
from calculet_trio.settings.surface import LimitSettings, TimeoutSettings

SCHEMA: Final = "calculet-service/v1"

KEYLESS_TENANT: Final = "default"
"""Who asks without a key, while there are no keys at all."""
MODELS_MAX: Final = 16
TENANTS_MAX: Final = 2000
KEYS_PER_TENANT_MAX: Final = 4
"""Two while one replaces the other, and as many again."""

PATH: Final = Text("a path; a relative one begins at this file's directory")
TENANT: Final = Text(
    "1 to 64 letters, digits and . _ -, beginning with a letter or digit", r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
)
KEY_SHA256: Final = Text(
    "the 64 lower-case hex digits of a key's SHA-256, as `calculet-trio config key` prints them",
    r"[0-9a-f]{64}",
    secret=True,
)


class RuntimeKind(Enum):
    HOST = "host"
    EMULATED = "emulated"
    SCRIPTED = "scripted"
    CALRT = "calrt"


class Role(Enum):
    TENANT = "tenant"
    OPERATOR = "operator"
    """Sees every tenant's series and the board page; asks for replies as a tenant does."""


@attrs.frozen(kw_only=True)
class ListenSettings:
    """The service socket."""

    host: str = key(
        Text("a host name or address", r"[A-Za-z0-9.:%_-]{1,253}"), "127.0.0.1", "Address or host to listen on."
    )
    port: int = key(Whole(0, 65_535), 8080, "TCP port; 0 lets the system choose.")
    allow_remote: bool = key(
        YesNo(), False, "Listen where others can reach it although there are no keys: everybody may use the model."
    )
    cors_origins: tuple[str, ...] = key(
        ListOf(Text("an origin like https://example.org, or *", r"\*|https?://[^\s/]+"), "origins", least=0, most=64),
        (),
        "Web pages of these origins may call the service; * for all. None: a page that somebody visits cannot "
        "use this service behind their back.",
    )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@attrs.frozen(kw_only=True)
class DeviceSettings:
    """What computes."""

    runtime: RuntimeKind = key(
        Choice(RuntimeKind),
        RuntimeKind.HOST,
        "host: this machine's CPU; calrt: a board; emulated: a board in software; scripted: says what a file says.",
    )
    library: str | None = key(
        OrNull(PATH, "what CALCULET_CALRT_LIBRARY names, what `calculet-trio binding build` built, or a standard path"),
        None,
        "With the calrt runtime: the binding's library, libcalculet_calrt.so.",
    )
    path: str | None = key(
        OrNull(PATH, "the only board"),
        None,
        "The board's device file. Its name is that of the lock which keeps other processes off the board; which board "
        "the vendor's library opens cannot be chosen yet.",
    )
    accept_untried: bool = key(
        YesNo(),
        False,
        "Serve although this combination of server, CalRT, driver, CalcoreRT, compiler and calbin was never tried; "
        "/props then says so.",
    )
    emulated_board: str | None = key(
        OrNull(PATH, "the reference board"),
        None,
        "With the emulated runtime: a calculet-device/v1 file, the board's numbers.",
    )


@attrs.frozen(kw_only=True)
class ModelSettings:
    """One alias."""

    alias: str | None = key(OrNull(ALIAS, "the package's name"), None, "The model's name in requests.")
    package: str | None = key(
        OrNull(Text("a package's name, or a path with a / in it"), "the only package in the store"),
        None,
        "What is served: a package of the store, or a directory; with the scripted runtime, its script; with the "
        "emulated one, a calculet-device/v1 file instead of device.emulated_board.",
    )
    scheduler: str | None = key(
        OrNull(PATH, "the defaults"),
        None,
        "Its policy, a calculet-scheduler/v1 file. Of several models' files, queues, decode and batch are each one's "
        "own; admission, fairness, executor and recovery are the device's, and those of the first model hold.",
    )


@attrs.frozen(kw_only=True)
class ResidencySettings:
    """How several aliases share the device."""

    strategy: ResidencyStrategy = key(
        Choice(ResidencyStrategy),
        ResidencyStrategy.AUTO,
        "auto: all models stay on the device where its runtime and their packages declare that, and memory permits; "
        "else one may be configured. single: one alias. time_sharing: one model is there at a time, and makes room for "
        "another that is asked for. co_resident: as auto, and refused where it is not declared.",
    )
    dwell_s: float = key(
        Real(0.1, 86_400.0),
        60.0,
        "With time_sharing: how long a model stays at least. Requests for another wait, until their deadline; open "
        "replies are let end.",
    )

    @property
    def policy(self) -> ResidencyPolicy:
        """As the core reads it."""
        return ResidencyPolicy(strategy=self.strategy, dwell_s=self.dwell_s)


@attrs.frozen(kw_only=True)
class TenantSettings:
    """One tenant: who has one of its keys."""

    name: str = key(TENANT, attrs.NOTHING, "Its name in metrics and logs.")
    key_sha256: tuple[str, ...] = key(
        ListOf(KEY_SHA256, "hashes", least=0, most=KEYS_PER_TENANT_MAX, alone=True),
        (),
        "SHA-256 of its keys, never a key itself. Two at a time let one replace the other; none shuts it out.",
    )
    role: Role = key(
        Choice(Role), Role.TENANT, "operator: may also read /metrics and every tenant's data; tenant: only its own."
    )
    weight: float = key(Real(0.001, 1000.0), 1.0, "Its share of service, relative to the others'.")
    max_active_sequences: int | None = key(
        OrNull(Whole(1, 65_536), "no limit of its own"), None, "Its requests that run at the same time, at most."
    )
    max_waiting_tokens: int | None = key(
        OrNull(Whole(1, 1_000_000_000), "no limit of its own"), None, "Prompt tokens of its waiting requests, at most."
    )
    requests_per_s: float | None = key(
        OrNull(Real(0.001, 100_000.0), "no limit of its own"),
        None,
        "Its arrivals per second, at most, with a burst of one second's worth (at least one).",
    )
    deadline_ms: int | None = key(
        OrNull(DEADLINE_MS, "the scheduler's admission.deadline_default_ms"),
        None,
        "How long its requests may take. This alone orders decoding: what a client sends can only end its request "
        "earlier.",
    )

    @property
    def policy(self) -> TenantPolicy:
        """As the core reads it."""
        return TenantPolicy(
            weight=self.weight,
            max_active_sequences=self.max_active_sequences,
            max_waiting_tokens=self.max_waiting_tokens,
            requests_per_s=self.requests_per_s,
            deadline_s=None if self.deadline_ms is None else self.deadline_ms / 1000,
        )


@attrs.frozen(kw_only=True)
class ServiceSettings:
    """A whole ``calculet-service/v1`` file."""

    schema: str = key(Fixed(SCHEMA), attrs.NOTHING, "What this file is.")
    listen: ListenSettings = section(ListenSettings, "The service socket, for clients.")
    admin_socket: str | None = key(
        OrNull(PATH, "admin.sock in $XDG_RUNTIME_DIR/calculet-trio"), None, "The admin socket, for operators."
    )
    device: DeviceSettings = section(DeviceSettings, "What computes.")
    models: tuple[ModelSettings, ...] = entries(
        ModelSettings, "What is served; none: the only package in the store.", what="models", most=MODELS_MAX
    )
    residency: ResidencySettings = section(ResidencySettings, "How several models share the device.")
    tenants: tuple[TenantSettings, ...] = entries(
        TenantSettings,
        "Who may ask. The key alone decides the tenant. None has a key: no key is asked for, everybody is the "
        "tenant `default`, and only this machine may connect.",
        what="tenants",
        most=TENANTS_MAX,
    )
    trusted_keys: tuple[str, ...] = key(
        ListOf(PATH, "files", least=0, most=64),
        (),
        "Public keys whose signatures under a board's packages and evidence are believed; this machine's own key "
        "is believed for what was made here.",
    )
    store: str | None = key(OrNull(PATH, "packages in $XDG_DATA_HOME/calculet-trio"), None, "Where packages are.")
    state: str | None = key(
        OrNull(PATH, "$XDG_STATE_HOME/calculet-trio"), None, "Where faults, evidence and the audit log are kept."
    )
    limits: LimitSettings = section(LimitSettings, "How much one client may make the daemon hold.")
    timeouts: TimeoutSettings = section(TimeoutSettings, "How long things may take.")

    @property
    def has_keys(self) -> bool:
        """Whether clients need a key."""
        return any(tenant.key_sha256 for tenant in self.tenants)

    def contradictions(self) -> Iterator[Contradiction]:
        """Keys of this file that do not go together."""
        if not (self.listen.is_loopback or self.has_keys or self.listen.allow_remote):
            yield Contradiction(
                (("listen", "host"), ("listen", "allow_remote"), ("tenants",)),
                f"is {self.listen.host}, so that everybody who can reach it may use the model; give the tenants keys, "
                "or set listen.allow_remote (--allow-remote), or listen on 127.0.0.1",
            )
        yield from self.timeouts.contradictions(("timeouts",))
        yield from _twice(
            ((("models", index, "alias"), model.alias) for index, model in enumerate(self.models)), "an alias"
        )
        yield from _twice(
            ((("tenants", index, "name"), tenant.name) for index, tenant in enumerate(self.tenants)), "a tenant's name"
        )
        yield from self._keys()

    def _keys(self) -> Iterator[Contradiction]:
        owners: dict[str, str] = {}
        for index, tenant in enumerate(self.tenants):
            for digest in tenant.key_sha256:
                if digest in owners:
                    yield Contradiction(
                        (("tenants", index, "key_sha256"),), f"repeats a key of the tenant {owners[digest]}"
                    )
                owners.setdefault(digest, tenant.name)
            if not self.has_keys and tenant.name != KEYLESS_TENANT:
                yield Contradiction(
                    (("tenants", index, "name"), ("tenants",)),
                    f"is {tenant.name}, but no tenant has a key_sha256: everybody is the tenant `{KEYLESS_TENANT}`",
                )


def _twice(names: Iterator[tuple[KeyPath, str | None]], what: str) -> Iterator[Contradiction]:
    seen: dict[str | None, KeyPath] = {}
    for path, name in names:
        if name in seen:
            problem = (
                f"repeats {what}: {name}" if name else f"is missing, as in entry {seen[name][1]}: each needs its own"
            )
            yield Contradiction((path,), problem)
        seen.setdefault(name, path)
