"""The sidecar's HTTP server: the application of every instance plus control calls, behind a guard.

    socket ──> uvicorn (h11, limits) ──> Guard (host, origin, token, role) ──> bounded ──> application

Rules of this file: puts the parts together; the answers are made in `ops/http/application.py` and
`ops/sidecar/control/routes.py`. Health is judged on the loop from the results of the last round, so that a probe never
waits for the log or a lock.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterable
from dataclasses import replace

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from standfast.ops.config.types import Config
from standfast.ops.http.application import HEALTH, HttpServer, answering, bounded, named
from standfast.ops.http.application import application as of_instance
from standfast.ops.http.protocol import timed
from standfast.ops.observe.metrics_servers import HttpNumbers, counted
from standfast.ops.security.audit import Audit
from standfast.ops.security.http_guard import GuardRules, HttpGuard
from standfast.ops.security.tls import ServerTls, guarded
from standfast.ops.security.tokens import OWNER, Tokens
from standfast.ops.sidecar.control.routes import CALLS, ApiCall, ControlRoutes
from standfast.ops.sidecar.serve_resp import uids_of_group

KEEP_ALIVE_S = 30
DRAIN = "/v1/drain"
QUIT = "/quitquitquit"  # the path by which service meshes report to a sidecar that its application is done


def application(routes: ControlRoutes, more: Iterable[Route] = (), *, allow_quit: bool = False) -> Starlette:
    """The application, without its guard. `more`: routes of the page; `allow_quit`: QUIT is another name of DRAIN."""
    calls = [*CALLS, *(replace(call, path=QUIT) for call in CALLS if allow_quit and call.path == DRAIN)]

    def control(call: ApiCall) -> Route:
        async def handle(request: Request) -> Response:
            return await routes.respond(call, request)

        return Route(call.path, answering(handle), methods=[call.method])

    return of_instance(routes, [*map(control, calls), *more])


class SidecarHttp:
    """The sidecar's HTTP server, from start to close."""

    def __init__(
        self, app: Starlette, config: Config, instance: str, tokens: Tokens, audit: Audit, numbers: HttpNumbers
    ) -> None:
        # A page of another site can reach loopback under a name of its own (DNS rebinding): only local names are
        # served.
        hosts = None if config.http.allow_remote else frozenset({"localhost"})
        anyone = None if tokens.from_file else OWNER
        # A port on loopback is open to every user of this machine; the socket beside it is not.
        listed = config.serve.uids or uids_of_group(config.serve.group)
        uids = None if config.http.allow_remote else frozenset({os.getuid(), 0, *listed})
        rules = GuardRules(hosts=hosts, origins=frozenset(config.http.origins), anyone=anyone, uids=uids)
        self.tls = _tls(config)
        most = config.limits.http_connections
        # Idle connections make room for new ones: while they did not, a server full of them answered probes with 503,
        # and the sidecar was restarted for it.
        protocol = timed(config.limits.http_timeout_ms / 1_000, connections_max=most)
        # Probes are answered beside a full server: a busy sidecar must not be restarted because it is busy.
        guard = HttpGuard(bounded(app, most, " (limits.http_connections)", beside=HEALTH), rules, tokens, audit)
        settings = uvicorn.Config(
            counted(named(guard, instance), numbers),
            http=protocol if self.tls is None else guarded(protocol, self.tls),
            ws="none",
            loop="none",
            lifespan="off",
            # uvicorn's own form of lines is no JSON where `logging.format` asks for it.
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # else any user of this machine may say that it is another one
            h11_max_incomplete_event_size=config.limits.http_head_max_bytes,
            timeout_keep_alive=KEEP_ALIVE_S,
            # A request that hangs in the log must not use up the deadline of a stop.
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
            # A server that ended before it started has raised: awaiting its task raises the error here.
            if self._task.done():
                await self._task
            await asyncio.sleep(0.005)

    async def close(self) -> None:
        """Finish requests under way, then end."""
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
