"""Helpers of the tests beside Kafka Streams: the stores on our side, the input changes, and rows of both sides alike.

Rules of this file: a row is a tuple (store, partition, key, start, end, value, timestamp), with -1 where its store has
no such thing; one version of a versioned store is (store, partition, key, valid from, valid to, value, -1). Timestamps
are of the present, because Kafka deletes from a windowed changelog by the records' own time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import standfast as sf
from standfast.replication.log import Headers, Outgoing
from standfast.restore.digest import digest_rows

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
PARTITIONS = 2
TIME_MAX = 2**63 - 1
NOW_MS = int(time.time() * 1_000) // HOUR_MS * HOUR_MS
VERSIONED_KEYS = tuple(f"{partition}-v{number}" for partition in range(PARTITIONS) for number in range(4))

Row = tuple[str, int, str, int, int, Any, int]


class Change(NamedTuple):
    """One input record: a change of one store."""

    partition: int
    store: str
    key: str
    value: str | None
    timestamp: int
    start: int = 0
    end: int = 0
    headers: Headers = ()

    @property
    def outgoing(self) -> Outgoing:
        """The change as a record of the input topic."""
        fields = {"store": self.store, "value": self.value, "start": self.start, "end": self.end}
        return Outgoing(self.key.encode(), json.dumps(fields).encode(), self.timestamp, self.headers)


def stores() -> list[Any]:
    """The stores of tests/support/programs/java/StoresApp.java."""
    text, number = sf.serde.string, sf.serde.int64
    return [
        sf.KeyValueStore("kv", text, text, timestamped=False),
        sf.KeyValueStore("kvts", text, text),
        sf.KeyValueStore("kvhd", text, text),
        sf.KeyValueStore("counts", text, number),
        sf.WindowStore("win", text, text, window_size_ms=HOUR_MS, retention_ms=DAY_MS, timestamped=False),
        sf.WindowStore("wints", text, text, window_size_ms=HOUR_MS, retention_ms=DAY_MS),
        sf.WindowStore(
            "windup",
            *(text, text),
            window_size_ms=HOUR_MS,
            retention_ms=DAY_MS,
            timestamped=False,
            retain_duplicates=True,
        ),
        sf.WindowStore("hourly", text, number, window_size_ms=HOUR_MS, retention_ms=HOUR_MS + DAY_MS),
        sf.SessionStore("ses", text, text, retention_ms=DAY_MS),
        sf.SessionStore("visits", text, number, retention_ms=DAY_MS + 50),
        sf.VersionedStore("ver", text, text, history_retention_ms=DAY_MS),
    ]


def changes(first: int, count: int) -> Iterator[Change]:
    """`count` rounds of changes from number `first` on, in every partition: overwrites, deletes, history, late ones."""
    for number in range(first, first + count):
        now_ms = NOW_MS + number * 1_000
        hour_ms = NOW_MS + (number % 3 - 2) * HOUR_MS
        value = None if number % 7 == 6 else f"é{number}"
        for part in range(PARTITIONS):
            yield Change(part, "kv", f"{part}-k{number % 5}", value, now_ms)
            yield Change(part, "kvts", f"{part}-k{number % 5}", value, now_ms - number % 3)
            yield Change(
                part, "kvhd", f"{part}-k{number % 5}", value, now_ms, headers=(("trace", b"\0\xff"), ("none", None))
            )
            yield Change(part, "win", f"{part}-w{number % 4}", value, now_ms, hour_ms)
            yield Change(part, "wints", f"{part}-w{number % 4}", value, now_ms + 3, hour_ms)
            yield Change(part, "windup", f"{part}-w{number % 2}", value, now_ms, hour_ms)
            start = hour_ms + number % 6
            yield Change(part, "ses", f"{part}-s{number % 2}", value, now_ms, start, start + 5)
            # Every third version comes late, so that it goes into the history.
            stamp = now_ms - 1_500 * (number % 3)
            yield Change(part, "ver", f"{part}-v{number % 3}", value, stamp)


def java_rows(printed: Iterable[dict[str, Any]]) -> list[Row]:
    """Rows that the application printed."""
    return sorted(_java_row(row) for row in printed)


def _java_row(row: dict[str, Any]) -> Row:
    if row["store"] == "ver":
        return "ver", row["partition"], row["key"], row["from"], row["to"], row["value"], -1
    return (*(row[name] for name in ("store", "partition", "key", "start", "end", "value", "timestamp")),)  # type: ignore[return-value]


def our_rows(store_of: Callable[[str, int], Any]) -> list[Row]:
    """Rows of every store and partition; `store_of` returns the store of a name and a partition."""
    return sorted(
        row
        for spec in stores()
        for partition in range(PARTITIONS)
        for row in _rows(spec, partition, store_of(spec.name, partition))
    )


def _rows(spec: Any, partition: int, store: Any) -> Iterator[Row]:
    at = spec.name, partition
    if isinstance(spec, sf.KeyValueStore):
        for key, value in store.all():
            stamp = store.get_with_timestamp(key).timestamp if spec.timestamped else -1
            yield (*at, key, -1, -1, value, stamp)
    elif isinstance(spec, sf.VersionedStore):
        for key in VERSIONED_KEYS:
            for version in store.range(key, 0, TIME_MAX, ascending=True):
                yield (*at, key, version.valid_from, version.valid_to, version.value, -1)
    else:
        for (key, start, end), value in store.all():
            stamp = -1
            if isinstance(spec, sf.WindowStore) and spec.timestamped:
                stamp = store.fetch_with_timestamp(key, start).timestamp
            yield (*at, key, start, end, value, stamp)


# The same stores for the command line; it reads retention and history from topics that Kafka Streams made.
STORE_ARGUMENTS = (
    "kv:keyvalue:plain,key=string,value=string",
    "kvts:keyvalue",
    "kvhd:keyvalue",
    "counts:keyvalue:value=int64",
    "win:window:size=1h,plain",
    "wints:window:size=1h",
    "windup:window:size=1h,duplicates,plain",
    "hourly:window:size=1h,value=int64",
    "ses:session",
    "visits:session:value=int64",
    "ver:versioned",
)


# A topic that a session made has no retention of its store.
RETENTIONS = dict.fromkeys(("win", "wints", "windup", "ses"), "1d") | {"hourly": "25h", "visits": "86400050ms"}


def with_retention(argument: str) -> str:
    """The argument of a store whose retention is to be named."""
    name, _, options = argument.partition(":")
    if name not in RETENTIONS:
        return argument
    return f"{argument}{',' if ':' in options else ':'}retention={RETENTIONS[name]}"


def write(store: Any, change: Change) -> None:
    """Make a change by a store of ours, as the application's processor would."""
    if change.store in ("win", "wints", "windup"):
        store.put(change.key, change.value, change.start, change.timestamp)
    elif change.store == "ses":
        store.put(change.key, change.start, change.end, change.value, change.timestamp)
    else:
        store.put(change.key, change.value, change.timestamp)


def digest(rows: Iterable[Row]) -> str:
    """Digest of rows in any order."""
    return digest_rows((repr(row[:5]).encode(), row[6], repr(row[5]).encode()) for row in rows).hex()


def answered_rows(store: str, answer: dict[str, Any]) -> Iterator[Row]:
    """Rows of a scan or a fetch of versions from the HTTP server; it has no timestamps of windows."""
    names = {"window": ("window_start", "window_end"), "session": ("session_start", "session_end")}
    first, last = names.get(answer["kind"], ("valid_from", "valid_to"))
    for row in answer["rows"]:
        times = row.get(first, -1), row.get(last, -1)
        yield store, row["partition"], row["key"], *times, row["value"], row.get("timestamp", -1)


def without_window_times(rows: Iterable[Row]) -> list[Row]:
    """The rows as the HTTP server sends them."""
    return sorted((*row[:6], -1) if row[3] >= 0 else row for row in rows)
