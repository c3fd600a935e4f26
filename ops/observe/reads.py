"""Reads of any store's rows as JSON values, for a live instance and for files at rest.

    get     key-value, versioned (as_of)        the row of a key
    scan    every kind                          rows in raw key order, all or by prefix; by key range, where numbers
                                                are in their own order
    fetch   window: starts from..to             session: sessions that touch from..to
            versioned: versions valid in from..to

The calls for each kind are its row of the table in `standfast.ops.shared.kinds`.

Rules of this file: it reads a store through raw bytes and decodes afterwards, so that an application's own serde may be
unknown (rows are hex then). At most LIMIT_MAX rows and REPLY_BYTES_MAX bytes an answer; a truncated scan returns
`after`, the place to continue: in a key-value store a key, elsewhere a number of rows. Nothing is logged here.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeAlias

from standfast.ops.shared.kinds import OPS, KeyBounds, KindOps
from standfast.ops.shared.text import KeyFormat, key_from_raw, key_to_raw, prefix_to_raw, value_from_raw
from standfast.store import serde as serdes
from standfast.store import value_timestamp
from standfast.store.buffer.rows import StoreRows
from standfast.store.errors import InvalidRequest, TooLarge
from standfast.store.serde import Serde
from standfast.store.specs import StoreSpec
from standfast.store.types.key_ranges import raw_keys
from standfast.store.types.kinds import open_store
from standfast.store.types.typed import TypedStore

LIMIT_DEFAULT = 100
LIMIT_MAX = 10_000
REPLY_BYTES_MAX = 16 << 20
TIME_MAX = 2**63 - 1
SCHEMA = "standfast.rows/1"
VERBS = ("get", "scan", "fetch")

JsonRow: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """One read. Keys are text in `key_format`; times are milliseconds since the epoch, both ends included."""

    verb: str
    store: str
    key: str | None = None
    key_from: str | None = None
    key_to: str | None = None
    prefix: str | None = None
    time_from: int | None = None
    time_to: int | None = None
    as_of: int | None = None
    partition: int | None = None
    limit: int = LIMIT_DEFAULT
    key_format: KeyFormat = "utf8"
    after: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= LIMIT_MAX:
            raise InvalidRequest(f"limit is {self.limit}, use 1 to {LIMIT_MAX}")
        if self.verb in ("get", "fetch") and self.key is None:
            raise InvalidRequest(f"{self.verb} needs a key: name one")
        if self.verb == "scan" and self.prefix is not None and (self.key_from, self.key_to) != (None, None):
            raise InvalidRequest("scan takes a prefix or a key range, not both: leave one out")
        if self.after is not None:
            parse_place(self.after)


@dataclass(frozen=True, slots=True)
class StorePart:
    """A store of one partition, opened over raw bytes, with its role, lag and serdes."""

    partition: int
    spec: StoreSpec
    rows: StoreRows
    role: str = "active"
    lag_records: int = 0
    key_serde: Serde[Any] | None = None
    value_serde: Serde[Any] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of an answer; `truncated`: there are more."""

    rows: list[JsonRow]
    truncated: bool = False
    after: str | None = None


def live_part(store: TypedStore[Any, Any, Any], partition: int, role: str, lag_records: int) -> StorePart:
    """A part with the application's serdes, as the store uses them."""
    return StorePart(partition, store.spec, store.rows, role, lag_records, store.key_serde, store.value_serde)


def read(parts: Iterable[StorePart], request: ReadRequest, bytes_max: int = REPLY_BYTES_MAX) -> Answer:
    """Rows of all parts in turn, each in order. Closes the parts' scans."""
    total = 0
    rows: list[JsonRow] = []
    begin, place = parse_place(request.after) if request.after is not None else (-1, 0)
    last: tuple[int, bytes | int] = (-1, 0)
    for part in parts:
        try:
            told = place if part.partition == begin else 0
            count = told if isinstance(told, int) else 0
            for row in _rows(part, request, told) if part.partition >= begin else ():
                total += row.pop("_bytes")
                # The first row always goes out, however large, or paging would never get past it.
                if len(rows) >= request.limit or (rows and total > bytes_max):
                    return Answer(rows, truncated=True, after=_place(*last) if request.verb == "scan" else None)
                count += 1
                key = row.pop("_raw")
                last = part.partition, key if part.spec.traits.by_key else count
                rows.append(row)
        finally:
            part.rows.close()  # an unfinished scan would pin its files until it is collected
    return Answer(rows)


def document(
    app: str, request: ReadRequest, parts: Iterable[StorePart], answer: Answer, not_read: Collection[int] = ()
) -> JsonRow:
    """The answer as one JSON document. `not_read`: the partitions that stand by here and were not asked for."""
    parts = list(parts)
    return {
        "schema": SCHEMA,
        "app": app,
        "store": request.store,
        "kind": parts[0].spec.kind if parts else None,
        "partitions": [
            {"partition": part.partition, "role": part.role, "lag_records": part.lag_records} for part in parts
        ],
        "not_read": sorted(not_read),
        "rows": answer.rows,
        "truncated": answer.truncated,
        "after": answer.after,
    }


def parse_place(token: str) -> tuple[int, bytes | int]:
    """The place to continue a scan: a partition, and the last key or the number of rows read there. Raises
    InvalidRequest."""
    try:
        partition, key, count = json.loads(base64.urlsafe_b64decode(token.encode("ascii")))
        place = count if key is None else bytes.fromhex(key)
        if not isinstance(partition, int) or not isinstance(place, bytes | int) or (key is None and count < 0):
            raise ValueError
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(
            "`after` is not from an answer: send the `after` of the previous answer unchanged"
        ) from error
    return partition, place


def start_of(partition: int) -> str:
    """The place to continue a scan at the first row of a partition."""
    return _place(partition, 0)


def _place(partition: int, place: bytes | int) -> str:
    shape = [partition, place.hex(), 0] if isinstance(place, bytes) else [partition, None, place]
    # Opaque to clients, so that its form may change, and safe in a query.
    return base64.urlsafe_b64encode(json.dumps(shape).encode()).decode()


def _rows(part: StorePart, request: ReadRequest, told: bytes | int = 0) -> Iterator[JsonRow]:
    """Rows after the given place: after a key, or after a number of rows."""
    ops = _checked_ops(part, request)
    ranged = request.key_from is not None or request.key_to is not None
    spec = replace(part.spec, key=raw_keys(part.spec.key) if ranged else serdes.bytes, value=serdes.bytes)
    by_key, stamped = spec.traits.by_key, spec.traits.by_key and spec.timestamped
    key, low, high = (_key(part, request, text) for text in (request.key, request.key_from, request.key_to))
    prefix = None if request.prefix is None else _bounded(part, prefix_to_raw(request.prefix, request.key_format))
    # Opened without timestamps, a store with one row per key gives the raw value with its timestamp in front.
    # This saves a second read of each row.
    store = open_store(replace(spec, timestamped=False) if stamped else spec, part.rows)
    if not set(store.families()) <= part.rows.engine.families():
        return  # declared, but nothing was ever written
    if isinstance(told, bytes) != by_key and told != 0:
        raise InvalidRequest("`after` belongs to another store: begin without it")
    if key is None or isinstance(told, bytes):
        found = ops.scan(store, KeyBounds(low, high, prefix, told if isinstance(told, bytes) else None))
    elif request.verb == "get":
        assert ops.get is not None
        found = ops.get(store, key, request.as_of)
    else:
        assert ops.fetch is not None
        found = ops.fetch(store, key, request.time_from or 0, TIME_MAX if request.time_to is None else request.time_to)
    for raw_key, fields, raw in islice(found, told if isinstance(told, int) else 0, None):
        timestamp, raw_value = value_timestamp.unpack(raw) if stamped else (-1, raw)
        row: JsonRow = {"partition": part.partition}
        row["key"] = key_from_raw(part.key_serde, raw_key, request.key_format, store=request.store)
        row.update({"timestamp": timestamp} if stamped else fields)
        row["value"] = value_from_raw(part.value_serde, raw_value, store=request.store)
        row["_bytes"], row["_raw"] = len(raw_key) + len(raw_value), raw_key
        yield row


def _checked_ops(part: StorePart, request: ReadRequest) -> KindOps:
    kind = part.spec.kind
    ops = OPS[kind]
    if request.verb == "get" and ops.get is None:
        raise InvalidRequest(
            f"store {request.store!r} is a {kind} store, whose rows have more than a key: use fetch or scan"
        )
    if request.verb == "fetch" and ops.fetch is None:
        raise InvalidRequest(f"store {request.store!r} is a {kind} store, whose rows have no time: use get or scan")
    return ops


def _key(part: StorePart, request: ReadRequest, text: str | None) -> bytes | None:
    if text is None:
        return None
    return _bounded(part, key_to_raw(part.key_serde, text, request.key_format, store=request.store))


def _bounded(part: StorePart, key: bytes) -> bytes:
    # An error and no empty answer: the caller would take such a row for absent.
    limit = part.rows.limits.key_bytes
    if len(key) > limit:
        raise TooLarge(f"a key of {len(key)} bytes is over the limit of {limit}: no row of the store can have it")
    return key
