"""Topics and partitions of the embedded log: find, create, describe, change, delete.

Rules of this file: it works inside transactions of db.py and holds no lock for long; it only marks the records of a
deleted topic, and care.py purges them in chunks. It must not know of readers, writers or groups.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

from standfast.replication.checks import check_partitions, check_policy
from standfast.replication.embedded.db import Database, Transaction
from standfast.replication.embedded.rows import PARTITION_ID_MAX, SELECT_FIRST_AT, first_id
from standfast.replication.embedded.schema import SEALED
from standfast.replication.embedded.sums import check_seal, seal
from standfast.replication.log import LogSurvey, TopicInfo, TopicPolicy, TopicSurvey
from standfast.replication.offsets import TopicPartition
from standfast.replication.permissions import Need
from standfast.replication.topics.settings import changed
from standfast.store.errors import InvalidRequest, Unavailable, UnknownStore
from standfast.store.names import check_topic, few
from standfast.store.outside import new_id

DIRTY_RATIO = "min.cleanable.dirty.ratio"  # of TopicPolicy.extra; Kafka's name and default
DIRTY_RATIO_DEFAULT = 0.5
SCAN_OFFSETS = 200_000  # offsets of one read transaction: a longer one would keep the WAL from being reset


class PartitionRow(NamedTuple):
    """A partition as stored; `keyed` if its topic is compacted, so that every record needs a key.

    Records below `summed` have no checksum. `tag` is the tag of the last record's epoch.
    """

    id: int
    topic: int
    number: int
    begin: int
    end: int
    keyed: int
    has_headers: int
    widest_bytes: int
    clean: int
    swept: int
    kept: int
    appended_ms: int
    aged_ms: int
    summed: int
    tag: str
    name: str

    @property
    def source(self) -> TopicPartition:
        """Topic and number, the partition's name outside of this log."""
        return TopicPartition(self.name, self.number)


_COLUMNS = SEALED["partitions"]
_BY_NAME = (
    f"SELECT {', '.join(f'p.{name}' for name in _COLUMNS)}, t.name, p.seal FROM topics t "  # noqa: S608  names of ours
    "JOIN partitions p ON p.topic = t.id WHERE t.name = ? AND p.number = ?"
)
_BY_ID = _BY_NAME.replace("t.name = ? AND p.number = ?", "p.id = ?")
_CHANGING = _COLUMNS[3:]  # writing key and topic too would update their indexes with each append
_STORE = f"UPDATE partitions SET {', '.join(f'{name} = ?' for name in _CHANGING)}, seal = ? WHERE id = ?"  # noqa: S608


def partition_by_name(run: Transaction, source: TopicPartition) -> PartitionRow:
    """The partition. Raises UnknownStore naming the topics that exist, Corruption if the row's seal does not match."""
    row = find_partition(run, source)
    if row is None:
        raise _unknown(run, *source)
    return row


def find_partition(run: Transaction, source: TopicPartition) -> PartitionRow | None:
    """The partition, None if there is none. Raises Corruption if the row's seal does not match."""
    topic, number = source
    found = run.execute(_BY_NAME, (topic, number)).fetchone()
    return None if found is None else _checked(found)


def partition_by_id(run: Transaction, partition_id: int) -> PartitionRow | None:
    """The partition, None if its topic was deleted. Raises Corruption if the row's seal does not match."""
    found = run.execute(_BY_ID, (partition_id,)).fetchone()
    return None if found is None else _checked(found)


def store_partition(run: Transaction, row: PartitionRow) -> None:
    """Write the row of a partition that the caller read in this very transaction."""
    columns = row[:-1]
    run.execute(_STORE, (*columns[3:], seal(*columns), row.id))


def _checked(found: tuple[Any, ...]) -> PartitionRow:
    row = PartitionRow._make(found[:-1])
    check_seal(str(row.source), found[-1], *row[:-1])
    return row


def partition_ids(run: Transaction, name: str) -> list[int]:
    """Ids of a topic's partitions in their order. Raises UnknownStore."""
    rows = run.execute(
        "SELECT p.id FROM topics t JOIN partitions p ON p.topic = t.id WHERE t.name = ? ORDER BY p.number", (name,)
    ).fetchall()
    if not rows:
        raise _unknown(run, name, 0)
    return [partition_id for (partition_id,) in rows]


_TOPICS = "SELECT id, name, topic_id, partitions, policy, seal FROM topics"


def find_topic(run: Transaction, name: str) -> TopicInfo | None:
    """The topic of this name, None if there is none."""
    row = run.execute(f"{_TOPICS} WHERE name = ?", (name,)).fetchone()
    return None if row is None else _topic(row)


def all_topics(run: Transaction) -> list[TopicInfo]:
    """All topics by name."""
    return [_topic(row) for row in run.execute(f"{_TOPICS} ORDER BY name").fetchall()]


def dirty_ratio(policy: TopicPolicy) -> float:
    """Share of a compacted log that must be new before routine care compacts it."""
    return float(policy.extra.get(DIRTY_RATIO, DIRTY_RATIO_DEFAULT))


class EmbeddedAdmin:
    """LogAdmin of the embedded log. Several threads may use it."""

    def __init__(
        self, db: Database, purge: Callable[[], object], truncate: Callable[[TopicPartition, int], object]
    ) -> None:
        self._db = db
        self._purge = purge
        self._truncate = truncate

    def create_topic(self, name: str, partitions: int, policy: TopicPolicy) -> TopicInfo:
        """Create a topic; returns an existing one unchanged. Raises InvalidRequest for a bad name or policy."""
        text = check_new_topic(name, partitions, policy)
        with self._db.lock(), self._db.mutex, self._db.guard, self._db.write() as run:
            existing = find_topic(run, name)
            if existing is not None:
                return existing
            topic_id = new_id("topic", 32)  # by which a recreated topic differs from the deleted one of the same name
            topic = run.execute(
                "INSERT INTO topics (name, topic_id, partitions, policy) VALUES (?, ?, ?, ?) RETURNING id",
                (name, topic_id, partitions, text),
            ).fetchone()[0]
            _seal_topic(run, topic)
            self._insert_partitions(run, topic, range(partitions), policy)
        return _info(name, topic_id, partitions, text)

    def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Grow a topic to that many partitions. Raises UnknownStore, InvalidRequest for fewer than it has."""
        check_partitions(name, partitions)
        with self._db.lock(), self._db.mutex, self._db.guard, self._db.write() as run:
            found = _existing(run, name)
            if partitions < found.partitions:
                raise InvalidRequest(
                    f"topic {name!r} has {found.partitions} partitions and cannot have {partitions}: "
                    "the log never removes partitions"
                )
            topic = run.execute(
                "UPDATE topics SET partitions = ? WHERE name = ? RETURNING id", (partitions, name)
            ).fetchone()[0]
            _seal_topic(run, topic)
            self._insert_partitions(run, topic, range(found.partitions, partitions), found.policy)
            return replace(found, partitions=partitions)

    def change_topic(self, name: str, settings: Mapping[str, str]) -> TopicInfo:
        """Change settings by name; the others stay. Raises UnknownStore, InvalidRequest for an invalid value.

        A topic that becomes compacted refuses records without a key from then on.
        """
        with self._db.lock(), self._db.mutex, self._db.guard, self._db.write() as run:
            found = _existing(run, name)
            policy = changed(found.policy, settings)
            topic = run.execute(
                "UPDATE topics SET policy = ? WHERE name = ? RETURNING id", (_policy_text(name, policy), name)
            ).fetchone()[0]
            _seal_topic(run, topic)
            # Appends check `keyed` in the partition's row, which they read anyway.
            for partition_id in partition_ids(run, name):
                row = partition_by_id(run, partition_id)
                assert row is not None
                store_partition(run, row._replace(keyed=int("compact" in policy.cleanup)))
            return replace(found, policy=policy)

    def survey(self, names: Iterable[str]) -> LogSurvey:
        """The topics of these names; this log has no brokers and no settings of its own."""
        with self._db.mutex, self._db.guard, self._db.read() as run:
            found = {name: find_topic(run, name) for name in names}
        return LogSurvey((), {}, {name: None if info is None else TopicSurvey(info) for name, info in found.items()})

    def groups(self) -> list[str]:
        """Names of the groups that committed offsets or have members."""
        with self._db.mutex, self._db.guard, self._db.read() as run:
            rows = run.execute("SELECT group_name FROM committed UNION SELECT group_name FROM members").fetchall()
        return sorted(name for (name,) in rows)

    def consumers(self, group: str) -> tuple[str, ...]:
        """Empty: this log has no consumer protocol beside ours."""
        return ()

    def describe_topic(self, name: str) -> TopicInfo | None:
        """The topic of this name, None if there is none."""
        with self._db.mutex, self._db.guard, self._db.read() as run:
            return find_topic(run, name)

    def topics(self) -> list[TopicInfo]:
        """All topics by name."""
        with self._db.mutex, self._db.guard, self._db.read() as run:
            return all_topics(run)

    def topic_names(self) -> list[str]:
        """Names of all topics, in order."""
        with self._db.mutex, self._db.guard, self._db.read() as run:
            return [name for (name,) in run.execute("SELECT name FROM topics ORDER BY name").fetchall()]

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records and the offsets that groups committed for it.

        The topic is gone at once; this call removes its records in chunks (after a crash, the next care does).
        """
        with self._db.lock(), self._db.mutex, self._db.guard, self._db.write() as run:
            ids = [(partition_id,) for partition_id in partition_ids(run, name)]
            # Only marked: removing all records in this transaction would hold the lock for as long as that takes.
            run.executemany("INSERT INTO doomed (partition) VALUES (?)", ids)
            run.executemany("DELETE FROM partitions WHERE id = ?", ids)
            run.executemany("DELETE FROM ages WHERE partition = ?", ids)
            run.executemany("DELETE FROM epochs WHERE partition = ?", ids)
            run.execute("DELETE FROM topics WHERE name = ?", (name,))
            run.execute("DELETE FROM committed WHERE topic = ?", (name,))  # as Kafka's brokers do
        self._purge()

    def delete_group(self, name: str) -> None:
        """Delete the committed offsets of a group."""
        with self._db.lock(), self._db.mutex, self._db.guard, self._db.write() as run:
            run.execute("DELETE FROM committed WHERE group_name = ?", (name,))

    def first_offsets(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """First offset at or after a timestamp, the end if there is none. Raises UnknownStore.

        The log keeps no index of times: this scans the records in short transactions, about 10 million a second.
        """
        return {source: self._first_offset(source, time_ms) for source, time_ms in times_ms.items()}

    def _first_offset(self, source: TopicPartition, time_ms: int) -> int:
        position = 0
        while True:
            with self._db.mutex, self._db.guard, self._db.read() as run:
                row = partition_by_name(run, source)
                position = max(position, row.begin)
                stop = min(position + SCAN_OFFSETS, row.end)
                found = run.execute(SELECT_FIRST_AT, (first_id(row.id), position, stop, time_ms)).fetchone()
            if found is not None:
                return int(found[0])
            if stop >= row.end:
                return row.end
            position = stop

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Remove the records below these offsets, in chunks."""
        for source, offset in before.items():
            self._truncate(source, offset)

    def lacking(self, needs: Iterable[Need]) -> list[str]:
        """Empty: a process that may open the file may do everything."""
        return []

    def _insert_partitions(self, run: Transaction, topic: int, numbers: Iterable[int], policy: TopicPolicy) -> None:
        keyed = int("compact" in policy.cleanup)
        run.executemany(
            "INSERT INTO partitions (topic, number, keyed) VALUES (?, ?, ?)",
            [(topic, number, keyed) for number in numbers],
        )
        for number in numbers:
            columns = run.execute(_FRESH, (topic, number)).fetchone()
            run.execute("UPDATE partitions SET seal = ? WHERE id = ?", (seal(*columns), columns[0]))
        highest = run.execute("SELECT max(id) FROM partitions").fetchone()[0]
        if highest >= PARTITION_ID_MAX:
            raise Unavailable(f"log {self._db.path} has used up its partition numbers: begin a new file")


_FRESH = f"SELECT {', '.join(_COLUMNS)} FROM partitions WHERE topic = ? AND number = ?"  # noqa: S608  names of ours


def _seal_topic(run: Transaction, topic: int) -> None:
    """Seal the row of a topic that the caller wrote in this very transaction."""
    row = run.execute(f"{_TOPICS} WHERE id = ?", (topic,)).fetchone()
    run.execute("UPDATE topics SET seal = ? WHERE id = ?", (seal(*row[:-1]), topic))


def _topic(row: tuple[Any, ...]) -> TopicInfo:
    check_seal(f"topic {row[1]!r}", row[-1], *row[:-1])
    return _info(*row[1:-1])


def _existing(run: Transaction, name: str) -> TopicInfo:
    found = find_topic(run, name)
    if found is None:
        raise _unknown(run, name, 0)
    return found


def _unknown(run: Transaction, topic: str, number: int) -> UnknownStore:
    info = find_topic(run, topic) if isinstance(topic, str) else None
    if info is not None:
        return UnknownStore(f"topic {topic!r} has no partition {number}, only 0 to {info.partitions - 1}")
    names = [name for (name,) in run.execute("SELECT name FROM topics ORDER BY name").fetchall()]
    if not names:
        return UnknownStore(f"there is no topic {topic!r}, the log has no topics yet: create it first")
    import difflib  # its modules are for errors alone

    near = difflib.get_close_matches(str(topic), names, 1)
    return UnknownStore(
        f"there is no topic {topic!r}"
        + (f", did you mean {near[0]!r}?" if near else ".")
        + f" The log has: {few(names)}"
    )


def check_new_topic(name: str, partitions: int, policy: TopicPolicy) -> str:
    """The policy of a new topic as JSON. Raises InvalidRequest for a bad name, number or policy."""
    check_topic(name)
    check_partitions(name, partitions)
    return _policy_text(name, policy)


def _policy_text(name: str, policy: TopicPolicy) -> str:
    """The policy as JSON. Raises InvalidRequest for a bad policy."""
    check_policy(name, policy)
    try:
        ratio_fits = 0 <= dirty_ratio(policy) <= 1
    except ValueError:
        ratio_fits = False
    if not ratio_fits:
        raise InvalidRequest(f"topic {name!r}: {DIRTY_RATIO} is {policy.extra[DIRTY_RATIO]!r}, use 0 to 1")
    whole = {one.name: getattr(policy, one.name) for one in fields(policy)}
    return json.dumps({**whole, "cleanup": sorted(policy.cleanup), "extra": dict(policy.extra)}, sort_keys=True)


def _info(name: str, topic_id: str, partitions: int, text: str) -> TopicInfo:
    fields = json.loads(text)
    fields["cleanup"] = frozenset(fields["cleanup"])
    return TopicInfo(name, topic_id, partitions, TopicPolicy(**fields))
