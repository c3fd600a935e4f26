"""The commands of the RESP server: name, handler, number of arguments; and why others of Redis are not there.

Rules of this file: the only list of commands; those of kinds come from `standfast.ops.shared.kinds`. A command that is
not in it changes nothing and says so.
"""

from __future__ import annotations

from collections.abc import Callable

from standfast.ops.shared.error_codes import BAD_REQUEST, LIMIT, ErrorCode, Refused
from standfast.ops.shared.kinds import MANY, OPS
from standfast.ops.sidecar.engine.statistics import ServerCounters
from standfast.ops.sidecar.resp import basics, browse, keyvalue, multi
from standfast.ops.sidecar.resp import commit as commits
from standfast.ops.sidecar.resp.connection import CROWDED, Answer, Command, Connection, Handler, Run
from standfast.ops.sidecar.resp.requests import SKIPPED
from standfast.ops.sidecar.resp.verbs import handler_of

NAME_SHOWN_MAX = 32

# Verbs of kinds whose handlers are written out: they run most, or page.
_OWN: dict[str, Handler] = {
    "SF.PUT": keyvalue.sf_put,
    "SF.GET": keyvalue.sf_get,
    "SF.DEL": keyvalue.sf_del,
    "SF.RANGE": keyvalue.sf_range,
    "SF.PREFIX": keyvalue.sf_prefix,
}

# name, handler, least and most arguments with the name, kind (see Command)
COMMANDS: tuple[tuple[str, Handler, int, int, str], ...] = (
    ("HELLO", basics.hello, 1, 7, "open"),
    ("AUTH", basics.auth, 2, 3, "open"),
    ("QUIT", basics.quit_, 1, 1, "open"),
    ("RESET", basics.reset, 1, 1, "multi"),
    ("SELECT", basics.select, 2, 2, ""),
    ("PING", basics.ping, 1, 2, "read"),
    ("ECHO", basics.echo, 2, 2, "read"),
    ("CLIENT", basics.client, 2, MANY, ""),
    ("COMMAND", basics.command, 1, MANY, ""),
    ("INFO", basics.info, 1, MANY, ""),
    ("CONFIG", basics.config, 2, MANY, ""),
    ("MULTI", multi.multi, 1, 1, "multi"),
    ("EXEC", multi.execute, 1, 1, "multi"),
    ("DISCARD", multi.discard, 1, 1, "multi"),
    ("GET", keyvalue.get, 2, 2, "read"),
    ("SET", keyvalue.set_, 3, 16, "write"),
    ("GETDEL", keyvalue.getdel, 2, 2, "write"),
    ("GETRANGE", browse.getrange, 4, 4, "read"),
    ("DEL", keyvalue.delete, 2, MANY, "write"),
    ("UNLINK", keyvalue.delete, 2, MANY, "write"),
    ("EXISTS", keyvalue.exists, 2, MANY, "read"),
    ("MGET", keyvalue.mget, 2, MANY, "read"),
    ("MSET", keyvalue.mset, 3, MANY, "write"),
    ("STRLEN", keyvalue.strlen, 2, 2, "read"),
    ("TYPE", browse.type_, 2, 2, "read"),
    ("TTL", browse.ttl, 2, 2, "read"),
    ("PTTL", browse.ttl, 2, 2, "read"),
    ("EXPIRETIME", browse.ttl, 2, 2, "read"),
    ("PEXPIRETIME", browse.ttl, 2, 2, "read"),
    ("KEYS", browse.keys, 2, 2, "read"),
    ("SCAN", browse.scan, 2, 8, "read"),
    ("DBSIZE", keyvalue.dbsize, 1, 1, "read"),
    # These name their store, so that one MULTI spans stores.
    *(
        (verb.name, _OWN.get(verb.name) or handler_of(kind, verb), verb.least, verb.most, verb.access)
        for kind, ops in OPS.items()
        for verb in ops.verbs
    ),
    ("SF.COMMIT", commits.commit, 1, MANY, "write"),
    ("SF.OFFSETS", commits.offsets, 1, 1, ""),
    ("SF.TIME", commits.time, 1, 2, "write"),
    ("SF.WAITREADY", commits.wait_ready, 2, 2, ""),
    ("SF.STATUS", commits.status, 1, 1, ""),
)

NAMING = frozenset(verb.name for ops in OPS.values() for verb in ops.verbs)
RUNS: dict[str, Run] = {"SET": keyvalue.set_run}

_EXPIRY = "keys do not expire one by one: retention is a property of window, session and versioned stores"
_TYPES = "a store holds plain values: declare a window, session or versioned store (SF.WPUT, SF.SPUT, SF.VPUT) instead"
_SCRIPTS = "no scripts run here: a MULTI is one atomic apply, and one task has one writer"
_CHANNELS = "standfast has no channels: GET /v1/events of the HTTP API sends the events of tasks"
_WATCH = "nothing to watch: a task has one writer, so rows stay as read until this application writes"
_ARITHMETIC = "read and write the value: a task has one writer, so no other writer comes between"
_WHOLE = "a client cannot empty or move a store: use the HTTP API"

REFUSED = {
    _EXPIRY: "EXPIRE PEXPIRE EXPIREAT PEXPIREAT PERSIST SETEX PSETEX GETEX",
    _TYPES: "LPUSH RPUSH LPOP RPOP LRANGE LLEN LINDEX BLPOP BRPOP HSET HGET HMSET HMGET HGETALL HDEL HEXISTS HKEYS "
    "HVALS HLEN HINCRBY HSCAN SADD SREM SMEMBERS SISMEMBER SCARD SSCAN ZADD ZREM ZRANGE ZSCORE ZCARD ZSCAN XADD XREAD "
    "XRANGE XLEN XREADGROUP GEOADD PFADD PFCOUNT SETBIT GETBIT BITCOUNT SORT",
    _SCRIPTS: "EVAL EVALSHA EVAL_RO SCRIPT FUNCTION FCALL",
    _CHANNELS: "SUBSCRIBE PSUBSCRIBE SSUBSCRIBE UNSUBSCRIBE PUNSUBSCRIBE PUBLISH PUBSUB MONITOR",
    _WATCH: "WATCH UNWATCH",
    _ARITHMETIC: "INCR DECR INCRBY DECRBY INCRBYFLOAT APPEND SETNX GETSET MSETNX SETRANGE",
    _WHOLE: "FLUSHDB FLUSHALL SWAPDB MOVE RENAME RENAMENX COPY RANDOMKEY DUMP RESTORE MIGRATE OBJECT",
    "this instance has cluster support disabled: SELECT chooses the partition": "CLUSTER ASKING READONLY READWRITE",
    "standfast has no Redis replication: standbys follow the changelog": "REPLICAOF SLAVEOF SYNC PSYNC WAIT FAILOVER",
    "the HTTP API and the command line operate the process": "SHUTDOWN SAVE BGSAVE DEBUG ACL LATENCY "
    "SLOWLOG MEMORY MODULE",
}


class CommandTable:
    """The commands with their counters."""

    def __init__(self, counters: ServerCounters) -> None:
        self.commands: dict[bytes, Command] = {}
        for name, handler, least, most, kind in COMMANDS:
            store = _store_of(name, kind)
            command = Command(name, handler, least, most, counters.method(name), kind, RUNS.get(name), store)
            # Both spellings that clients send, so that finding a command is one look into a dict.
            self.commands[name.encode()] = self.commands[name.lower().encode()] = command
        self._other = counters.method("other")
        crowded = _refusing(CROWDED, LIMIT)
        self.commands[SKIPPED] = Command("other", crowded, 1, 1, self._other, "refused")
        self._refused = {name: why for why, names in REFUSED.items() for name in names.split()}

    def find(self, raw: bytes) -> Command:
        """The command of a name in any case; for an unknown name one that refuses when it is run."""
        upper = raw.upper()
        command = self.commands.get(upper)
        if command is not None:
            return command
        name = upper[:NAME_SHOWN_MAX].decode("ascii", "replace")
        why = self._refused.get(name)
        if why is not None:
            return Command("other", _refusing(f"{name} is refused: {why}"), 1, 1 << 40, self._other, "refused")
        # The name comes from the client and goes into an error: no control characters.
        shown = "".join(letter if letter.isprintable() and letter.isascii() else "?" for letter in name)
        return Command("other", _refusing(f"unknown command '{shown}'"), 1, 1 << 40, self._other, "refused")


def _store_of(name: str, kind: str) -> str:
    """The store whose right a command needs; see Command."""
    if kind not in ("read", "write") or name in ("PING", "ECHO"):
        return ""
    return "named" if name in NAMING else "task" if name in ("SF.COMMIT", "SF.TIME") else "own"


def _refusing(message: str, reason: ErrorCode = BAD_REQUEST) -> Callable[[Connection, list[bytes]], Answer]:
    def refuse(c: Connection, args: list[bytes]) -> Answer:
        raise Refused(reason, message)

    return refuse
