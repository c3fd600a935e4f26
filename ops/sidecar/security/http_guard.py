"""The HTTP API's guard: checks the requested Host, the page of origin, the token and its role.

    request ──> Host is ours? ──> a change: Origin is ours or on the list? ──> token ──> role of this path ──> the API
                 421 BAD_HOST       403 BAD_ORIGIN                             401 NOAUTH   403 NOPERM

    /livez /startupz /readyz /metrics        no token        GET, HEAD of anything else           read
    stores, assignment, revoke, schedule     write           drain, wipe, verify, snapshots       admin

Rules of this file: decides from method, path and headers, and answers refusals itself as JSON; an ASGI layer around any
application. The caller stands in `scope["actor"]`. Every change and every refusal is audited, of a request only its
method, the first two parts of its path, and the outcome.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from standfast.ops.shared.loopback import is_loopback
from standfast.ops.sidecar.security.audit import Audit
from standfast.ops.sidecar.security.peer_uid import uid_of_peer
from standfast.ops.sidecar.security.tokens import OWNER, READER, Actor, Role, Tokens, bearer

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

ERROR_SCHEMA = "standfast.error/1"
SAFE = frozenset({"GET", "HEAD"})
OPEN_PATHS = frozenset({"/livez", "/startupz", "/readyz", "/metrics"})
ADMIN_PATHS = ("/v1/drain", "/v1/wipe", "/v1/verify", "/v1/snapshots", "/drain", "/quitquitquit")
QUIET_PATHS = frozenset({"/v1/heartbeat"})  # changes that come all the time
STANDING = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused request: status, error code and message."""

    status: int
    reason: str
    message: str


def role_needed(method: str, path: str) -> Role | None:
    """The role that a request needs; None for a path that needs no token."""
    if method in SAFE:
        return None if path in OPEN_PATHS else Role.READ
    admin = any(path == one or path.startswith(f"{one}/") for one in ADMIN_PATHS)
    return Role.ADMIN if admin else Role.WRITE


def store_of(path: str) -> str | None:
    """The store that a path under /v1/stores/ or /peek/ is about."""
    parts = path.split("/")
    if parts[1:2] == ["peek"]:
        return parts[2] if len(parts) > 2 else None
    return parts[3] if len(parts) > 3 and parts[1:3] == ["v1", "stores"] else None


@dataclass(frozen=True, slots=True)
class GuardRules:
    """The rules. `hosts`: names of ours in the Host header; None: any (behind TLS names are the certificate's).

    `anyone`: the actor of a request without a token; None: there is none. `uids`: the users of this machine who get it
    (every user can reach a port on loopback); None: all of them.
    """

    hosts: frozenset[str] | None = None
    origins: frozenset[str] = frozenset()
    anyone: Actor | None = OWNER
    uids: frozenset[int] | None = None

    def host_refusal(self, headers: Headers) -> Refusal | None:
        """Refuse a Host that is not ours: a page of another site may point its own name at us."""
        given = _all(headers, b"host")
        bare = _bare_host(given[0]) if len(given) == 1 else None
        if bare is not None and (self.hosts is None or bare in self.hosts or is_loopback(bare)):
            return None
        return Refusal(421, "BAD_HOST", "the Host header names another machine: use 127.0.0.1 or localhost")

    def origin_refusal(self, method: str, headers: Headers, scheme: str) -> Refusal | None:
        """Refuse a change from a browser's page unless the page is our own or on the list."""
        if method in SAFE:
            return None
        origins, sites = _all(headers, b"origin"), _all(headers, b"sec-fetch-site")
        # Our own page is same-origin by its Host, whichever name it was opened under.
        own = {f"{scheme}://{host.lower()}" for host in _all(headers, b"host")}
        if origins:
            allowed = len(origins) == 1 and (origins[0].lower() in own or origins[0] in self.origins)
        else:
            # A client that is no browser sends neither header.
            allowed = all(site in ("same-origin", "none") for site in sites)
        if allowed:
            return None
        return Refusal(403, "BAD_ORIGIN", "a page of another origin may not change anything here: see http.origins")

    def without_token(self, scope: Scope) -> Actor | Refusal:
        """The actor of a request without a token, or a refusal."""
        if self.anyone is None:
            return Refusal(401, "NOAUTH", "give a token: Authorization: Bearer TOKEN")
        if self.uids is None:
            return self.anyone
        client, server = scope.get("client"), scope.get("server")
        uid = uid_of_peer((client[0], client[1]), (server[0], server[1])) if client and server else None
        if uid in self.uids:
            return self.anyone
        who = (
            "the user of the connection is unknown"
            if uid is None
            else f"user {uid} of this machine is not in serve.uids"
        )
        return Refusal(401, "NOAUTH", f"{who}: give a token, Authorization: Bearer TOKEN")


class Guard:
    """An ASGI layer: passes a request on, or answers with a refusal that is audited."""

    def __init__(self, app: App, rules: GuardRules, tokens: Tokens, audit: Audit) -> None:
        self._app = app
        self._rules = rules
        self._tokens = tokens
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise AssertionError(f"no server for {scope['type']}")
        found = self.judge(scope)
        if isinstance(found, Refusal):
            await _answer(found, send)
            return
        scope["actor"] = found
        changes = scope["method"] not in SAFE and scope["path"] not in QUIET_PATHS
        await self._app(scope, receive, self._audited(scope, found, send) if changes else send)

    def _audited(self, scope: Scope, actor: Actor, send: Send) -> Send:
        """A `send` that audits the change: its actor and its outcome."""

        async def telling(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                tell = self._audit.done if status < 400 else self._audit.failed
                tell(_shown_path(scope["path"]), actor.name, method=scope["method"][:10], status=status)
            await send(message)

        return telling

    def judge(self, scope: Scope) -> Actor | Refusal:
        """The actor of a request, or the refusal."""
        method, path, headers = scope["method"], scope["path"], scope["headers"]
        rules = self._rules
        refusal = rules.host_refusal(headers) or rules.origin_refusal(method, headers, scope.get("scheme", "http"))
        actor: Actor | None = None
        if refusal is None:
            needed = role_needed(method, path)
            # Probes and scrapes carry no token.
            if needed is None:
                return READER
            found = self._caller(scope)
            if isinstance(found, Actor) and found.may(needed, store_of(path)):
                return found
            actor = found if isinstance(found, Actor) else None
            refusal = found if isinstance(found, Refusal) else _no_permission(needed)
        where = _shown_path(path)
        client = scope.get("client") or ("?", 0)
        self._audit.refused(
            "http",
            actor.name if actor else "unknown",
            reason=refusal.reason,
            method=method[:10],
            path=where,
            peer=client[0],
        )
        return refusal

    def _caller(self, scope: Scope) -> Actor | Refusal:
        token = bearer(scope["headers"])
        if token is None:
            return self._rules.without_token(scope)
        return self._tokens.find(token) or Refusal(401, "NOAUTH", "the token is unknown or was removed")


def is_admin(scope: Scope) -> bool:
    """Whether the caller, as a guard found it, has the rights of an administrator."""
    actor = scope.get("actor")
    return isinstance(actor, Actor) and actor.may(Role.ADMIN)


def _shown_path(path: str) -> str:
    """The part of a path that may be logged: the rest holds names of stores, and keys."""
    parts = path.split("/")
    return "/".join(parts[: 2 if parts[1:2] == ["peek"] else 3])[:60]


def _no_permission(needed: Role) -> Refusal:
    return Refusal(403, "NOPERM", f"the caller needs the role {needed.name.lower()}, or may not use this store")


async def _answer(refusal: Refusal, send: Send) -> None:
    document = {"schema": ERROR_SCHEMA, "error": refusal.reason, "message": refusal.message}
    body = json.dumps(document).encode() + b"\n"
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *STANDING]
    if refusal.status == 401:
        # Basic as well, because browsers ask for a password only then.
        headers.append((b"www-authenticate", b'Basic realm="standfast", charset="UTF-8"'))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _all(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in headers if name.lower() == wanted]


def _bare_host(host: str) -> str:
    return (host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]).lower()
