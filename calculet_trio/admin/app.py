"""The admin socket's application: a closed list of calls, each on record before it is carried out.

Source: API.md "Admin endpoints"; SPEC section 15.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import attrs
import structlog
import trio
from quart import Response, g, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from calculet_trio.admin.audit import AuditLog, records
from calculet_trio.admin.jobs import AdminJob, JobDesk, Work
from calculet_trio.errors import CalculetError, InvalidRequest, OperationRefused, OperatorError, Unavailable
from calculet_trio.settings.allowed import Refused
from calculet_trio.settings.scheduler import ALIAS
from calculet_trio.shell.blocking import BlockingRunner
from calculet_trio.shell.operations import Operations

BODY_BYTES: Final = 16 * 2**10
TRACE_S_MAX: Final = 60.0
AUDIT_RECORDS_MAX: Final = 1000
JSON_TYPE: Final = "application/json; charset=utf-8"
LINES_TYPE: Final = "application/x-ndjson; charset=utf-8"

WITH_PROMPTS: Final = "yes, include prompts"
"""What ``include_prompts`` of a debug dump must say, in so many words."""

log = structlog.get_logger("admin")

Arguments = Mapping[str, Any]


class _Calls:
    """What the routes do. Each returns the reply's object, and its status if that is not 200."""

    def __init__(self, operations: Operations, desk: JobDesk, audit: AuditLog, runner: BlockingRunner) -> None:
        self._operations = operations
        self._desk = desk
        self._audit = audit
        self._runner = runner
        self._limiter = trio.CapacityLimiter(1)

    # ---- models -----------------------------------------------------------------------------------

    async def models(self, _: Arguments) -> Any:
        return {"models": [attrs.asdict(status) for status in self._operations.models()]}

    async def load(self, arguments: Arguments, *, alias: str) -> Any:
        _require_alias(alias)
        package = _text(arguments, "package", 256)
        _refuse_others(arguments, "package")
        return self._begin("load", alias, partial(self._operations.load, alias, package))

    async def unload(self, arguments: Arguments, *, alias: str) -> Any:
        _refuse_others(arguments)
        return self._begin("unload", alias, partial(self._operations.unload, alias))

    async def rollback(self, arguments: Arguments, *, alias: str) -> Any:
        _refuse_others(arguments)
        return self._begin("rollback", alias, partial(self._operations.rollback, alias))

    # ---- the daemon and its device ------------------------------------------------------------------

    async def drain(self, arguments: Arguments) -> Any:
        _refuse_others(arguments)
        await self._operations.begin_drain()
        return {"status": "draining"}

    async def reload(self, arguments: Arguments) -> Any:
        _refuse_others(arguments)
        return await self._operations.reload()

    async def reset(self, arguments: Arguments) -> Any:
        _refuse_others(arguments)
        return self._begin("device reset", None, self._operations.reset_device)

    async def trust_engines(self, arguments: Arguments) -> Any:
        _refuse_others(arguments)
        return await self._operations.trust_engines()

    async def trace(self, _: Arguments) -> Any:
        return await self._operations.trace(_seconds(request.args.get("seconds", "1")))

    async def debug_dump(self, arguments: Arguments) -> Any:
        asked = _text(arguments, "include_prompts", 64)
        _refuse_others(arguments, "include_prompts")
        if asked not in (None, WITH_PROMPTS):
            raise InvalidRequest(f"include_prompts must be absent, or say {WITH_PROMPTS!r}", param="include_prompts")
        return await self._operations.debug_dump(with_prompts=asked is not None)

    # ---- what was done ------------------------------------------------------------------------------

    async def jobs(self, _: Arguments) -> Any:
        return {"jobs": [job.as_object() for job in self._desk.jobs()]}

    async def job(self, _: Arguments, *, name: str) -> Any:
        return self._desk.job(name).as_object()

    async def follow(self, _: Arguments, *, name: str) -> Any:
        response = Response(_lines(self._desk.job(name)), content_type=LINES_TYPE)
        response.timeout = None  # a load takes as long as it takes
        return response

    async def cancel(self, arguments: Arguments, *, name: str) -> Any:
        _refuse_others(arguments)
        job = self._desk.job(name)
        job.cancel()
        return job.as_object()

    async def audit(self, _: Arguments) -> Any:
        last = _count(request.args.get("last", "100"))
        return {"records": await self._runner.run_whole(partial(self._last_records, last), self._limiter)}

    # ---- within -------------------------------------------------------------------------------------

    def _begin(self, what: str, subject: str | None, work: Work) -> Any:
        job = self._desk.begin(what, subject, work)
        return {"job": job.id}, 202

    async def record_end(self, job: AdminJob) -> None:
        """The end of what was begun, whoever asked for it."""
        await self.record({"event": "ended", "job": job.id, "outcome": job.state.value, "error": job.error})

    async def record(self, fields: Mapping[str, Any]) -> None:
        """Append to the audit log; raises `calculet_trio.errors.Unavailable` if that cannot be done."""
        try:
            await self._runner.run_whole(partial(self._audit.append, fields), self._limiter)
        except OSError as error:
            raise Unavailable(
                f"the audit log cannot be written: {error.strerror or error}",
                hint="make room on its disk; nothing is done that is not on record",
            ) from error

    def _last_records(self, count: int) -> list[Mapping[str, Any]]:
        kept: list[Mapping[str, Any]] = []
        for record in records(self._audit.directory):
            kept.append(record)
            del kept[:-count]
        return kept


def create_app(operations: Operations, desk: JobDesk, audit: AuditLog, runner: BlockingRunner) -> QuartTrio:
    """The admin socket's application.

    Args:
        operations: the daemon, as operators see it.
        desk: where long operations run.
        audit: where every call is recorded.
        runner: for the audit log's disk.
    """
    app = QuartTrio("calculet_trio.admin", static_folder=None, template_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = BODY_BYTES
    app.config["RESPONSE_TIMEOUT"] = None
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False
    calls = _Calls(operations, desk, audit, runner)
    desk.on_end = calls.record_end
    for method, path, call in (
        ("GET", "/admin/models", calls.models),
        ("POST", "/admin/models/<alias>/load", calls.load),
        ("POST", "/admin/models/<alias>/unload", calls.unload),
        ("POST", "/admin/models/<alias>/rollback", calls.rollback),
        ("POST", "/admin/drain", calls.drain),
        ("POST", "/admin/reload", calls.reload),
        ("POST", "/admin/device/reset", calls.reset),
        ("POST", "/admin/device/trust-engines", calls.trust_engines),
        ("POST", "/admin/debug-dump", calls.debug_dump),
        ("GET", "/admin/trace", calls.trace),
        ("GET", "/admin/jobs", calls.jobs),
        ("GET", "/admin/jobs/<name>", calls.job),
        ("GET", "/admin/jobs/<name>/events", calls.follow),
        ("DELETE", "/admin/jobs/<name>", calls.cancel),
        ("GET", "/admin/audit", calls.audit),
    ):
        app.add_url_rule(path, f"{method} {path}", _answering(call), methods=[method], provide_automatic_options=False)
    app.register_error_handler(Exception, _told)

    @app.before_request
    async def announce() -> None:
        g.arguments = await _arguments()
        await calls.record({"event": "asked", "call": f"{request.method} {request.path}", **_peer(), **_said()})

    @app.after_request
    async def account(response: Response) -> Response:
        said = {"event": "answered", "call": f"{request.method} {request.path}", "status": response.status_code}
        try:
            await calls.record({**said, **_peer()})
        except Unavailable as error:  # what was asked is on record, and its answer is true
            log.error("answer_not_on_record", call=said["call"], error=str(error))
        return response

    return app


def _answering(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Response]]:
    async def handler(**place: str) -> Response:
        answer = await call(g.arguments, **place)
        if isinstance(answer, Response):
            return answer
        value, status = answer if isinstance(answer, tuple) else (answer, 200)
        return _reply(value, status)

    return handler


async def _lines(job: AdminJob) -> AsyncIterator[bytes]:
    async for line in job.follow():
        yield _encode({"after_s": line.after_s, "text": line.text}) + b"\n"
    yield _encode(job.as_object()) + b"\n"


# ---- what was asked -----------------------------------------------------------------------------------


async def _arguments() -> Arguments:
    body = await request.get_data()
    if not body:
        return {}
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON's")


def _said() -> dict[str, Any]:
    query = request.query_string.decode("ascii", "replace")
    return {**({"arguments": g.arguments} if g.arguments else {}), **({"query": query} if query else {})}


def _peer() -> dict[str, int]:
    peer: dict[str, int] = request.scope["state"]["peer"]
    return peer


def _require_alias(alias: str) -> None:
    """Raises InvalidRequest where no configuration could name a model so."""
    try:
        ALIAS.accept(alias)
    except Refused:
        raise InvalidRequest(f"{alias[:64]!r} cannot be an alias; allowed: {ALIAS.words}", param="alias") from None


def _text(arguments: Arguments, name: str, most: int) -> str | None:
    value = arguments.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value) <= most:
        raise InvalidRequest(f"{name} must be a string of 1 to {most} characters", param=name)
    return value


def _refuse_others(arguments: Arguments, *known: str) -> None:
    for name in arguments:
        if name not in known:
            raise InvalidRequest(
                f"{name[:64]} is not an argument of this call; it takes {', '.join(known) or 'none'}", param=name[:64]
            )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= TRACE_S_MAX:
        raise InvalidRequest(f"seconds must be a number above 0, at most {TRACE_S_MAX:g}", param="seconds")
    return seconds


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= AUDIT_RECORDS_MAX and len(text) < 9):
        raise InvalidRequest(f"last must be a number from 1 to {AUDIT_RECORDS_MAX}", param="last")
    return int(text)


# ---- what is answered ---------------------------------------------------------------------------------


def _encode(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, allow_nan=False).encode()


def _reply(value: Any, status: int) -> Response:
    return Response(_encode(value) + b"\n", status=status, content_type=JSON_TYPE)


async def _told(error: Exception) -> Response:
    """Whatever a handler raised, in the shape that the service socket's errors have, and a hint beside it."""
    status, kind, code, param = 500, "server_error", "internal_error", None
    message = "an internal error; the service's log has the details"
    told = _unwrapped(error)
    match told:
        case HTTPException() as plain:
            status, kind, code = plain.code or 500, "invalid_request_error", plain.name.lower().replace(" ", "_")
            message = plain.name
        case InvalidRequest() as invalid:
            status = 404 if invalid.code == "no_such_job" else 400
            kind, code, param, message = (
                "invalid_request_error",
                invalid.code or "invalid",
                invalid.param,
                invalid.message,
            )
        case OperationRefused() as refused:
            status, kind, code, message = 409, "conflict_error", "refused", str(refused)
        case Unavailable() as unavailable:
            status, code, message = 503, "unavailable", str(unavailable)
        case CalculetError() as known:
            status, kind, code, message = 422, "operation_error", type(known).__name__, str(known)
        case defect:
            log.error("admin_defect", path=request.path, exc_info=defect)
    hint = told.hint if isinstance(told, OperatorError) else None
    body = {"message": message, "type": kind, "param": param, "code": code, **({"hint": hint} if hint else {})}
    return _reply({"error": body}, status)


def _unwrapped(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
