"""What may be seen of the board, and the surface's description of itself (B57)."""

from __future__ import annotations

import attrs
import jsonschema
import pytest
import trio

from calculet_trio.api.openapi import BODIES, LOOKS, described
from calculet_trio.api.settings import RequestLimits
from calculet_trio.core.device_reading import DeviceReading
from calculet_trio.core.lanes import LaneState
from calculet_trio.core.slots import Slot
from calculet_trio.ids import LaneId
from calculet_trio.shell.service import Health
from tests.api.conftest import Server
from tests.api.wire import get

BUSY = Slot(
    lane=LaneId(0),
    alias="m",
    state=LaneState.UPDATING,
    context_tokens=2048,
    committed_tokens=7,
    reserved_tokens=40,
    tenant="default",
    is_running=True,
    prompt_tokens=5,
    generated_tokens=3,
)
FREE = Slot(lane=LaneId(1), alias="m", state=LaneState.FREE, context_tokens=2048, committed_tokens=0, reserved_tokens=0)


async def test_slots_are_lengths_and_states(server: Server) -> None:
    retained = attrs.evolve(FREE, lane=LaneId(2), state=LaneState.RETAINED, committed_tokens=9, tenant="default")
    server.service.lanes = (BUSY, FREE, retained)
    first, second, third = (await server.ask(get("/slots"))).json()
    assert first == {
        "id": 0,
        "model": "m",
        "n_ctx": 2048,
        "is_processing": True,
        "state": "updating",
        "tenant": "default",
        "is_running": True,
        "prompt_tokens": 5,
        "generated_tokens": 3,
        "kv_committed_tokens": 7,
        "kv_reserved_tokens": 40,
    }
    assert (second["id"], second["is_processing"], second["tenant"]) == (1, False, None)
    assert (third["state"], third["is_processing"], third["kv_committed_tokens"]) == ("retained", False, 9)


async def test_slots_agree_with_health(server: Server) -> None:
    server.service.status = Health("loading", "configuring m")
    answer = await server.ask(get("/slots"))
    assert (answer.status, answer.json()["error"]["code"]) == (503, "loading")


async def test_the_device_is_shown_with_units_and_age(server: Server) -> None:
    assert (await server.ask(get("/calrt/device"))).status == 503
    server.service.reading = DeviceReading(
        read_s=trio.current_time() - 2.0,
        is_ok=False,
        word="fault 7",
        jobs=None,
        counters={"ping": 4},
        used_bytes=100,
        total_bytes=None,
    )
    shown = (await server.ask(get("/calrt/device"))).json()
    assert shown.pop("read_age_s") >= 2.0
    assert shown == {
        "status": {"ok": False, "word": "fault 7"},
        "jobs": None,
        "counters": {"ping": 4},
        "memory_used_bytes": 100,
        "memory_total_bytes": None,
    }


@pytest.mark.parametrize("path", ["/slots", "/calrt/device", "/openapi.json"])
async def test_they_are_only_looked_at(server: Server, path: str) -> None:
    assert (await server.ask(get(path, method="DELETE"))).status == 405


async def test_every_route_is_described_and_nothing_else(server: Server) -> None:
    shown = (await server.ask(get("/openapi.json"))).json()
    assert shown["openapi"].startswith("3.1")
    assert set(shown["paths"]) == {*BODIES, *LOOKS}
    for path in (*BODIES, *LOOKS):
        answer = await server.ask(get(path.replace("{id}", "m")))
        assert answer.status == (405 if path in BODIES else 200 if path != "/calrt/device" else 503), path


def schema_of(path: str, **limits: int) -> dict[str, object]:
    operation = described(RequestLimits(**limits))["paths"][path]["post"]
    return operation["requestBody"]["content"]["application/json"]["schema"]


def test_a_field_has_the_bounds_by_which_it_is_read() -> None:
    fields = schema_of("/v1/chat/completions", choices=3, top_logprobs=7)["properties"]
    assert fields["temperature"] == {"type": ["number", "null"], "default": 1.0, "minimum": 0, "maximum": 2}
    assert fields["n"] == {"type": ["integer", "null"], "minimum": 1, "maximum": 3}
    assert fields["top_logprobs"]["maximum"] == 7
    assert fields["top_p"]["exclusiveMinimum"] == 0
    assert fields["stream_options"]["properties"]["include_usage"]["type"] == ["boolean", "null"]
    message = fields["messages"]["items"]["properties"]
    assert message["role"]["type"] == ["string", "null"]
    assert message["tool_calls"]["items"]["properties"]["function"]["properties"]["name"]["type"] == ["string", "null"]
    assert "seed" in schema_of("/completion")["properties"]
    assert "n_predict" in schema_of("/completion")["properties"]
    assert schema_of("/completion")["properties"]["temperature"]["default"] == 0.8


@pytest.mark.parametrize("path", list(BODIES))
def test_a_schema_takes_what_the_parser_takes_and_refuses_what_it_refuses(path: str) -> None:
    schema = schema_of(path)
    jsonschema.Draft202012Validator.check_schema(schema)
    taken = jsonschema.Draft202012Validator(schema)
    _, body, _ = BODIES[path]
    taken.validate({"model": "m", **body})
    if "messages" in body:
        taken.validate({"messages": [{"role": "user", "content": "a string"}]})
    assert not taken.is_valid({}), "what must be there"
    if "n" in schema["properties"]:
        assert not taken.is_valid({**body, "n": 0})
        assert not taken.is_valid({**body, "temperature": "hot"})


def test_reading_is_noted_only_for_the_description() -> None:
    assert schema_of("/tokenize") == schema_of("/tokenize")
