"""The guard of every HTTP server of standfast: checks the requested Host, the page of origin, the token and its role.

    request ──> Host is ours? ──> a change: Origin is ours or on the list? ──> token ──> role of this path ──> the API
                 421 BAD_HOST       403 BAD_ORIGIN                             401 NOAUTH   403 NOPERM

    /livez /startupz /readyz /metrics        no token        GET, HEAD of anything else           read
    stores, assignment, revoke, schedule     write           drain, wipe, verify, snapshots       admin

Rules of this file: decides from method, path and headers, and answers refusals itself as JSON; an ASGI layer around any
application, a sidecar's and a session's. The caller stands in `scope["actor"]`. Every change and every refusal is
audited, of a request only its method, the first two parts of its path, and the outcome.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from standfast.ops.security.audit import Audit
from standfast.ops.security.peer_uid import uid_of_peer
from standfast.ops.security.tokens import OWNER, READER, Actor, Role, Tokens, bearer
from standfast.ops.shared.loopback import is_loopback

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
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/@\s]+))(?::[0-9]{1,5})?").fullmatch
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
    (every user can reach a port on loopback), called `users` in refusals; None: all of them. `stranger`: the actor of
    any other request without a token, as far as its rights go; None: such a request is refused. `how`: the way out.
    """

    hosts: frozenset[str] | None = None
    origins: frozenset[str] = frozenset()
    anyone: Actor | None = OWNER
    uids: frozenset[int] | None = None
    users: str = "in serve.uids"
    stranger: Actor | None = None
    how: str = "give a token, Authorization: Bearer TOKEN"

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

    def without_token(self, scope: Scope, needed: Role) -> Actor | Refusal:
        """The actor of a request without a token, or a refusal."""
        why = self._unknown(scope)
        if why is None and self.anyone is not None:
            return self.anyone
        if self.stranger is not None and self.stranger.may(needed, store_of(scope["path"])):
            return self.stranger
        return Refusal(401, "NOAUTH", self.how if why is None else f"{why}: {self.how}")

    def _unknown(self, scope: Scope) -> str | None:
        """The reason for which the user of a connection is not let in by the machine's own word, or None."""
        if self.anyone is None or self.uids is None:
            return None
        client, server = scope.get("client"), scope.get("server")
        uid = uid_of_peer((client[0], client[1]), (server[0], server[1])) if client and server else None
        if uid is None:
            return "the user of the connection is unknown"
        return None if uid in self.uids else f"user {uid} of this machine is not {self.users}"


class HttpGuard:
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
            found = self._caller(scope, needed)
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

    def _caller(self, scope: Scope, needed: Role) -> Actor | Refusal:
        token = bearer(scope["headers"])
        if token is None:
            return self._rules.without_token(scope, needed)
        return self._tokens.find(token) or Refusal(401, "NOAUTH", "the token is unknown or was removed")


def is_admin(scope: Scope) -> bool:
    """Whether the caller, as a guard found it, has the rights of an administrator."""
    actor = scope.get("actor")
    return isinstance(actor, Actor) and actor.may(Role.ADMIN)


def readable(scope: Scope) -> frozenset[str] | None:
    """The stores whose rows the caller, as a guard found it, may read; None: all of them."""
    actor = scope.get("actor")
    return actor.stores if isinstance(actor, Actor) else frozenset()


def _shown_path(path: str) -> str:
    """The part of a path that may be logged: the rest holds names of stores, and keys."""
    parts = path.split("/")
    return "/".join(parts[: 2 if parts[1:2] == ["peek"] else 3])[:60]


def _no_permission(needed: Role) -> Refusal:
    return Refusal(403, "NOPERM", f"the caller needs the role {needed.name.lower()}, or may not use this store")


async def _answer(refusal: Refusal, send: Send) -> None:
    reason = refusal.reason
    document = {"schema": ERROR_SCHEMA, "error": reason, "reason": reason, "message": refusal.message}
    body = json.dumps(document).encode() + b"\n"
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *STANDING]
    if refusal.status == 401:
        # Basic as well, because browsers ask for a password only then.
        headers.append((b"www-authenticate", b'Basic realm="standfast", charset="UTF-8"'))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _all(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in headers if name.lower() == wanted]


def _bare_host(host: str) -> str | None:
    """The name of a Host header without its port; None for a text that is no name and port."""
    # Read to its end: of "[::1].evil.example" a browser takes another machine than of the part in brackets.
    found = _HOST(host)
    return None if found is None else (found[1] or found[2]).lower()
