"""Applies changelog records to a task's stores, together with their positions (as Kafka Streams' state updater).

    Fetched ──> stores.restore (rows) + cut with the new position ──> one WriteBatch

Rules of this file: restore and standby both use it; it decides nothing (how far, when, whether: see
`standfast.restore.plan` and `standfast.replication.standby`). A position never moves without its rows. Records without
a key are skipped and counted; so are records of a source topic that serves as the changelog (`limited`) if the store
cannot hold them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from standfast.replication.log import Log, LogReader, Record, TopicInfo
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.source_records import as_logged
from standfast.replication.topics.tombstones import are_expired
from standfast.store.clock import Clock
from standfast.store.errors import Corruption, InternalError, StandfastError, StateLost
from standfast.store.log import as_event, logger
from standfast.store.task.commit_record import CommitRecord, Position, StoreTimes
from standfast.store.task.task_stores import TaskStores

STAGED_BYTES_MAX = 16 << 20  # keys and values of all staged rows, of restores and of standbys each


def note_lost(lost: dict[TaskId, StandfastError], task: TaskId, changelog: TopicPartition, error: StateLost) -> None:
    """Note that a changelog's state is lost; diverged changelogs take precedence, since no position shows them."""
    error.sources = (changelog,)
    before = lost.get(task)
    if isinstance(before, StateLost) and before.reason == "diverged":
        if error.reason == "diverged":
            before.sources = (*before.sources, changelog)
        return
    lost[task] = error


class ChangelogApplier:
    """The changelogs of one task: maps partitions to stores, and moves their positions."""

    def __init__(
        self,
        task: TaskId,
        stores: TaskStores,
        topics: Mapping[str, TopicInfo],
        clock: Clock,
        epochs: LogReader | None = None,
    ) -> None:
        """`epochs` gives the tags of positions, to the thread that moves them; None: positions get no tags."""
        self.task = task
        self._epochs = epochs
        self.stores = stores
        self._clock = clock
        self._topics = dict(topics)
        self.partition_counts = {TopicPartition(info.name, task.partition): info.partitions for info in topics.values()}
        self.changelogs = {name: TopicPartition(info.name, task.partition) for name, info in topics.items()}
        self.store_of = {partition: name for name, partition in self.changelogs.items()}
        # Source topics hold records that are not processed yet: only those below the group's committed offset may be
        # applied.
        self.limited = frozenset(at for name, at in self.changelogs.items() if stores.specs[name].from_source)
        self.skipped = 0  # records that no store wrote, since the opening
        self._warned: set[TopicPartition] = set()
        self._staged: dict[str, int] = {}  # next offset by store, of staged rows
        self._staged_ms = 0  # when the first of them were staged

    def position(self, changelog: TopicPartition) -> Position | None:
        """The stored position of a changelog, or None if no record was ever applied."""
        return self.stores.cut.positions.get(self._store(changelog))

    def topic_id(self, changelog: TopicPartition) -> str:
        """Identity of the topic to which the stored positions belong."""
        return self._topics[self._store(changelog)].topic_id

    def lost_reason(
        self, log: Log, reader: LogReader, changelog: TopicPartition, position: int, cause: StandfastError
    ) -> str | None:
        """Why a position does not fit the log any more, or None if it fits; `cause` is the reader's error."""
        # The topic first: in a recreated one the offsets below mean other records.
        info = log.admin.describe_topic(changelog.topic)
        if info is None or info.topic_id != self.topic_id(changelog):
            return "topic-recreated"
        begin, end = reader.bounds([changelog])[changelog]
        if position < begin:
            return "truncated"
        if isinstance(cause, StateLost) and cause.reason == "diverged" and changelog in cause.sources:
            return cause.reason
        return "position-ahead" if position > end else None

    def stage(self, changelog: TopicPartition, records: Sequence[Record], next_offset: int) -> int:
        """Turn records (in offset order) into rows, which the next `write` writes; returns the number of staged rows.

        Raises Corruption for damage; its `sources` name the changelog if a record is at fault. Raises StateLost where
        the process stood still for so long that deletes before these records may be gone. Then no row is staged any
        more.
        """
        name = self._store(changelog)
        self._check_age(name, changelog, next_offset)
        given = len(records)
        if changelog in self.limited:
            records = self._writable(changelog, name, records)
        counters = self.stores.store(name).rows.counters
        before = counters.skipped
        try:
            rows = self.stores.stage(name, records) if records else self.stores.staged_rows
        except BaseException as error:
            self._staged = {}  # the stores have dropped all staged rows
            if isinstance(error, Corruption):
                raise self._blame(changelog, name, records, error) from error
            raise
        if counters.skipped > before:
            self._warn(changelog, counters.skipped - before, next_offset, "no key, so that no store wrote them")
        self.skipped += given - len(records) + counters.skipped - before
        if not self._staged:
            self._staged_ms = self._clock.wall_ms()
        self._staged[name] = next_offset
        return rows

    def unstage(self) -> None:
        """Drop the staged rows."""
        self._staged = {}
        self.stores.unstage()

    def write(self) -> int:
        """Write the staged rows and move their changelogs' positions, in one batch; returns the number of rows."""
        # Not the present time: the log may have dropped deletes behind these rows since they were read. If the log does
        # not answer here, rows and positions stay staged together: else the next write would take the rows alone.
        cut = self._cut_at(self._staged, self._staged_ms)
        self._staged = {}
        return self.stores.apply({}, cut)

    def apply(self, changelog: TopicPartition, records: Sequence[Record], next_offset: int) -> int:
        """`stage` and `write`: apply records and move the position to `next_offset`, in one batch."""
        self.stage(changelog, records, next_offset)
        return self.write()

    def confirm(self, changelog: TopicPartition, at_ms: int) -> None:
        """Give the position of a changelog a time at which it was the log's end; staged rows are written with it.

        Not the present time: the process may have stood still for days since the end was read.
        """
        name = self._store(changelog)
        self._staged_ms = min(at_ms, self._staged_ms) if self._staged else at_ms
        self._staged[name] = self.stores.cut.positions[name].offset
        self.write()

    def ingest(
        self,
        changelog: TopicPartition,
        files: Sequence[tuple[str, Path]],
        next_offset: int,
        times: StoreTimes,
        skipped: int = 0,
        lookups: Sequence[tuple[str, bytes]] | None = None,
    ) -> None:
        """Ingest sorted files (family, path) and move the position to `next_offset`; see `TaskStores.ingest`.

        `skipped` is the number of their records without a key.
        """
        name = self._store(changelog)
        self.stores.ingest(name, files, times, self._cut_at({name: next_offset}, self._clock.wall_ms()), lookups)
        if skipped:
            self.stores.store(name).rows.counters.skipped += skipped
            self._warn(changelog, skipped, next_offset, "no key, so that no store wrote them")

    def epoch_tags(self, positions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, str]:
        """Tags of the log's epochs at these positions; see LogReader."""
        return {} if self._epochs is None or not positions else self._epochs.epoch_tags(positions)

    def diverged(
        self, positions: Mapping[TopicPartition, int], tags: Mapping[TopicPartition, str]
    ) -> set[TopicPartition]:
        """Partitions whose log now has other records before these positions than it had at their reading."""
        known = {at: tag for at, tag in tags.items() if at in positions}
        ends = {} if self._epochs is None or not known else self._epochs.epoch_ends(known)
        return {at for at, end in ends.items() if positions[at] > end}

    def advanced(
        self,
        acknowledged: Mapping[TopicPartition, int],
        committed: Mapping[TopicPartition, int],
        tags: Mapping[TopicPartition, str],
        *,
        marked: bool,
    ) -> dict[str, Position]:
        """Positions by store after the log acknowledged the task's own writes up to these next offsets.

        The task is the only writer, so its other changelogs stand at their ends, too, and are valid now; the offset
        after its own records holds a marker, if the log writes any (`marked`). Other programs write a source topic: its
        position is the source offset in `committed`, and stays without one.
        """
        now_ms = self._clock.wall_ms()
        positions = dict(self.stores.cut.positions)
        for name, changelog in self.changelogs.items():
            own = changelog not in self.limited
            moved = (acknowledged if own else committed).get(changelog)
            if moved is not None:
                tag = tags.get(changelog, "")
                positions[name] = Position(moved, -1, self._topics[name].topic_id, now_ms, own and marked, tag)
            elif own and name in positions:
                # The age of a position counts against the tombstones' retention, so a quiet store must not look old.
                positions[name] = positions[name]._replace(at_ms=now_ms)
        return positions

    def _check_age(self, name: str, changelog: TopicPartition, next_offset: int) -> None:
        """Refuse records behind a position that the restore plan finds too old: a machine may be suspended for days."""
        stored, policy = self.stores.cut.positions.get(name), self._topics[name].policy
        if stored is None or next_offset <= stored.offset + stored.marker:
            return
        age_ms = self._clock.wall_ms() - stored.at_ms
        if are_expired(age_ms, policy.cleanup, policy.delete_retention_ms):
            self.unstage()
            lost = StateLost(
                f"task {self.task}: the position {stored.offset} of {changelog} is {age_ms} ms old, and deletes behind "
                f"it go after {policy.delete_retention_ms} ms: this process stood still, or its clock was put forward",
                reason="tombstones-expired",
            )
            lost.sources = (changelog,)
            raise lost

    def _cut_at(self, moved: Mapping[str, int], at_ms: int) -> CommitRecord:
        """The cut with these stores' positions moved, as of a time."""
        tags = self.epoch_tags({self.changelogs[name]: offset for name, offset in moved.items()})
        positions = {
            name: Position(offset, -1, self._topics[name].topic_id, at_ms, tag=tags.get(self.changelogs[name], ""))
            for name, offset in moved.items()
        }
        return replace(self.stores.cut, positions={**self.stores.cut.positions, **positions})

    def _writable(self, changelog: TopicPartition, name: str, records: Sequence[Record]) -> Sequence[Record]:
        kept = as_logged(self.stores.specs[name], records)
        skipped = len(records) - len(kept)
        if skipped:
            self.stores.stores[name].rows.counters.skipped += skipped
            why = f"no key, or bytes that the serdes of store {name!r} cannot read, as its puts would refuse them"
            self._warn(changelog, skipped, records[-1].offset + 1, why)
        return kept

    def _warn(self, changelog: TopicPartition, count: int, next_offset: int, why: str) -> None:
        """Log that records were skipped, once for each opening, since a topic may have any number of them."""
        if changelog not in self._warned:
            self._warned.add(changelog)
            logger.warning(
                "task %s: %d records of %s below offset %d are skipped: they have %s; further ones are only counted",
                self.task,
                count,
                changelog,
                next_offset,
                why,
                extra=as_event(
                    "records_skipped", task=self.task, changelog=changelog, records=count, offset=next_offset
                ),
            )

    def _blame(self, changelog: TopicPartition, name: str, records: Sequence[Record], error: Corruption) -> Corruption:
        """The error, or one that blames a record if that caused it: then the log is at fault, not the rows here."""
        found = self.stores.unreadable(name, records)
        if found is None:
            return error
        blamed = Corruption(
            f"{changelog}: the record at offset {found[0]} cannot be a row of the {self.stores.specs[name].kind} store "
            f"{name!r} ({error}): nothing was applied from there on, and the local rows stay; find out which program "
            "else writes to this topic, then remove its records or give the store a new name"
        )
        blamed.sources = (changelog,)
        return blamed

    def _store(self, changelog: TopicPartition) -> str:
        try:
            return self.store_of[changelog]
        except KeyError:
            raise InternalError(f"task {self.task} was handed a record of {changelog}, which is not its own") from None
