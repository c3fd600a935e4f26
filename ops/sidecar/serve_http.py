"""The HTTP door of the sidecar: control, health, metrics, in one application on the event loop.

    socket ──> uvicorn (h11, limits) ──> Guard (host, origin, token, role) ──> Starlette ──> control, health, metrics

Rules of this file: puts the parts together; what is answered is in `ops/sidecar/control/routes.py`,
`ops/sidecar/control/answers.py` and `health`. Health is judged on the loop from what the last round left, so that a
probe never waits for the log or a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from dataclasses import replace
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from standfast.ops.client.client import INSTANCE_HEADER
from standfast.ops.config.types import Config
from standfast.ops.observe.health import Facts, Health, live, ready, startup
from standfast.ops.observe.metrics_doors import HttpNumbers, counted
from standfast.ops.shared.reasons import BAD_REQUEST, LIMIT, NotFound, Refused
from standfast.ops.sidecar.control.answers import Answers
from standfast.ops.sidecar.control.routes import CALLS, Call, ControlRoutes, answer, error_response
from standfast.ops.sidecar.security.audit import Audit
from standfast.ops.sidecar.security.http_guard import App, Guard, GuardRules, Receive, Scope, Send
from standfast.ops.sidecar.security.http_protocol import let_go, timed
from standfast.ops.sidecar.security.tls import ServerTls, guarded
from standfast.ops.sidecar.security.tokens import OWNER, Tokens
from standfast.ops.sidecar.serve_resp import uids_of_group

KEEP_ALIVE_S = 30
Judge = Callable[[Facts, Iterable[str]], Health]
HEALTH: dict[str, Judge] = {"/startupz": startup, "/livez": live, "/readyz": ready}
DRAIN = "/v1/drain"
QUIT = "/quitquitquit"  # how meshes tell a sidecar that its application is done


def application(
    routes: ControlRoutes,
    answers: Answers,
    loop_age_ms: Callable[[], int],
    metrics: Callable[[], Awaitable[Response]],
    more: Iterable[Route] = (),
    *,
    allow_quit: bool = False,
) -> Starlette:
    """The application, without its guard. `more`: routes of the page; `allow_quit`: QUIT is another name of DRAIN."""
    calls = [*CALLS, *(replace(call, path=QUIT) for call in CALLS if allow_quit and call.path == DRAIN)]

    def control(call: Call) -> Route:
        async def handle(request: Request) -> Response:
            return await routes.respond(call, request)

        return Route(call.path, handle, methods=[call.method])

    def health(path: str, judge: Judge) -> Route:
        async def handle(request: Request) -> Response:
            excluded = [name for name in request.query_params.getlist("exclude") if name]
            return health_response(request, judge(answers.facts(loop_age_ms=loop_age_ms()), excluded))

        return Route(path, handle, methods=["GET"])

    async def scrape(request: Request) -> Response:
        return await metrics()

    made = Starlette(
        routes=[
            *(control(call) for call in calls),
            *(health(path, judge) for path, judge in HEALTH.items()),
            Route("/metrics", scrape, methods=["GET"]),
            *more,
        ],
        middleware=[Middleware(let_go)],  # within Starlette's own, which answers 500 to whatever is raised
    )
    made.router.redirect_slashes = False

    async def missing(request: Request, error: Exception) -> Response:
        return error_response(NotFound("no such path: see /v1/openapi.json"))

    async def wrong_method(request: Request, error: Exception) -> Response:
        response = error_response(Refused(BAD_REQUEST, "no such method here: see /v1/openapi.json"))
        response.status_code = 405
        allowed = getattr(error, "headers", None) or {}
        response.headers.update({name: value for name, value in allowed.items() if name.lower() == "allow"})
        return response

    made.add_exception_handler(404, missing)
    made.add_exception_handler(405, wrong_method)
    return made


def health_response(request: Request, health: Health) -> Response:
    """Text for people and probes, JSON by the Accept header."""
    status = 200 if health.ok else 503
    if "application/json" in request.headers.get("accept", ""):
        return answer(status, health.document())
    verbose = "verbose" in request.query_params or not health.ok
    return Response(health.text(verbose=verbose), status, {"Cache-Control": "no-store"}, "text/plain; charset=utf-8")


def named(app: App, instance: str) -> App:
    """Every answer names the instance, so that a client of an old info file notices."""
    header = (INSTANCE_HEADER.lower().encode(), instance.encode())

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        async def mark(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        await app(scope, receive, mark)

    return wrapped


def bounded(app: App, most: int) -> App:
    """So many requests at a time, streams and long polls among them; probes are answered beside them."""
    running = 0

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal running
        if scope["path"] in HEALTH:
            await app(scope, receive, send)
            return
        if running >= most:
            refused = Refused(
                LIMIT, f"{running} requests are being answered: that is the limit (limits.http_connections)"
            )
            await error_response(refused)(scope, receive, send)
            return
        running += 1
        try:
            await app(scope, receive, send)
        finally:
            running -= 1

    return wrapped


class HttpServer(uvicorn.Server):
    """uvicorn in our loop: signals are ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpDoor:
    """The door, from start to close."""

    def __init__(
        self, app: Starlette, config: Config, instance: str, tokens: Tokens, audit: Audit, numbers: HttpNumbers
    ) -> None:
        hosts = None if config.http.allow_remote else frozenset({"localhost"})
        anyone = None if tokens.from_file else OWNER
        # A port on loopback is open to every user of this machine; the socket beside it is not.
        listed = config.serve.uids or uids_of_group(config.serve.group)
        uids = None if config.http.allow_remote else frozenset({os.getuid(), 0, *listed})
        rules = GuardRules(hosts=hosts, origins=frozenset(config.http.origins), anyone=anyone, uids=uids)
        self.tls = _tls(config)
        most = config.limits.http_connections
        protocol = timed(config.limits.http_timeout_ms / 1_000, connections_max=most)
        guard = Guard(bounded(app, most), rules, tokens, audit)
        settings = uvicorn.Config(
            counted(named(guard, instance), numbers),
            http=protocol if self.tls is None else guarded(protocol, self.tls),
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # else any user of this machine may say that it is another one
            h11_max_incomplete_event_size=config.limits.http_head_max_bytes,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
        )
        settings.load()
        if self.tls is not None:
            settings.ssl = self.tls.context
        self._server = HttpServer(settings)
        self._task: asyncio.Task[None] | None = None

    async def start(self, listening: socket.socket) -> None:
        """Serve; returns once requests are answered."""
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[listening]))
        while not self._server.started:
            if self._task.done():
                await self._task
            await asyncio.sleep(0.005)

    async def close(self) -> None:
        """Answer what has begun, then end."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task


def _tls(config: Config) -> ServerTls | None:
    http = config.http
    if http.tls_certificate is None or http.tls_key_file is None:
        return None
    return ServerTls(
        http.tls_certificate,
        http.tls_key_file,
        key_password=http.tls_key_password_file,
        client_ca=http.client_ca,
        client_names=http.client_names,
    )
