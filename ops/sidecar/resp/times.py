"""Commands of window, session and versioned stores. Times are milliseconds, both ends of a range included.

    SF.WPUT store key start value [TS ms]    SF.WGET store key start    SF.WDEL store key start
    SF.WFETCH store key from to [REV] [LIMIT n]                -> [start, value, ...]
    SF.WRANGE store keyfrom keyto from to [REV] [LIMIT n]      -> [key, start, end, value, ...]   "" is open
    SF.WALL store from to [REV] [LIMIT n]                      -> the same, of every key
    SF.SPUT store key start end value [TS ms]    SF.SGET store key start end    SF.SDEL store key start end
    SF.SFETCH store key [earliest_end latest_start] [REV] [LIMIT n]   -> [key, start, end, value, ...]
    SF.SRANGE store keyfrom keyto earliest_end latest_start [REV] [LIMIT n]   -> the same, of several keys; "" is open
    SF.SALL store [keyfrom keyto] [REV] [LIMIT n]              -> the same, of every key
    SF.VPUT store key value [TS ms] -> valid to, -1 for the latest, nil if it is older than the history
    SF.VGET store key [ASOF ms] -> [value, valid from, valid to] or nil      SF.VDEL store key [TS ms] -> the same
    SF.VRANGE store key from to [ASC] [LIMIT n]                -> [value, valid from, valid to, ...]

Rules of this file: from arguments to one call of a store, and back to a reply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from standfast.ops.shared.reasons import BAD_REQUEST, Refused
from standfast.ops.sidecar.resp.arguments import options, whole
from standfast.ops.sidecar.resp.connection import Answer, Connection
from standfast.ops.sidecar.resp.replies import OK, bulk, integer, replies
from standfast.ops.sidecar.resp.scans import collect
from standfast.store.results import PUT_NOT_VALID, VersionedRecord, Windowed
from standfast.store.types.session import SessionState
from standfast.store.types.versioned import VersionedState
from standfast.store.types.window import WindowState

S = TypeVar("S")

_SCAN = {b"REV": 0, b"LIMIT": 1}


def _of_kind(store: Any, kind: type[S]) -> S:
    if not isinstance(store, kind):
        raise Refused(BAD_REQUEST, f"store {store.name!r} is a {store.spec.kind} store: use the commands of that kind")
    return store


def _written(c: Connection, args: list[bytes], kind: type[S]) -> S:
    return _of_kind(c.writes.get(args[1]) or c.write(args[1]), kind)


def _deleted(c: Connection, args: list[bytes], kind: type[S]) -> S:
    return _of_kind(c.writes.get(args[1]) or c.delete(args[1]), kind)


def _read(c: Connection, args: list[bytes], kind: type[S]) -> S:
    return _of_kind(c.reads.get(args[1]) or c.read(args[1]), kind)


def _stamp(c: Connection, given: Mapping[bytes, list[bytes]]) -> int:
    return whole(given[b"TS"][0], "TS") if b"TS" in given else c.now_ms


# -- windows ----------------------------------------------------------------------------------------------------------


def wput(c: Connection, args: list[bytes]) -> Answer:
    """SF.WPUT store key start value [TS ms]: OK also for a late row, which changes nothing and is counted."""
    store: WindowState[bytes, bytes] = _written(c, args, WindowState)
    stamp = c.now_ms if len(args) == 5 else _stamp(c, options(args, 5, {b"TS": 1}))
    store.put(args[2], args[4], whole(args[3], "window start"), stamp)
    return OK


def wget(c: Connection, args: list[bytes]) -> Answer:
    """SF.WGET store key start."""
    c.engine.scan(c.binding)
    store: WindowState[bytes, bytes] = _read(c, args, WindowState)
    value = store.fetch(args[2], whole(args[3], "window start"))
    return c.nil if value is None else bulk(value)


def wdel(c: Connection, args: list[bytes]) -> Answer:
    """SF.WDEL store key start."""
    store: WindowState[bytes, bytes] = _deleted(c, args, WindowState)
    store.put(args[2], None, whole(args[3], "window start"), c.now_ms)
    return OK


def wfetch(c: Connection, args: list[bytes]) -> Answer:
    """SF.WFETCH store key from to [REV] [LIMIT n]."""
    given = options(args, 5, _SCAN)
    store: WindowState[bytes, bytes] = _of_kind(c.scan(args[1]), WindowState)
    rows = store.fetch_range(args[2], whole(args[3], "from"), whole(args[4], "to"), reverse=b"REV" in given)
    return collect(c, ((integer(start), bulk(value)) for start, value in rows), given, 2)


def wrange(c: Connection, args: list[bytes]) -> Answer:
    """SF.WRANGE store keyfrom keyto from to [REV] [LIMIT n]."""
    given = options(args, 6, _SCAN)
    store: WindowState[bytes, bytes] = _of_kind(c.scan(args[1]), WindowState)
    times = whole(args[4], "from"), whole(args[5], "to")
    rows = store.fetch_key_range(args[2] or None, args[3] or None, *times, reverse=b"REV" in given)
    return collect(c, _windowed(rows), given, 4)


def wall(c: Connection, args: list[bytes]) -> Answer:
    """SF.WALL store from to [REV] [LIMIT n]."""
    given = options(args, 4, _SCAN)
    store: WindowState[bytes, bytes] = _of_kind(c.scan(args[1]), WindowState)
    rows = store.fetch_all(whole(args[2], "from"), whole(args[3], "to"), reverse=b"REV" in given)
    return collect(c, _windowed(rows), given, 4)


def _windowed(rows: Iterator[tuple[Windowed[bytes], bytes]]) -> Iterator[tuple[bytes, ...]]:
    for (key, start, end), value in rows:
        yield bulk(key), integer(start), integer(end), bulk(value)


# -- sessions ---------------------------------------------------------------------------------------------------------


def _session(args: list[bytes]) -> tuple[int, int]:
    return whole(args[3], "session start"), whole(args[4], "session end")


def sput(c: Connection, args: list[bytes]) -> Answer:
    """SF.SPUT store key start end value [TS ms]: OK also for a late session, which changes nothing and is counted."""
    store: SessionState[bytes, bytes] = _written(c, args, SessionState)
    stamp = c.now_ms if len(args) == 6 else _stamp(c, options(args, 6, {b"TS": 1}))
    store.put(args[2], *_session(args), args[5], stamp)
    return OK


def sget(c: Connection, args: list[bytes]) -> Answer:
    """SF.SGET store key start end."""
    c.engine.scan(c.binding)
    store: SessionState[bytes, bytes] = _read(c, args, SessionState)
    value = store.fetch_session(args[2], *_session(args))
    return c.nil if value is None else bulk(value)


def sdel(c: Connection, args: list[bytes]) -> Answer:
    """SF.SDEL store key start end."""
    store: SessionState[bytes, bytes] = _deleted(c, args, SessionState)
    store.put(args[2], *_session(args), None, c.now_ms)
    return OK


def sfetch(c: Connection, args: list[bytes]) -> Answer:
    """SF.SFETCH store key [earliest_end latest_start] [REV] [LIMIT n]."""
    bounded = len(args) >= 5 and args[3].isdigit()
    given = options(args, 5 if bounded else 3, _SCAN)
    store: SessionState[bytes, bytes] = _of_kind(c.scan(args[1]), SessionState)
    if bounded:
        bounds = whole(args[3], "earliest end"), whole(args[4], "latest start")
        rows = store.find_sessions(args[2], *bounds, reverse=b"REV" in given)
    else:
        rows = store.fetch(args[2], reverse=b"REV" in given)
    return collect(c, _windowed(rows), given, 4)


def sall(c: Connection, args: list[bytes]) -> Answer:
    """SF.SALL store [keyfrom keyto] [REV] [LIMIT n]."""
    bounded = len(args) >= 4 and args[2].upper() not in _SCAN
    given = options(args, 4 if bounded else 2, _SCAN)
    store: SessionState[bytes, bytes] = _of_kind(c.scan(args[1]), SessionState)
    keys = (args[2] or None, args[3] or None) if bounded else (None, None)
    return collect(c, _windowed(store.fetch_key_range(*keys, reverse=b"REV" in given)), given, 4)


def srange(c: Connection, args: list[bytes]) -> Answer:
    """SF.SRANGE store keyfrom keyto earliest_end latest_start [REV] [LIMIT n]."""
    given = options(args, 6, _SCAN)
    store: SessionState[bytes, bytes] = _of_kind(c.scan(args[1]), SessionState)
    bounds = whole(args[4], "earliest end"), whole(args[5], "latest start")
    rows = store.find_sessions_key_range(args[2] or None, args[3] or None, *bounds, reverse=b"REV" in given)
    return collect(c, _windowed(rows), given, 4)


# -- versions ---------------------------------------------------------------------------------------------------------


def vput(c: Connection, args: list[bytes]) -> Answer:
    """SF.VPUT store key value [TS ms]."""
    store: VersionedState[bytes, bytes] = _written(c, args, VersionedState)
    stamp = c.now_ms if len(args) == 4 else _stamp(c, options(args, 4, {b"TS": 1}))
    valid_to = store.put(args[2], args[3], stamp)
    return c.nil if valid_to == PUT_NOT_VALID else integer(valid_to)


def vget(c: Connection, args: list[bytes]) -> Answer:
    """SF.VGET store key [ASOF ms]."""
    given = options(args, 3, {b"ASOF": 1})
    c.engine.scan(c.binding)
    store: VersionedState[bytes, bytes] = _read(c, args, VersionedState)
    as_of = whole(given[b"ASOF"][0], "ASOF") if given else None
    return _version(c, store.get(args[2], as_of))


def vdel(c: Connection, args: list[bytes]) -> Answer:
    """SF.VDEL store key [TS ms]."""
    given = options(args, 3, {b"TS": 1})
    store: VersionedState[bytes, bytes] = _deleted(c, args, VersionedState)
    return _version(c, store.delete(args[2], _stamp(c, given)))


def vrange(c: Connection, args: list[bytes]) -> Answer:
    """SF.VRANGE store key from to [ASC] [LIMIT n]."""
    given = options(args, 5, {b"ASC": 0, b"LIMIT": 1})
    store: VersionedState[bytes, bytes] = _of_kind(c.scan(args[1]), VersionedState)
    rows = store.range(args[2], whole(args[3], "from"), whole(args[4], "to"), ascending=b"ASC" in given)
    return collect(c, ((bulk(v), integer(since), integer(until)) for v, since, until in rows), given, 3)


def _version(c: Connection, record: VersionedRecord[bytes] | None) -> bytes:
    if record is None:
        return c.nil
    return replies([bulk(record.value), integer(record.valid_from), integer(record.valid_to)])
