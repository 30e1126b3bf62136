"""What may be seen of the board: its lanes and itself, from cached state; and the description of this surface.

A request for these never reaches the device, however often it comes: that is their rate limit.

Source: API.md "Service endpoints"; SPEC section 15; report B57.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import trio
from quart import Blueprint, Response

from calculet_trio.api.envelope import current, refuse_unless_ok
from calculet_trio.api.json_reply import json_reply
from calculet_trio.api.openapi import described
from calculet_trio.api.settings import ApiSettings
from calculet_trio.core.lanes import LaneState
from calculet_trio.core.slots import Slot
from calculet_trio.errors import ServiceUnavailable
from calculet_trio.settings.key_ring import Credential
from calculet_trio.settings.service import Role
from calculet_trio.shell.service import Service


class BoardRoutes:
    """The handlers, and what they know.

    Args:
        service: the daemon, as a surface sees it.
        settings: the bounds, which the description shows.
    """

    def __init__(self, service: Service, settings: ApiSettings) -> None:
        self._service = service
        self._settings = settings

    def blueprint(self) -> Blueprint:
        routes = Blueprint("board", __name__)
        routes.add_url_rule("/slots", view_func=self.slots)
        routes.add_url_rule("/calrt/device", view_func=self.device)
        routes.add_url_rule("/openapi.json", view_func=self.openapi)
        return routes

    async def slots(self) -> Response:
        """Every lane, for operators; a tenant's key sees those that are free and those of its own requests."""
        refuse_unless_ok(self._service)  # as chat is refused, at the same instant
        seen = [slot for slot in self._service.slots() if _may_see(current().credential, slot)]
        return json_reply([_slot_object(slot) for slot in seen])

    async def device(self) -> Response:
        """Status and memory of the device, as it last told them."""
        reading = self._service.device()
        if reading is None:
            raise ServiceUnavailable("the device has not been asked yet", code="loading", retry_after_s=2.0)
        shown: dict[str, Any] = {
            "status": {"ok": reading.is_ok, "word": reading.word},
            "jobs": reading.jobs,
            "counters": dict(reading.counters),
            "memory_used_bytes": reading.used_bytes,
            "memory_total_bytes": reading.total_bytes,
            "read_age_s": round(max(0.0, trio.current_time() - reading.read_s), 3),
        }
        return json_reply(shown)

    async def openapi(self) -> Response:
        """The surface in OpenAPI's terms."""
        return json_reply(self._description)

    @cached_property
    def _description(self) -> dict[str, Any]:
        return described(self._settings.request)


def _may_see(credential: Credential, slot: Slot) -> bool:
    return credential.role is Role.OPERATOR or slot.tenant in (None, credential.tenant)


def _slot_object(slot: Slot) -> dict[str, Any]:
    """In llama-server's names where it has them."""
    return {
        "id": slot.lane,
        "model": slot.alias,
        "n_ctx": slot.context_tokens,
        "is_processing": slot.state not in (LaneState.FREE, LaneState.RETAINED),
        "state": slot.state.value,
        "tenant": slot.tenant,
        "is_running": slot.is_running,
        "prompt_tokens": slot.prompt_tokens,
        "generated_tokens": slot.generated_tokens,
        "kv_committed_tokens": slot.committed_tokens,
        "kv_reserved_tokens": slot.reserved_tokens,
    }
