"""``health``: what the running service says of itself.

Source: API.md "Service endpoints": ``GET /health`` is answered from cached state, whatever the device does.
"""

from __future__ import annotations

import http.client

from calculet_trio.doctor.addresses import shown
from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, failure, ok, warning
from calculet_trio.doctor.service.probe import Answer, get, is_ours
from calculet_trio.doctor.surroundings import Surroundings

LOG_TODO = "read its log: `journalctl --user -u calculet-trio -n 50`"
PASSING = {
    "loading": "wait until a model is loaded; `calculet-trio models list` says which is under way, or was unloaded",
    "draining": "it is being stopped; start it again if that was not meant",
    "recovering": f"wait, and {LOG_TODO}",
}


def _examine(surroundings: Surroundings) -> Finding:
    host, port = surroundings.host, surroundings.port
    where = shown(host, port)
    try:
        answer = get(host, port, "/health")
        ours = answer is not None and is_ours(host, port)
    except TimeoutError:
        return failure(f"{where} takes connections and does not answer", todo=f"restart the service, and {LOG_TODO}")
    except (OSError, http.client.HTTPException) as error:
        return failure(
            f"{where} does not answer as a service: {type(error).__name__}: {error}",
            todo="see the check `port`: another program may be there",
        )
    if answer is None:
        return warning(f"no service runs on {where}", todo="`calculet-trio serve`, or --port if it is elsewhere")
    if not ours:
        return warning(f"what answers on {where} is not calculet-trio", todo="see the check `port`")
    return _judge(answer, where)


def _judge(answer: Answer, where: str) -> Finding:
    status = str(answer.body.get("status"))
    if answer.status == http.client.OK and status == "ok":
        return ok(f"the service on {where} is ready")
    error = answer.body.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    seen = f"the service on {where} answers {answer.status}: {message or status}"
    if status in PASSING:
        return warning(seen, todo=PASSING[status])
    return failure(seen, todo=f"{LOG_TODO}, then restart it")


CHECK = Check(
    name="health",
    group=Group.SERVICE,
    why="it is what clients, proxies and systemd go by",
    examine=_examine,
)
