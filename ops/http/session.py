"""A session behind the HTTP application: its answers, and the limits of every instance's server.

Rules of this file: a call that takes the session's lock, or asks the log, runs in a thread: a hang there shows as a
time-out of that request, and at most CONNECTIONS_MAX of them hang.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Protocol

import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from standfast.ops.http.application import (
    HEALTH,
    AnsweringInstance,
    App,
    HttpServer,
    Json,
    Message,
    Receive,
    Send,
    answer,
    answering,
    application,
    bounded,
    named,
    rows,
    status,
    tasks,
)
from standfast.ops.http.door import Door
from standfast.ops.http.protocol import timed
from standfast.ops.http.rows import ROW_PATHS, Rows
from standfast.ops.observe.health import Health, HealthFacts, of_session, startup
from standfast.ops.observe.metrics import SessionMetrics
from standfast.ops.observe.placement import move_events
from standfast.ops.observe.status import not_ready_reasons, status_document
from standfast.ops.page.page import OpsPage
from standfast.ops.security.audit import Audit
from standfast.ops.security.http_guard import HttpGuard
from standfast.ops.security.tls import guarded
from standfast.ops.shared.error_codes import BAD_REQUEST, ERROR_SCHEMA
from standfast.ops.shared.in_thread import in_thread
from standfast.store.base.version import __version__
from standfast.store.clock import Clock
from standfast.store.errors import StandfastError
from standfast.stream.session.session import Session

URL_BYTES_MAX = 8 << 10
HEAD_BYTES_MAX = 32 << 10
CONNECTIONS_MAX = 32
REQUEST_S = 10.0
PATHS = {"/v1/status": status, "/v1/tasks": tasks, "/v1/stores/{rows:path}": rows}
HELP = f"the paths are /, /metrics, /livez, /readyz, /v1/status, /v1/tasks, {', '.join(ROW_PATHS)}"


class SessionInstance:
    """The `AnsweringInstance` of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._rows = Rows(session)
        self._metrics = SessionMetrics(session)

    async def health(self, path: str, exclude: Collection[str]) -> Health:
        if path == "/startupz":
            return startup(HealthFacts(), exclude)  # the port is served only once the session is there
        return await in_thread(partial(self._health, path.strip("/z"), exclude))

    def _health(self, what: str, exclude: Collection[str]) -> Health:
        try:
            # Takes the session's lock and checks its background work, but asks neither log nor disk, so that a slow
            # log does not take the instance out of service.
            tasks = self._session.all_tasks().values()
            wrong = not_ready_reasons(self._session.missing(), tasks) if what == "ready" else []
            if what == "ready" and (no_room := self._session.disk.room.text):
                wrong.append(no_room)
        except StandfastError as error:
            wrong = [str(error)]
        return of_session(what, wrong, exclude)

    async def scrape(self) -> bytes:
        return await in_thread(self._metrics.exposition)

    async def status(self) -> Json:
        return await in_thread(self._status)

    def _status(self) -> Json:
        return status_document(self._session.statistics())

    async def rows(self, request: Request) -> Response:
        path, query = request.scope["raw_path"].decode("ascii"), request.scope["query_string"].decode("ascii")
        return answer(200, await in_thread(lambda: self._rows.document(path, query)))

    def page_status(self) -> Json:
        """The status, with the version and, where a leader moves tasks, its moves as the events that the page shows."""
        status = self._status()
        events = {} if status["placement"] is None else {"events": move_events(status["placement"])}
        return status | {"version": __version__} | events


class PagedInstance(AnsweringInstance, Protocol):
    """An instance with a page."""

    def page_status(self) -> Json:
        """The status with the additions of the page; called in a thread."""
        ...


def session_server(session: Session, door: Door) -> HttpServer:
    """A server of a session behind its door's guard, to be run on a loop."""
    return instance_server(SessionInstance(session), door, session.instance_id, session.clock)


def instance_server(instance: PagedInstance, door: Door, instance_id: str, clock: Clock) -> HttpServer:
    """A server of an instance behind its door's guard, to be run on a loop."""
    page = OpsPage(instance.page_status)
    routes = [Route(path, answering(partial(handler, instance)), methods=["GET"]) for path, handler in PATHS.items()]
    app = application(instance, [*routes, *page.routes], health_as_json=True, help=HELP)
    guard = HttpGuard(_short(bounded(app, CONNECTIONS_MAX, "", beside=HEALTH)), door.rules(), door.tokens, Audit(clock))
    protocol = timed(REQUEST_S, connections_max=CONNECTIONS_MAX)
    settings = uvicorn.Config(
        named(guard, instance_id),
        http=protocol if door.tls is None else guarded(protocol, door.tls),
        ws="none",
        lifespan="off",
        log_config=None,  # uvicorn's own configuration would replace the handlers of its loggers
        access_log=False,
        server_header=False,
        proxy_headers=False,  # else a header could name another user's end of the connection
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        timeout_graceful_shutdown=1,  # a request may wait for the session's lock; the close does not wait for it longer
    )
    settings.load()
    if door.tls is not None:
        settings.ssl = door.tls.context
    server = HttpServer(settings)
    server.ending = page.close
    return server


def _short(app: App) -> App:
    """Reject long paths."""

    async def wrapped(scope: Message, receive: Receive, send: Send) -> None:
        if len(scope["raw_path"]) + len(scope["query_string"]) <= URL_BYTES_MAX:
            await app(scope, receive, send)
            return
        message = f"the path is longer than {URL_BYTES_MAX} bytes"
        document = {"schema": ERROR_SCHEMA, "error": "BadRequest", "reason": BAD_REQUEST.name, "message": message}
        await answer(414, document)(scope, receive, send)

    return wrapped
