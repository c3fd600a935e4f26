"""Commands of programs that show a store to a person: keys by page or at once, and the type of each.

    KEYS prefix*|key    SCAN cursor [MATCH prefix*|key] [COUNT n] [TYPE string]
    TYPE key    TTL PTTL EXPIRETIME PEXPIRETIME key    GETRANGE key start end

Rules of this file: reads of the connection's default store, as Redis answers them: a key is a string that never
expires. Keys are found by their beginning, because that is how they are stored: a pattern with more is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from standfast.ops.shared.error_codes import BAD_REQUEST, Refused
from standfast.ops.sidecar.resp.arguments import options, whole
from standfast.ops.sidecar.resp.connection import Answer, Connection
from standfast.ops.sidecar.resp.replies import array, bulk, integer, replies
from standfast.ops.sidecar.resp.scans import collect
from standfast.store.types.keyvalue import KeyValueState

# Redis's own default.
SCAN_DEFAULT = 10
SCAN_MAX = 1_000
SCAN_BYTES = 1 << 20
_SPECIAL = (b"*", b"?", b"[", b"\\")
_NO_EXPIRY, _NO_KEY = -1, -2


def keys(c: Connection, args: list[bytes]) -> Answer:
    """KEYS prefix*|key."""
    prefix, whole_key = _pattern(args[1])
    store = c.stores.scan(None)
    if whole_key:
        return array(_present(store, prefix), c.nil)
    found = ((bulk(key),) for key in _keys(store, prefix, prefix))
    return collect(c, found, {}, 1, "use SCAN 0 MATCH prefix* COUNT n, or a longer prefix")


def scan(c: Connection, args: list[bytes]) -> Answer:
    """SCAN cursor [MATCH prefix*|key] [COUNT n] [TYPE string]: in key order; a cursor is a number for a place."""
    given = options(args, 2, {b"MATCH": 1, b"COUNT": 1, b"TYPE": 1})
    count = whole(given.get(b"COUNT", [b"%d" % SCAN_DEFAULT])[0], "COUNT", least=1)
    prefix, whole_key = _pattern(given.get(b"MATCH", [b"*"])[0])
    store = c.stores.scan(None)
    cursor = whole(args[1], "cursor", most=2**64 - 1)
    after = c.context.cursors.find(cursor, store.name, c.binding.partition) if cursor else None
    if given.get(b"TYPE", [b"string"])[0].lower() != b"string":
        return replies([bulk(b"0"), array([], c.nil)])
    if whole_key:
        return replies([bulk(b"0"), array(_present(store, prefix), c.nil)])
    # The first key behind the last one, also where that was deleted since.
    start = prefix if after is None else max(prefix, after + b"\x00")
    found: list[bytes] = []
    place = size = 0
    for key in _keys(store, start, prefix):
        if len(found) == min(count, SCAN_MAX) or size > SCAN_BYTES:
            place = c.context.cursors.keep(store.name, c.binding.partition, found[-1])
            break
        found.append(key)
        size += len(key)
    return replies([bulk(b"%d" % place), array(found, c.nil)])


def type_(c: Connection, args: list[bytes]) -> Answer:
    """TYPE key: string, or none."""
    return b"+none\r\n" if c.reads[None].get(args[1]) is None else b"+string\r\n"


def ttl(c: Connection, args: list[bytes]) -> Answer:
    """TTL, PTTL, EXPIRETIME, PEXPIRETIME key: -1, because keys do not expire; -2 for a key that is not there."""
    return integer(_NO_KEY if c.reads[None].get(args[1]) is None else _NO_EXPIRY)


def getrange(c: Connection, args: list[bytes]) -> Answer:
    """GETRANGE key start end: both ends included, negative ones are counted from the end."""
    first = whole(args[2], "start", least=-(2**63))
    last = whole(args[3], "end", least=-(2**63))
    if 0 > first > last:
        return bulk(b"")
    value = c.reads[None].get(args[1]) or b""
    first, last = (max(0, at if at >= 0 else at + len(value)) for at in (first, last))
    return bulk(value[first : last + 1])


def _pattern(raw: bytes) -> tuple[bytes, bool]:
    """The prefix of `prefix*`, or a whole key and True."""
    prefix = raw.removesuffix(b"*")
    if any(special in prefix for special in _SPECIAL):
        raise Refused(
            BAD_REQUEST,
            "a pattern is a prefix and a star (user:*), or a whole key: keys are found by their beginning only",
        )
    return prefix, prefix == raw


def _present(store: KeyValueState[bytes, bytes], key: bytes) -> list[bytes]:
    return [] if store.get(key) is None else [key]


def _keys(store: KeyValueState[bytes, bytes], start: bytes, prefix: bytes) -> Iterator[bytes]:
    """Keys with the prefix, from `start` on."""
    with store.range(start, None) as rows:
        for key, _ in rows:
            if not key.startswith(prefix):
                return
            yield key
