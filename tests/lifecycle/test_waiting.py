"""What clients hear over HTTP while a model is loaded, swapped or waits its turn: never 404, and never of another."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import trio

from calculet_trio.api.app import create_app
from calculet_trio.api.listening import bound_socket
from calculet_trio.api.server import serve
from calculet_trio.api.settings import ApiSettings
from calculet_trio.core.policy import ResidencyPolicy, ResidencyStrategy
from tests.api.wire import Wire, get, post
from tests.shell.house import until
from tests.shell.shelf_house import Heard, living

CHAT = "/v1/completions"


async def surface(service, stop, *, task_status):
    settings = ApiSettings()
    app = create_app(service, settings, metrics=lambda _accept: (b"", "text/plain"))
    listening = bound_socket("127.0.0.1", 0, settings.connection)
    task_status.started(listening.getsockname()[1])
    await serve(app, listening, settings=settings, shutdown=stop)


async def send(house, request):
    wire = Wire(await trio.open_tcp_stream("127.0.0.1", house.port))
    answer = await wire.answer(request)
    await wire.aclose()
    return answer


async def ask(house, alias, *headers, prompt="hi"):
    """Status, and the reply's text or the error's code."""
    answer = await send(house, post(CHAT, {"model": alias, "prompt": prompt, "temperature": 0}, *headers))
    return (200, answer.json()["choices"][0]["text"]) if answer.status == 200 else (answer.status, answer.error["code"])


async def test_the_first_load_of_an_alias_is_503_with_retry_after_and_no_404():
    loaded = threading.Event()
    async with living(holds_several=True, surface=surface) as house, trio.open_nursery() as operator:
        assert await ask(house, "n") == (404, "model_not_found")
        operator.start_soon(house.models.load, house.shelf.source("n", "other", verify=partial(loaded.wait, 20)))
        await until(lambda: house.status("m") and "n" in house.models.board)
        for request in (post(CHAT, {"model": "n", "prompt": "hi"}), get("/v1/models/n")):
            answer = await send(house, request)
            assert (answer.status, answer.error["code"]) == (503, "loading")
            assert int(answer.headers["retry-after"]) >= 1
        assert await ask(house, "m") == (200, "old")
        loaded.set()
        await until(lambda: house.status("n").state == "ready")
        assert await ask(house, "n") == (200, "other")


async def test_a_first_load_that_fails_leaves_a_404():
    async with living(holds_several=True, surface=surface) as house:
        house.shelf.fails["golden"] = 1
        with pytest.raises(Exception, match="as was planned"):
            await house.models.load(house.shelf.source("n", "other"))
        assert await ask(house, "n") == (404, "model_not_found")


async def test_in_a_swap_clients_wait_for_the_new_model_until_their_deadline():
    async with living(holds_several=False, surface=surface) as house:
        answers = {}

        async def one(name, *headers, prompt="hi"):
            answers[name] = await ask(house, "m", *headers, prompt=prompt)

        async with trio.open_nursery() as clients:
            clients.start_soon(partial(one, "runs", prompt="gated"))
            await until(lambda: house.snapshot().jobs_in_flight)
            clients.start_soon(house.models.load_named, "m", "new", Heard())
            await until(lambda: house.status().state == "draining")
            clients.start_soon(one, "waits")
            await one("is in a hurry", "x-request-deadline-ms: 50")
            assert answers == {"is in a hurry": (503, "deadline_exceeded")}
            assert (await send(house, get("/v1/models/m"))).status == 200
            await until(lambda: house.snapshot().waiting_requests == 1)
            house.shelf.let_through("g")
        assert answers["runs"] == (200, "old end")
        assert answers["waits"] == (200, "new")


async def test_a_parked_alias_is_listed_and_waited_for_and_health_stays_ok():
    residency = ResidencyPolicy(strategy=ResidencyStrategy.TIME_SHARING, dwell_s=0.2)
    async with living(beside=("new", "other"), residency=residency, surface=surface) as house:
        listed = (await send(house, get("/v1/models"))).json()["data"]
        assert [model["id"] for model in listed] == ["m", "new", "other"]
        assert await ask(house, "new") == (200, "new")
        assert (await send(house, get("/health"))).status == 200
        assert (await send(house, get("/props"))).status == 200
        answer = await send(house, post("/tokenize", {"model": "m", "content": "hi"}))
        assert (answer.status, answer.error["code"]) == (503, "loading")
        assert await ask(house, "nobody") == (404, "model_not_found")
        house.shelf.fails["configure"] = 1
        failed = await send(house, post(CHAT, {"model": "other", "prompt": "hi"}))
        assert (failed.status, failed.error["code"]) == (503, "load_failed")
        assert 1 <= int(failed.headers["retry-after"]) <= 5
        assert "planned" not in failed.error["message"]
