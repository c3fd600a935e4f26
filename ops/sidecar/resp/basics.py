"""Commands about the connection itself: those that clients send when they connect, and those of people.

    HELLO [2|3 [AUTH store token] [SETNAME name]]   AUTH [store] token   SELECT partition   RESET   QUIT   PING   ECHO
    CLIENT ID|SETNAME|GETNAME|SETINFO|INFO   COMMAND [COUNT|DOCS|INFO|LIST]   INFO [section ...]   CONFIG GET

Rules of this file: nothing here reads or writes rows. The user of AUTH is the connection's default store; the token
counts only where tokens are configured. The first line of a command's docstring is its summary in COMMAND DOCS.
"""

from __future__ import annotations

import os

from standfast.ops.shared.error_codes import BAD_REQUEST, NOPERM, WRONGPASS, Refused
from standfast.ops.sidecar.resp.arguments import name, whole
from standfast.ops.sidecar.resp.connection import Answer, Command, Connection
from standfast.ops.sidecar.resp.replies import NIL, OK, PONG, RESET, Value, bulk, encode, integer, plain_error, replies
from standfast.ops.sidecar.resp.stores import EVERYTHING

PARTITION_MAX = 2**31 - 1
LABEL_MAX_BYTES = 128
NO_STORE = b"default"  # the user that clients send when they have none
REDIS_VERSION = "7.0.0"  # the release whose protocol this is, for clients that ask
# redis-cli and graphical clients sort their help by these groups.
_CONNECTION = "HELLO AUTH QUIT RESET SELECT PING ECHO CLIENT"
_GENERIC = "DEL UNLINK EXISTS TYPE TTL PTTL EXPIRETIME PEXPIRETIME KEYS SCAN"
_GROUPS: dict[str, str] = {
    **dict.fromkeys(_CONNECTION.split(), "connection"),
    **dict.fromkeys(_GENERIC.split(), "generic"),
}
_GROUP_OF_KIND: dict[str, str] = {"multi": "transactions", "read": "string", "write": "string"}


def hello(c: Connection, args: list[bytes]) -> Answer:
    """HELLO: choose the version of the protocol, and authenticate."""
    version, at, auth_args, label = c.version, 1, None, None
    if len(args) > 1:
        if args[1] not in (b"2", b"3"):
            return plain_error("NOPROTO unsupported protocol version")
        version, at = int(args[1]), 2
    while at < len(args):
        option = args[at].upper()
        if option == b"AUTH" and at + 2 < len(args):
            auth_args, at = (args[at + 1], args[at + 2]), at + 3
        elif option == b"SETNAME" and at + 1 < len(args):
            label, at = args[at + 1], at + 2
        else:
            raise Refused(BAD_REQUEST, "syntax error in HELLO: expected AUTH store token, SETNAME name")
    # Before the refusal below: HELLO with AUTH is how clients log in.
    if auth_args is not None:
        _authenticate(c, *auth_args)
    if c.stores.grant is None:
        return plain_error("NOAUTH HELLO must be called by an authenticated client: HELLO 3 AUTH store token")
    if label is not None:
        _set_label(c, label)
    c.version, c.nil = version, NIL[version]
    found: dict[str, Value] = {
        "server": "standfast",
        "version": REDIS_VERSION,
        "standfast": c.context.version,
        "proto": version,
        "id": c.id,
        "mode": "standalone",
        "role": "master",
        "modules": [],
    }
    return encode(found, version)


def auth(c: Connection, args: list[bytes]) -> Answer:
    """AUTH [store] token."""
    store, token = (args[1], args[2]) if len(args) == 3 else (NO_STORE, args[1])
    _authenticate(c, store, token)
    return OK


def _authenticate(c: Connection, store: bytes, token: bytes) -> None:
    named = None if store in (NO_STORE, b"") else name(store)
    authenticate = c.context.authenticate
    grant = EVERYTHING if authenticate is None else authenticate(token)
    if grant is None:
        raise Refused(WRONGPASS, "invalid username-password pair: the token is not known here")
    if named is not None and grant.stores is not None and named not in grant.stores:
        raise Refused(NOPERM, f"the token of {grant.name!r} does not allow store {named!r}")
    c.authenticated(grant, token)
    # The user of AUTH is the default store, so that a client of one store needs no command of ours.
    c.binding.store = named
    # The look-ups were made with the rights of the token before.
    c.stores.forget()
    c.engine.select(c.binding, c.binding.partition)


def select(c: Connection, args: list[bytes]) -> Answer:
    """SELECT partition: the database number is the partition."""
    # Clients replay SELECT on reconnecting, so the partition survives a lost connection.
    c.engine.select(c.binding, whole(args[1], "the database number (the partition)", most=PARTITION_MAX))
    c.stores.forget()
    return OK


def reset(c: Connection, args: list[bytes]) -> Answer:
    """RESET: as a new connection."""
    if c.in_multi:
        c.end_multi()
    c.engine.reset(c.binding)
    c.stores.forget()
    c.version, c.nil, c.label = 2, NIL[2], b""
    c.stores.grant = EVERYTHING if c.context.authenticate is None else None
    return RESET


def quit_(c: Connection, args: list[bytes]) -> Answer:
    """QUIT: uncommitted writes are discarded."""
    c.ending = True
    return OK


def ping(c: Connection, args: list[bytes]) -> Answer:
    """PING [message]."""
    return PONG if len(args) == 1 else bulk(args[1])


def echo(c: Connection, args: list[bytes]) -> Answer:
    """ECHO message."""
    return bulk(args[1])


def client(c: Connection, args: list[bytes]) -> Answer:
    """CLIENT: the subcommands that libraries send on connecting, and no more."""
    what = args[1].upper()
    if what == b"ID" and len(args) == 2:
        return integer(c.id)
    # Client libraries send their name and version on connecting.
    if what == b"SETINFO" and len(args) == 4:
        return OK
    if what == b"SETNAME" and len(args) == 3:
        _set_label(c, args[2])
        return OK
    if what == b"GETNAME" and len(args) == 2:
        return bulk(c.label) if c.label else c.nil
    if what == b"INFO" and len(args) == 2:
        return bulk(b"id=%d name=%b db=%d resp=%d\n" % (c.id, c.label, c.binding.partition, c.version))
    raise Refused(BAD_REQUEST, "CLIENT has ID, SETNAME, GETNAME, SETINFO and INFO here")


def _set_label(c: Connection, label: bytes) -> None:
    # A space or line feed in a name would forge fields of CLIENT INFO.
    if len(label) > LABEL_MAX_BYTES or any(not 33 <= byte <= 126 for byte in label):
        raise Refused(BAD_REQUEST, f"Client names are at most {LABEL_MAX_BYTES} visible characters without spaces")
    c.label = label


def command(c: Connection, args: list[bytes]) -> Answer:
    """COMMAND: the commands there are."""
    what = args[1].upper() if len(args) > 1 else b""
    listed = {one.name: one for one in c.context.table.values() if one.kind != "refused"}
    if what == b"COUNT":
        return integer(len(listed))
    if what == b"DOCS":
        names = [raw.decode("ascii", "replace").upper() for raw in args[2:]] or sorted(listed)
        return encode({one.lower(): _documented(listed[one]) for one in names if one in listed}, c.version)
    if what == b"LIST":
        return encode(sorted(listed), c.version)
    if what == b"INFO" and len(args) > 2:
        wanted = [listed.get(raw.decode("ascii", "replace").upper()) for raw in args[2:]]
    elif what in (b"", b"INFO"):
        wanted = [listed[known] for known in sorted(listed)]
    else:
        raise Refused(BAD_REQUEST, "COMMAND has COUNT, DOCS, LIST and INFO here")
    return replies([c.nil if one is None else _described(one) for one in wanted])


def _described(one: Command) -> bytes:
    flag = {"read": "readonly", "write": "write"}.get(one.kind, "fast")
    return encode([one.name.lower(), _arity(one), [flag], 0, 0, 0], 2)


def _arity(one: Command) -> int:
    return one.least if one.least == one.most else -one.least


def _documented(one: Command) -> dict[str, Value]:
    """The entry of a command for redis-cli and graphical clients: its usage, from the handler's docstring."""
    group = "module" if one.name.startswith("SF.") else _GROUPS.get(one.name, _GROUP_OF_KIND.get(one.kind, "server"))
    first = (one.handler.__doc__ or one.name).strip().partition("\n")[0]
    usage = first if first.endswith("...") else first.removesuffix(".")
    return {"summary": usage, "since": "1.0.0", "group": group, "arity": _arity(one)}


def info(c: Connection, args: list[bytes]) -> Answer:
    """INFO [section ...]: a few lines of text that clients look for."""
    engine = c.engine
    statistics = engine.statistics()
    sections = {
        "Server": [
            f"redis_version:{REDIS_VERSION}",
            f"standfast_version:{c.context.version}",
            "redis_mode:standalone",
            f"process_id:{os.getpid()}",
        ],
        "Clients": [f"connected_clients:{statistics.sessions}"],
        # ioredis reads `loading` before it sends commands.
        "Persistence": ["loading:0"],
        "Stats": [
            f"total_commands_processed:{sum(statistics.calls.values())}",
            f"total_commits:{statistics.commits}",
        ],
        "Replication": ["role:master"],
        "Cluster": ["cluster_enabled:0"],
        "Standfast": [f"generation:{engine.generation}", f"draining:{int(engine.draining)}"],
        # Graphical clients list a store only if its database is said to have keys.
        "Keyspace": [f"db{number}:keys={keys},expires=0,avg_ttl=0" for number, keys in _keyspace(c).items() if keys],
    }
    asked = {raw.decode("ascii", "replace").lower() for raw in args[1:]}
    if asked and not asked & {"all", "everything", "default"}:
        sections = {title: lines for title, lines in sections.items() if title.lower() in asked}
    return bulk(
        "\r\n".join(
            f"# {title}\r\n" + "".join(f"{line}\r\n" for line in lines) for title, lines in sections.items()
        ).encode()
    )


def _keyspace(c: Connection) -> dict[int, int]:
    """Estimated rows of the default store by partition; nothing where the token may not read it."""
    store, grant = c.binding.store, c.stores.grant
    if store is None or (grant is not None and grant.stores is not None and store not in grant.stores):
        return {}
    return c.engine.estimates(store)


def config(c: Connection, args: list[bytes]) -> Answer:
    """CONFIG GET: nothing of Redis's settings is there."""
    if args[1].upper() != b"GET" or len(args) < 3:
        raise Refused(
            BAD_REQUEST, "CONFIG has GET here, which finds nothing: the settings are in the sidecar's own file"
        )
    return encode({}, c.version)
