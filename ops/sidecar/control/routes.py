"""The control API over HTTP: one table of the calls of /v1, from which routes, roles and the OpenAPI document are made.

    request ──> body within its limit ──> schema ──> ControlPlane.call ──> JSON
    status, tasks, rows, health, metrics: of every instance, by `ops/http/application.py`

Rules of this file: from requests to calls; their meaning is in `plane.py`, permission is checked before
(`http_guard`). Nothing blocks the event loop: calls that may block run in the control thread or a worker thread.
Requests are not logged: their paths hold keys.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from standfast.ops.http.application import HEALTH, answer, rows, status, tasks
from standfast.ops.http.rows import Rows, unread
from standfast.ops.observe.health import Health, live, ready, startup
from standfast.ops.shared.error_codes import (
    LIMIT,
    NOT_ACTIVE,
    RESTORING,
    RETRY_AFTER_S,
    TOO_LARGE,
    NotFound,
    Refused,
)
from standfast.ops.sidecar.control import schema as schemas
from standfast.ops.sidecar.control.answers import Answers
from standfast.ops.sidecar.control.plane import ControlPlane
from standfast.store.errors import InvalidRequest, Unavailable
from standfast.store.names import few

KEEP_ALIVE_S = 15.0
READ_S = 10.0
SEND_S_MAX = 10.0
_JUDGES: dict[str, Callable[..., Health]] = dict(zip(HEALTH, (startup, live, ready), strict=True))
Role = Literal["none", "read", "write", "admin"]
Handler: TypeAlias = "Callable[[ControlRoutes, Request, Any], Awaitable[Response]]"


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter of a path's query; `kind` is the type of its value."""

    name: str
    kind: Any
    text: str


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One call of the API. `role`: the role that its token needs; `body`: the class of its body, None: it has none."""

    method: str
    path: str
    role: Role
    text: str
    handler: Handler
    body: type | None = None
    query: tuple[Query, ...] = ()
    statuses: tuple[int, ...] = (400, 409, 503)


class ControlRoutes:
    """The handlers, over one control plane."""

    def __init__(
        self,
        plane: ControlPlane,
        answers: Answers,
        loop_age_ms: Callable[[], int],
        on_scrape: Callable[[], Awaitable[bytes]],
    ) -> None:
        self._plane = plane
        self._answers = answers
        self._loop_age_ms = loop_age_ms
        self._on_scrape = on_scrape
        self._reads: tuple[object, Rows] | None = None
        self.on_drain: Callable[[float], Awaitable[None]] | None = None

    async def respond(self, call: ApiCall, request: Request) -> Response:
        """The answer to one request. Raises errors of the library."""
        body = await _body(request, call, self._plane.config.limits.http_body_max_bytes)
        return await call.handler(self, request, body)

    async def health(self, path: str, exclude: Collection[str]) -> Health:
        return _JUDGES[path](self._answers.facts(loop_age_ms=self._loop_age_ms()), exclude)

    async def scrape(self) -> bytes:
        return await self._on_scrape()

    async def hello(self, request: Request, body: dict[str, Any]) -> Response:
        return answer(200, self._answers.hello())

    async def openapi(self, request: Request, body: dict[str, Any]) -> Response:
        from standfast.ops.sidecar.control.openapi import document

        return answer(200, document(CALLS))

    async def put_stores(self, request: Request, body: schemas.Stores) -> Response:
        outcomes = await self._call(lambda: self._plane.declare(body))
        return answer(200, await self._call(lambda: self._answers.stores(outcomes)))

    async def stores(self, request: Request, body: dict[str, Any]) -> Response:
        return answer(200, await asyncio.to_thread(self._answers.stores, {}))

    async def put_assignment(self, request: Request, body: schemas.Assignment) -> Response:
        await self._call(lambda: self._plane.assign(body))
        return answer(200, self._answers.assignment())

    async def assignment(self, request: Request, body: dict[str, Any]) -> Response:
        return answer(200, self._answers.assignment())

    async def revoke(self, request: Request, body: schemas.Revoke) -> Response:
        positions = await self._call(lambda: self._plane.revoke(body))
        return answer(200, {"positions": {str(partition): found for partition, found in positions.items()}})

    async def heartbeat(self, request: Request, body: schemas.Heartbeat) -> Response:
        lease = self._plane.heartbeat(body.generation)
        return answer(200, {"generation": body.generation, "lease_ms": lease.lease_ms})

    async def ready(self, request: Request, body: dict[str, Any]) -> Response:
        """Waits on the loop, so that many waiters cost no thread."""
        # Waiting renews no lease: any client may wait, and only the application may hold its tasks.
        wait_ms = number(request, "wait", self._plane.config.limits.wait_max_ms) or 0
        deadline_ms = self._plane.clock.monotonic_ms() + wait_ms
        while True:
            document = self._answers.ready()
            left_ms = deadline_ms - self._plane.clock.monotonic_ms()
            # Ends the wait too: a lease that is over, and tasks that another instance has, never become ready by
            # waiting.
            if document["ready"] or document["idle"] or document["fenced"] or left_ms <= 0:
                return answer(200, document)
            await asyncio.sleep(min(left_ms, 20) / 1_000)

    async def events(self, request: Request, body: dict[str, Any]) -> Response:
        events = self._plane.events
        if len(events) >= self._plane.config.limits.event_streams:
            raise Refused(LIMIT, f"{len(events)} event streams are open, which is the limit")
        seen = request.headers.get("last-event-id", "")
        # `isdigit` alone takes digits of every script.
        after = int(seen) if seen.isascii() and seen.isdigit() and len(seen) < 16 else None
        listener = events.listen(after)

        async def stream() -> AsyncIterator[bytes]:
            try:
                yield b": standfast\n\n"
                while True:
                    try:
                        event = await asyncio.wait_for(listener.queue.get(), KEEP_ALIVE_S)
                    except TimeoutError:
                        yield b": still here\n\n"
                        continue
                    if event is None:
                        return
                    yield event.encode()
            finally:
                events.forget(listener)

        return EventStream(stream(), lambda: events.forget(listener))

    async def schedule(self, request: Request, body: schemas.Schedule) -> Response:
        plane = self._plane
        made = await self._call(
            # Twice: a generator that was never started runs no `finally`.
            lambda: plane.timers.schedule(
                plane.wanted.active, body.partition, body.kind, body.interval_ms, schemas.given(body.start_ms, None)
            )
        )
        return answer(200, {"id": made})

    async def unschedule(self, request: Request, body: dict[str, Any]) -> Response:
        text = request.path_params["id"]
        found = text.isascii() and text.isdigit() and len(text) < 16
        gone = found and await self._call(lambda: self._plane.timers.cancel(int(text)))
        if not gone:
            raise NotFound(f"schedule {text[:32]!r} does not exist")
        return answer(200, {"cancelled": True})

    async def status(self) -> dict[str, Any]:
        return await asyncio.to_thread(self._answers.status)

    async def lags(self, request: Request, body: dict[str, Any]) -> Response:
        return answer(200, await asyncio.to_thread(self._answers.lags))

    async def locate(self, request: Request, body: dict[str, Any]) -> Response:
        partition = number(request, "partition", schemas.PARTITION_MAX)
        return answer(200, await asyncio.to_thread(self._answers.locate, partition))

    async def rows(self, request: Request) -> Response:
        session = self._plane.session.session
        # A declaration opens another session; rows of the old one would be read from closed stores.
        if self._reads is None or self._reads[0] is not session:
            self._reads = (session, Rows(session))
        reads = self._reads[1]
        target = request.scope["raw_path"].decode("ascii", "replace")
        query = request.scope["query_string"].decode("ascii", "replace")
        partition = number(request, "partition", schemas.PARTITION_MAX)

        stale = request.query_params.get("stale") == "1"

        def read() -> dict[str, Any] | None:
            wanted = self._plane.wanted
            if partition is not None and stale and partition in wanted.tasks - self._plane.session.held().tasks.keys():
                return None  # a standby or a restore, which a worker has
            # Of standbys alone the refusal says how to read them.
            every = wanted.tasks if stale else wanted.active or wanted.tasks
            asked = every if partition is None else frozenset({partition})
            _check_whole(self._plane, asked, stale)
            left = wanted.tasks - asked if partition is None else frozenset()
            try:
                found = reads.document(target, query)
            except NotFound as absent:  # the session of the server has no standby: a worker has them
                raise NotFound(f"{absent}{unread(left)}") from None
            found["not_read"] = sorted(left)
            # A task may close between the check and the read: the answer would be silently short.
            if asked - {one["partition"] for one in found["partitions"]}:
                raise Refused(RESTORING, "a partition was closed while its rows were read: ask again")
            return found

        found = await asyncio.to_thread(read)
        if found is not None:
            return answer(200, found)
        assert partition is not None
        # In the control thread: it alone uses the pipe to the workers.
        asked = await self._call(lambda: self._plane.session.mover.read(partition, target, query))
        try:
            rows = await asyncio.wait_for(asyncio.wrap_future(asked), READ_S)
        except TimeoutError:
            raise Unavailable(
                f"the standby worker sent no rows of partition {partition} within {READ_S:.0f} s: ask again"
            ) from None
        made = answer(rows.status, rows.document)
        if rows.status in (429, 503):
            made.headers["Retry-After"] = str(RETRY_AFTER_S)
        return made

    async def verify(self, request: Request, body: schemas.Verify) -> Response:
        job = await self._call(
            lambda: self._answers.verification(schemas.given(body.store, None), schemas.given(body.partition, None))
        )
        return answer(200, await asyncio.to_thread(job))

    async def snapshot(self, request: Request, body: schemas.Snapshot) -> Response:
        positions = await self._call(lambda: self._plane.snapshot(body.name))
        return answer(200, {"name": body.name, "positions": {str(one): found for one, found in positions.items()}})

    async def snapshots(self, request: Request, body: dict[str, Any]) -> Response:
        return answer(200, {"snapshots": await self._call(self._plane.session.snapshots)})

    async def drain(self, request: Request, body: schemas.Drain) -> Response:
        assert self.on_drain is not None
        wait_ms = schemas.given(body.wait_ms, self._plane.config.serve.drain_timeout_ms)
        await self.on_drain(wait_ms / 1_000)
        return answer(200, {"drained": True})

    async def wipe(self, request: Request, body: schemas.Wipe) -> Response:
        await self._call(lambda: self._plane.wipe(body.partition, body.epoch))
        return answer(200, self._answers.assignment())

    async def _call(self, job: Callable[[], Any]) -> Any:
        return await asyncio.wrap_future(self._plane.call(job))


async def _body(request: Request, call: ApiCall, limit: int) -> Any:
    known = {query.name for query in call.query}
    for name in request.query_params:
        if name not in known and not call.path.endswith("{verb}"):
            raise InvalidRequest(f"no parameter {name[:64]!r}; there are {few(sorted(known)) or 'none'}")
    if call.body is None:
        return {}
    pieces, size = [], 0
    # Counted while it comes: a length that the client announces binds it to nothing.
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            raise Refused(TOO_LARGE, f"the body is over the limit of {limit} bytes")
        pieces.append(piece)
    return schemas.parse_body(b"".join(pieces), call.body)


def _check_whole(plane: ControlPlane, partitions: frozenset[int], stale: bool) -> None:
    """Raise Refused if rows of one of these cannot be read here: an answer without them would be silently short."""
    held = plane.session.held().tasks
    for partition in sorted(partitions):
        if not stale or partition not in plane.wanted.tasks:
            plane.table.running(partition)  # raises the reason
        elif partition not in held:
            raise Refused(
                NOT_ACTIVE,
                f"partition {partition} is a standby here or restores: read it by itself (partition=N&stale=1)",
            )


class EventStream(StreamingResponse):
    """Server-Sent Events; a reader that takes nothing for SEND_S_MAX is cut off. `ended` is called however it ends."""

    def __init__(self, pieces: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        super().__init__(pieces, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def in_time(message: Message) -> None:
            # A reader that takes nothing would keep one of `limits.event_streams` for good.
            async with asyncio.timeout(SEND_S_MAX):
                await send(message)

        try:
            with contextlib.suppress(TimeoutError, ClientDisconnect):
                await super().__call__(scope, receive, in_time)
        finally:
            self._ended()


def number(request: Request, name: str, most: int) -> int | None:
    """A whole number of the query. Raises InvalidRequest."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) > most:
        raise InvalidRequest(f"{name} is {text[:32]!r}: give a whole number from 0 to {most}")
    return int(text)


_WAIT = Query("wait", schemas.Wait, "milliseconds to wait for the restore gate")
_PARTITION = Query("partition", schemas.Partition, "only this partition")
_R = ControlRoutes
CALLS: tuple[ApiCall, ...] = (
    ApiCall("GET", "/v1/hello", "read", "protocol, features, limits, instance", _R.hello),
    ApiCall("GET", "/v1/openapi.json", "read", "this document", _R.openapi),
    ApiCall("GET", "/v1/stores", "read", "the declared stores", _R.stores),
    ApiCall("PUT", "/v1/stores", "write", "declare stores; repeated: unchanged", _R.put_stores, schemas.Stores),
    ApiCall("GET", "/v1/assignment", "read", "the assignment, and the state of each task", _R.assignment),
    ApiCall(
        "PUT",
        "/v1/assignment",
        "write",
        "hold exactly these tasks under a generation; repeated: unchanged",
        _R.put_assignment,
        schemas.Assignment,
    ),
    ApiCall("POST", "/v1/revoke", "write", "close tasks and return their final positions", _R.revoke, schemas.Revoke),
    ApiCall("POST", "/v1/heartbeat", "write", "renew the lease of a generation", _R.heartbeat, schemas.Heartbeat),
    ApiCall("GET", "/v1/ready", "read", "wait for the restore gate, as a long poll", _R.ready, query=(_WAIT,)),
    ApiCall("GET", "/v1/events", "read", "Server-Sent Events", _R.events, statuses=(429, 503)),
    ApiCall("POST", "/v1/schedule", "write", "start a punctuator of an active task", _R.schedule, schemas.Schedule),
    ApiCall("DELETE", "/v1/schedule/{id}", "write", "end a punctuator", _R.unschedule, statuses=(400, 404)),
    ApiCall("GET", "/v1/status", "read", "the status of the whole sidecar", status),
    ApiCall("GET", "/v1/tasks", "read", "the tasks of the status", tasks),
    ApiCall("GET", "/v1/lags", "read", "position, end and lag of each store", _R.lags),
    ApiCall("GET", "/v1/locate", "read", "which members hold which tasks", _R.locate, query=(_PARTITION,)),
    ApiCall("GET", "/v1/stores/{name}/{verb}", "read", "rows for people: get, scan, fetch", rows),
    ApiCall(
        "POST",
        "/v1/verify",
        "admin",
        "compare stores with their changelogs",
        _R.verify,
        schemas.Verify,
        statuses=(400, 404, 409, 503),
    ),
    ApiCall("POST", "/v1/snapshots", "admin", "copy the files of the active tasks", _R.snapshot, schemas.Snapshot),
    ApiCall("GET", "/v1/snapshots", "read", "the existing copies", _R.snapshots),
    ApiCall("POST", "/v1/drain", "admin", "take no more work and close the tasks", _R.drain, schemas.Drain),
    ApiCall("POST", "/v1/wipe", "admin", "set a task's files aside and restore it", _R.wipe, schemas.Wipe),
)
