"""The door of a session's HTTP server: a listening socket, and the rules of its guard.

    socket ──> uvicorn (h11, limits) ──> Guard (host, token or user) ──> bounded ──> application

    on loopback       this user and root read everything, other users of the machine everything but rows
    beyond loopback   /livez, /startupz, /readyz and /metrics, and with a token the rest

Rules of this file: the rules of a session's door; `ops/security` judges by them, as it does for a sidecar. Where the
kernel does not know the user of a connection (containers, proxies), its caller is a stranger. Tokens and TLS files are
read again now and then; new ones that cannot be used leave the old ones, with an error in the log.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from standfast.ops.security.http_guard import GuardRules
from standfast.ops.security.tls import ServerTls
from standfast.ops.security.tokens import OWNER, Actor, Role, Tokens
from standfast.ops.shared.extras import SERVE, require
from standfast.ops.shared.loopback import is_loopback
from standfast.ops.shared.serve_files import listen_tcp
from standfast.store.errors import BadConfig
from standfast.store.log import as_event, logger
from standfast.stream.http_port import LOOPBACK, http_problems

HOLDER = Actor("token", Role.READ)
STRANGER = Actor("stranger", Role.READ, frozenset())  # health, metrics, status and the page, and no store's rows


class Door:
    """A listening socket for a server; `port` 0 takes a free one.

    `token_file`, `tls`: see `http_token_file` and `http_tls` of a session. Raises Held if the port is taken, BadConfig
    without the extra `serve`, for files that cannot be used, and for a host beyond loopback without `allow_remote`.
    """

    def __init__(
        self,
        port: int,
        host: str = LOOPBACK,
        *,
        token_file: str | os.PathLike[str] | None = None,
        tls: Mapping[str, Any] | None = None,
        allow_remote: bool = False,
    ) -> None:
        require("serve", *SERVE)
        problems = http_problems(port, host, token_file, tls)
        self.host = host
        self._remote = isinstance(host, str) and not is_loopback(host)
        if self._remote and not allow_remote:
            problems.append(
                f"host {host!r} is reachable from other machines: use {LOOPBACK}, or pass allow_remote=True; there "
                "everything but health and metrics needs a token (token_file=)"
            )
        if problems:
            raise BadConfig(problems)
        self.tokens = Tokens(None if token_file is None else Path(token_file), alone=HOLDER)
        self.tls = None if tls is None else _server_tls(tls)
        self._failed = ""
        self.socket: socket.socket = listen_tcp(host, port)
        self.port = int(self.socket.getsockname()[1])

    @property
    def scheme(self) -> str:
        """http or https."""
        return "http" if self.tls is None else "https"

    def rules(self) -> GuardRules:
        """The rules of its guard."""
        how = "give a token, Authorization: Bearer TOKEN (--token-file FILE of the command line)"
        if not self.tokens.from_file:
            how += "; this server has one for its own user's tools only: set http_token_file"
        return GuardRules(
            # Beyond loopback names are the network's: a page of another site has no token there.
            hosts=None if self._remote else frozenset({"localhost"}),
            anyone=None if self._remote else OWNER,
            uids=frozenset({os.getuid(), 0}),
            users="the one that this server runs as",
            stranger=None if self._remote else STRANGER,
            how=how,
        )

    def reload(self) -> None:
        """Read the files of tokens and TLS again."""
        try:
            self.tokens.reload()
            if self.tls is not None:
                self.tls.reload()
        except BadConfig as error:
            if str(error) != self._failed:  # once for each cause, and not every half minute
                logger.error("http: %s; the former files count on", error, extra=as_event("http_reload_failed"))
            self._failed = str(error)
        else:
            self._failed = ""

    def close(self) -> None:
        """Listen no more. Closing twice is fine."""
        self.socket.close()


def _server_tls(given: Mapping[str, Any]) -> ServerTls:
    paths = {name: Path(path) for name, path in given.items() if name != "client_names" and path is not None}
    return ServerTls(
        paths["certificate"],
        paths["key_file"],
        key_password=paths.get("key_password_file"),
        client_ca=paths.get("client_ca"),
        client_names=tuple(given.get("client_names") or ()),
    )
