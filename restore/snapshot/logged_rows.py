"""The rows of a snapshot as records of a changelog: whoever replays them gets the same store.

    key-value, window, session    one record a row, in the order of the rows
    versioned                     one record a version and one a delete, in the order of their times

A log may take no timestamp as low as that of a row, such as 0 on Kafka, whose client reads 0 as the present time: the
record gets the least that the log takes (`lifted`), never a late one, and the local state must not keep the row.

Rules of this file: reads only. A versioned store refuses versions older than its history at the moment of their replay,
so its records come in the order of their times, and are held in memory for that. The logical rows lack its deletes: a
replay of them alone would give deleted keys back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from standfast.replication.log import Outgoing
from standfast.restore.verify.at_rest import view
from standfast.store.engine import Engine
from standfast.store.specs import StoreSpec
from standfast.store.task.commit_record import StoreTimes
from standfast.store.types.typed import NO_TIMESTAMP
from standfast.store.types.versioned_row import LATEST_PREFIX, SegmentRow, unpack_key, unpack_latest


def records_of(engine: Engine, spec: StoreSpec, times: StoreTimes, now_ms: int, least_ms: int) -> Iterator[Outgoing]:
    """Records whose replay gives the store's committed rows within retention.

    Rows without a timestamp get that of their key (start of a window, end of a session), which retention counts by, or
    `now_ms`; `least_ms` is the least timestamp that the log takes.
    """
    store: Any = view(engine, spec, times)
    present = engine.families()
    if not any(family in present for family in store.families()):
        return  # a store without rows may have no family
    if spec.traits.versions:
        yield from _versions(store, times.observed_ms - spec.kept_ms)
        return
    key_times = spec.traits.times
    newest_ms = -1
    for key, timestamp, value in store.logical_rows():
        time_ms = now_ms if key_times is None else key_times.time_of(key)
        newest_ms = max(newest_ms, time_ms)
        yield Outgoing(key, value, max(time_ms, least_ms) if timestamp == NO_TIMESTAMP else timestamp)
    if key_times is not None and newest_ms < times.observed_ms:
        # A delete of nothing: the stream time may be that of a row which is deleted, and rows expire by it.
        second = times.observed_ms if key_times.second == "end" else 0
        yield Outgoing(key_times.pack(b"", times.observed_ms, second), None, max(times.observed_ms, least_ms))


def drop_rows(engine: Engine, spec: StoreSpec, times: StoreTimes) -> None:
    """Remove all rows of a store from a database that nothing else has open."""
    present = engine.families()
    for family in view(engine, spec, times).families():
        if family in present:
            engine.drop_family(family)


def lifted(batch: list[Outgoing], least_ms: int) -> list[Outgoing] | None:
    """The batch with no timestamp below `least_ms`; None if it has none."""
    if all(one.timestamp >= least_ms for one in batch):
        return None
    return [one._replace(timestamp=max(one.timestamp, least_ms)) for one in batch]


def _versions(store: Any, kept_after: int) -> Iterator[Outgoing]:
    begun: dict[tuple[bytes, int], bytes | None] = {}
    ended: set[tuple[bytes, int]] = set()
    for row_key, row in store.rows.committed(store.name):
        key = unpack_key(row_key)[1]
        if row_key.startswith(LATEST_PREFIX):
            value, valid_from = unpack_latest(row)
            begun[key, valid_from] = value
            continue
        for version, valid_from, valid_to in SegmentRow.parse(row).versions():
            # A degenerate row's tombstone is valid at no time; it says that the key was deleted then.
            if valid_to > kept_after or valid_from == valid_to:
                begun[key, valid_from] = version
                ended.add((key, valid_to))
    # A version that ends where no other begins was deleted then.
    records: dict[tuple[bytes, int], bytes | None] = {**dict.fromkeys(ended), **begun}
    for key, timestamp in sorted(records, key=lambda one: (one[1], one[0])):
        yield Outgoing(key, records[key, timestamp], timestamp)
