"""Key-value commands: the standard ones on the connection's default store, the SF. ones on the store they name.

    GET SET [NX] [GET] GETDEL DEL UNLINK EXISTS MGET MSET STRLEN DBSIZE
    SF.PUT store key value [NX] [GET] [TS ms]    SF.GET store key [WITHTS]    SF.DEL store key ...    SF.COUNT store
    SF.RANGE store from to [REV] [LIMIT n] [AFTER key] [BY serde]    both ends included, "" is open; [k, v, k, v, ...]
    SF.PREFIX store prefix [REV] [LIMIT n] [AFTER key]               in byte order, or by number where BY says so

Rules of this file: one command is one atomic step. SET and GET run most, so they do nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from standfast.ops.shared.error_codes import BAD_REQUEST, Refused
from standfast.ops.sidecar.resp.arguments import options, whole
from standfast.ops.sidecar.resp.connection import Answer, Connection
from standfast.ops.sidecar.resp.replies import OK, array, bulk, integer, replies
from standfast.ops.sidecar.resp.scans import bounded, collect
from standfast.ops.sidecar.resp.stores import of_kind, ordered
from standfast.store.types.keyvalue import KeyValueState, after_prefix

_EXPIRY = {b"EX", b"PX", b"EXAT", b"PXAT", b"KEEPTTL"}
_SET_NAMES = {b"SET", b"set"}


def keyvalue(store: Any) -> KeyValueState[bytes, bytes]:
    """The store, if it is of this kind."""
    return of_kind(store, "keyvalue")  # type: ignore[no-any-return]


def get(c: Connection, args: list[bytes]) -> Answer:
    """GET key."""
    value = c.reads[None].get(args[1])
    # Written out instead of `bulk`: this line runs for every GET.
    return c.nil if value is None else b"$%d\r\n%b\r\n" % (len(value), value)


def set_(c: Connection, args: list[bytes]) -> Answer:
    """SET key value [NX] [GET]."""
    store = c.writes[None]
    if len(args) > 3:
        return _set(c, store, args[1], args[2], args[3:])
    store.put_raw(args[1], args[2], c.now_ms)
    return OK


def set_run(c: Connection, requests: Iterable[list[bytes]]) -> tuple[int, bytes]:
    """As many plain SETs as stand together, in one step: how many, and the reply to each. 0 if that is not possible."""
    pairs = []
    for args in requests:
        if len(args) != 3 or args[0] not in _SET_NAMES:
            break
        pairs.append((args[1], args[2]))
    store = c.writes[None]
    return (len(pairs), OK) if len(pairs) > 1 and store.put_raw_all(pairs, c.now_ms) else (0, OK)


def _set(
    c: Connection, store: KeyValueState[bytes, bytes], key: bytes, value: bytes, given: list[bytes], stamp: int = -1
) -> bytes:
    flags = {flag.upper() for flag in given}
    if flags & _EXPIRY:
        raise Refused(
            BAD_REQUEST,
            "keys do not expire: retention is a property of window, session and versioned stores",
        )
    if not flags <= {b"NX", b"GET"} or len(flags) != len(given):
        raise Refused(BAD_REQUEST, "syntax error: SET takes the options NX and GET")
    old = store.get(key)
    written = old is None or b"NX" not in flags
    if written:
        store.put_raw(key, value, c.now_ms if stamp < 0 else stamp)
    if b"GET" in flags:
        return c.nil if old is None else bulk(old)
    return OK if written else c.nil


def getdel(c: Connection, args: list[bytes]) -> Answer:
    """GETDEL key."""
    store = c.stores.deletes(None)
    old = store.get(args[1])
    if old is None:
        return c.nil
    store.put_raw(args[1], None, c.now_ms)
    return bulk(old)


def delete(c: Connection, args: list[bytes]) -> Answer:
    """DEL key ..., and UNLINK key ..."""
    return _delete(c, c.stores.deletes(None), args[1:])


def _delete(c: Connection, store: KeyValueState[bytes, bytes], keys: list[bytes]) -> bytes:
    c.context.limits.check_keys(len(keys))
    there = [key for key in dict.fromkeys(keys) if store.get(key) is not None]
    store.put_all([(key, None) for key in there], c.now_ms)
    return integer(len(there))


def exists(c: Connection, args: list[bytes]) -> Answer:
    """EXISTS key ...: one named twice counts twice."""
    c.context.limits.check_keys(len(args) - 1)
    store = c.reads[None]
    return integer(sum(store.get(key) is not None for key in args[1:]))


def mget(c: Connection, args: list[bytes]) -> Answer:
    """MGET key ..."""
    c.context.limits.check_keys(len(args) - 1)
    return array(bounded(map(c.reads[None].get, args[1:])), c.nil)


def mset(c: Connection, args: list[bytes]) -> Answer:
    """MSET key value ...: all of them, or none."""
    if not len(args) % 2:
        raise Refused(BAD_REQUEST, "wrong number of arguments for 'MSET' command")
    c.context.limits.check_keys(len(args) // 2)
    c.writes[None].put_all(zip(args[1::2], args[2::2], strict=True), c.now_ms)
    return OK


def strlen(c: Connection, args: list[bytes]) -> Answer:
    """STRLEN key."""
    value = c.reads[None].get(args[1])
    return integer(0 if value is None else len(value))


def dbsize(c: Connection, args: list[bytes]) -> Answer:
    """DBSIZE: an estimate."""
    return integer(c.stores.scan(None).approximate_num_entries())


# -- commands that name their store -----------------------------------------------------------------------------------


def sf_put(c: Connection, args: list[bytes]) -> Answer:
    """SF.PUT store key value [NX] [GET] [TS ms]."""
    store = keyvalue(c.writes[args[1]])
    if len(args) == 4:
        store.put_raw(args[2], args[3], c.now_ms)
        return OK
    given = options(args, 4, {b"NX": 0, b"GET": 0, b"TS": 1})
    stamp = whole(given.pop(b"TS")[0], "TS") if b"TS" in given else c.now_ms
    return _set(c, store, args[2], args[3], list(given), stamp)


def sf_get(c: Connection, args: list[bytes]) -> Answer:
    """SF.GET store key [WITHTS]."""
    store = keyvalue(c.reads[args[1]])
    if len(args) == 3:
        value = store.get(args[2])
        return c.nil if value is None else bulk(value)
    options(args, 3, {b"WITHTS": 0})
    found = store.get_with_timestamp(args[2])
    return c.nil if found is None else replies([bulk(found.value), integer(found.timestamp)])


def sf_del(c: Connection, args: list[bytes]) -> Answer:
    """SF.DEL store key ..."""
    return _delete(c, keyvalue(c.stores.deletes(args[1])), args[2:])


def sf_range(c: Connection, args: list[bytes]) -> Answer:
    """SF.RANGE store from to [REV] [LIMIT n] [AFTER key] [BY serde]."""
    given = options(args, 4, {b"REV": 0, b"LIMIT": 1, b"AFTER": 1, b"BY": 1})
    store = ordered(keyvalue(c.stores.scan(args[1])), given)
    after = given[b"AFTER"][0] if b"AFTER" in given else None
    rows = store.range_raw(args[2] or None, args[3] or None, reverse=b"REV" in given, behind=after)
    return collect(c, _pairs(rows, None), given, 2)


def sf_prefix(c: Connection, args: list[bytes]) -> Answer:
    """SF.PREFIX store prefix [REV] [LIMIT n] [AFTER key]."""
    store = keyvalue(c.stores.scan(args[1]))
    given = options(args, 3, {b"REV": 0, b"LIMIT": 1, b"AFTER": 1})
    prefix, reverse = args[2], b"REV" in given
    after = given[b"AFTER"][0] if b"AFTER" in given else None
    if after is None:
        return collect(c, _pairs(store.prefix_scan(prefix, reverse=reverse), None), given, 2)
    if reverse:
        end = after_prefix(prefix)
        rows = store.range(prefix, after if end is None else min(after, end), reverse=True)
        return collect(c, _pairs(rows, after, prefix), given, 2)
    rows = store.range(max(prefix, after + b"\x00"), None)
    return collect(c, _pairs(rows, None, prefix), given, 2)


def _pairs(
    rows: Iterator[tuple[bytes, bytes]], skip: bytes | None, prefix: bytes = b""
) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values without the row `skip`, as long as keys begin with the prefix."""
    for key, value in rows:
        if prefix and not key.startswith(prefix):
            if key > prefix:
                if skip is None:
                    return
                continue  # backwards: keys behind the prefix come first
            return
        if key != skip:
            yield bulk(key), bulk(value)
