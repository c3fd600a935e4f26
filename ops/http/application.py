"""The HTTP application of every instance: of a session, a replica, and the sidecar, which adds its control calls.

    socket ──> uvicorn (h11, limits) ──> bounded, named, guards ──> Starlette ──> health, metrics, status, tasks, rows
                                                                             └──> control calls, the page

Rules of this file: it maps requests to an `AnsweringInstance` and back. An error becomes a document by the table of
`error_codes.py`. Nothing blocks the event loop. Requests are not logged: their paths hold keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from standfast.ops.client.client import INSTANCE_HEADER
from standfast.ops.http.protocol import ends_with_client
from standfast.ops.observe.health import Health
from standfast.ops.observe.metrics import CONTENT_TYPE
from standfast.ops.observe.status import tasks_document
from standfast.ops.shared.error_codes import BAD_REQUEST, LIMIT, ErrorCode, NotFound, Refused, error_document, reason_of
from standfast.ops.shared.text import dumps

JSON = "application/json; charset=utf-8"
HEALTH = ("/startupz", "/livez", "/readyz")
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
Json = dict[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
Handler = Callable[[Request], Awaitable[Response]]


class AnsweringInstance(Protocol):
    """The source of the answers for the paths that every instance has. Methods raise errors of the library."""

    async def health(self, path: str, exclude: Collection[str]) -> Health:
        """The answer to a path of HEALTH, without the checks in `exclude`."""
        ...

    async def scrape(self) -> bytes:
        """The metrics as text in the format of CONTENT_TYPE."""
        ...

    async def status(self) -> Json:
        """The status document."""
        ...

    async def rows(self, request: Request) -> Response:
        """The rows selected by a path /v1/stores/NAME/VERB and its query."""
        ...


class MethodNotAllowed(Refused):
    """The path exists, but not for this method."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode(BAD_REQUEST.name, 405, BAD_REQUEST.resp), message)


def application(
    instance: AnsweringInstance,
    more: Iterable[BaseRoute],
    *,
    health_as_json: bool = False,
    help: str = "see /v1/openapi.json",
) -> Starlette:
    """The application without guards. `more`: further routes; `help`: the place where the paths are listed."""

    async def health(request: Request) -> Response:
        excluded = [name for name in request.query_params.getlist("exclude") if name]
        found = await instance.health(request.url.path, excluded)
        return health_response(request, found, as_json=health_as_json)

    async def metrics(request: Request) -> Response:
        return Response(await instance.scrape(), 200, HEADERS, CONTENT_TYPE)

    async def missing(request: Request, error: Exception) -> Response:
        return error_response(NotFound(f"no such path: {help}"))

    async def wrong_method(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        # Starlette gives the methods as a set, in another order each time.
        response = error_response(MethodNotAllowed(f"no such method on this path: {help}"))
        response.headers["Allow"] = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
        return response

    made = Starlette(
        routes=[
            *(Route(path, answering(health), methods=["GET"]) for path in HEALTH),
            Route("/metrics", answering(metrics), methods=["GET"]),
            *more,
        ],
        # Inside of Starlette's own middleware, which answers 500 to any exception.
        middleware=[Middleware(ends_with_client)],
        exception_handlers={404: missing, 405: wrong_method},
    )
    made.router.redirect_slashes = False
    return made


async def status(instance: AnsweringInstance, request: Request, body: Any = None) -> Response:
    """GET /v1/status."""
    return answer(200, await instance.status())


async def tasks(instance: AnsweringInstance, request: Request, body: Any = None) -> Response:
    """GET /v1/tasks: the tasks of the status alone."""
    return answer(200, tasks_document(await instance.status()))


async def rows(instance: AnsweringInstance, request: Request, body: Any = None) -> Response:
    """GET /v1/stores/NAME/get, scan or fetch."""
    return await instance.rows(request)


def answering(handler: Handler) -> Handler:
    """Wrap a handler so that its errors become answers too."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except (ClientDisconnect, asyncio.CancelledError):
            raise  # no client is left to answer; `ends_with_client` counts it
        except Exception as error:  # noqa: BLE001  the server outlives a bug in one answer
            return error_response(error)

    return handle


def answer(status: int, document: Mapping[str, Any]) -> Response:
    """A JSON document."""
    return Response(dumps(document).encode() + b"\n", status, HEADERS, JSON)


def error_response(error: BaseException) -> Response:
    """The answer to an error of any kind."""
    reason = reason_of(error)
    made = answer(reason.http, error_document(error))
    if reason.retry_after_s is not None:
        made.headers["Retry-After"] = str(reason.retry_after_s)
    return made


def health_response(request: Request, health: Health, *, as_json: bool) -> Response:
    """Text for people and probes; JSON if the Accept header names it, or, with `as_json`, unless it names text."""
    status, accept = 200 if health.ok else 503, request.headers.get("accept", "")
    verbose = "verbose" in request.query_params
    if "application/json" in accept or (as_json and "text/" not in accept and not verbose):
        return answer(status, health.document())
    text = health.text(verbose=verbose or not health.ok)
    return Response(text, status, HEADERS, "text/plain; charset=utf-8")


def named(app: App, instance: str) -> App:
    """Name the instance in every answer, so that a client with an outdated info file notices."""
    header = (INSTANCE_HEADER.lower().encode(), instance.encode())

    async def wrapped(scope: Message, receive: Receive, send: Send) -> None:
        async def mark(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        await app(scope, receive, mark)

    return wrapped


def bounded(app: App, most: int, why: str, beside: Collection[str] = ()) -> App:
    """At most `most` requests at a time, including streams and long polls; paths in `beside` are always answered."""
    running = 0

    async def wrapped(scope: Message, receive: Receive, send: Send) -> None:
        nonlocal running
        # A probe that got 503 for the load of other clients would have a busy process started again.
        if scope["path"] in beside:
            await app(scope, receive, send)
            return
        if running >= most:
            refused = Refused(LIMIT, f"{running} requests are in progress, which is the limit{why}")
            await error_response(refused)(scope, receive, send)
            return
        running += 1
        try:
            await app(scope, receive, send)
        finally:
            running -= 1

    return wrapped


class HttpServer(uvicorn.Server):
    """uvicorn in an event loop of ours, which leaves signals to us. `ending` is called on the loop before the server
    waits for open answers."""

    ending: Callable[[], None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for one in sockets or ():
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # a forked child has a copy of the socket, and would keep the port
        # Streams of the page do not end by themselves; uvicorn would wait for them until its time-out.
        if self.ending is not None:
            self.ending()
        await super().shutdown(sockets)
