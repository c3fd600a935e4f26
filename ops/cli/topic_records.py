"""Reads of a few records of a topic for commands: the first, the newest, and a check of a declared store's kind.

Rules of this file: it reads up to an end that was read before, and so ends. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from standfast.ops.config.store_argument import StoreArgument
from standfast.replication.log import Log, LogReader, Record, TopicInfo
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.replication.topics.changelog_kind import LOOK_RECORDS, kind_problem
from standfast.store.errors import BadConfig

FETCH_RECORDS = 2_000


def check_kinds(log: Log, declared: Iterable[tuple[StoreArgument, TopicInfo]]) -> None:
    """Raise BadConfig for each store whose changelog is certainly of another kind; a source topic may hold any."""
    reader = log.reader()
    problems = []
    for store, info in declared:
        if "source" not in store.options:
            problem = kind_problem(store.name, store.kind, info, _newest_of(reader, info))
            problems += [] if problem is None else [problem]
    reader.close()
    if problems:
        raise BadConfig(problems)


def _newest_of(reader: LogReader, info: TopicInfo) -> list[Record]:
    """The newest records of the first partition with records."""
    bounds = reader.bounds([TopicPartition(info.name, number) for number in range(info.partitions)])
    # One partition is enough: all records of a changelog have the key layout of its kind.
    for partition, one in bounds.items():
        found = newest_records(reader, partition, one, LOOK_RECORDS)
        if found:
            return found
    return []


def read_records(reader: LogReader, partition: TopicPartition, bounds: Bounds, limit: int) -> list[Record]:
    """Up to `limit` records from the beginning of `bounds`."""
    records: list[Record] = []
    reader.assign({partition: bounds.begin})
    position = bounds.begin
    # Up to an end that was read before, or a topic that is written to all the time would never end.
    while position < bounds.end and len(records) < limit:
        for batch in reader.fetch(min(limit - len(records), FETCH_RECORDS)):
            records += [record for record in batch.records if record.offset < bounds.end]
            position = batch.next_offset
    return records[:limit]


def newest_records(reader: LogReader, partition: TopicPartition, bounds: Bounds, limit: int) -> list[Record]:
    """The last `limit` records. Offsets may have gaps, so it looks twice as far back until there are enough."""
    back = limit
    while True:
        start = max(bounds.begin, bounds.end - back)
        records = read_records(reader, partition, Bounds(start, bounds.end), bounds.end - start)
        if len(records) >= limit or start == bounds.begin:
            return records[-limit:]
        back *= 2
