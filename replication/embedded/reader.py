"""The reader of the embedded log: assigned partitions, read in turn by short transactions.

Rules of this file: it never writes. Positions move only when fetch returns, so an error loses no record. No cursor
stays open between calls: an idle reader does not keep the WAL from being reset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from standfast.replication.columns import RecordColumns, joined
from standfast.replication.embedded.blocks import read_piece
from standfast.replication.embedded.db import Database, Transaction
from standfast.replication.embedded.rows import record_columns
from standfast.replication.embedded.sums import BLOCK_RECORDS
from standfast.replication.embedded.topics import (
    PartitionRow,
    find_partition,
    find_topic,
    partition_by_id,
    partition_by_name,
)
from standfast.replication.log import Fetched
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.store.clock import Clock
from standfast.store.errors import Corruption, InvalidRequest, StateLost, UnknownStore
from standfast.store.names import few

CHUNK_RECORDS = 2_000  # one read transaction; larger ones are slower (measured: 10,000 lose a quarter)
LARGE_RECORDS = 2_000  # a fetch of so many may return a block less
FETCH_BYTES_MAX = 64 << 20  # a fetch ends early rather than hold more
# SQLite notifies no other process of a commit, so an idle reader polls the data version, at growing intervals.
POLL_FIRST_MS = 2
POLL_LAST_MS = 20

_EPOCH_BEFORE = "SELECT tag FROM epochs WHERE partition = ? AND begin_offset < ? ORDER BY begin_offset DESC LIMIT 1"
_EPOCH_END = (
    "SELECT coalesce((SELECT min(n.begin_offset) FROM epochs n WHERE n.partition = ?1 AND n.begin_offset > "
    "e.begin_offset), ?3) FROM epochs e WHERE e.partition = ?1 AND e.tag = ?2 ORDER BY e.begin_offset DESC LIMIT 1"
)


class _Slot:
    """An assigned partition. `told_end`: the caller was given `position` as the end."""

    __slots__ = ("partition_id", "paused", "position", "told_end")

    def __init__(self, partition_id: int, position: int) -> None:
        self.partition_id = partition_id
        self.position = position
        self.paused = False
        self.told_end = False


class _Taken:
    """Records of one partition in the fetch in progress."""

    __slots__ = ("at_end", "pieces", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.pieces: list[RecordColumns] = []
        self.at_end = False


class EmbeddedReader:
    """LogReader of the embedded log."""

    def __init__(self, db: Database, clock: Clock, closed: Callable[[EmbeddedReader], None]) -> None:
        self._db = db
        self._clock = clock
        self._closed = closed
        self._slots: dict[TopicPartition, _Slot] = {}
        self._turn = 0
        self._idle_version = -1  # the database's version at which a pass found nothing

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Replace the assignment; every partition begins at its position, not paused. Raises UnknownStore."""
        self._slots = self._resolve(positions)
        self._idle_version = -1

    def assignment(self) -> Mapping[TopicPartition, int]:
        """Assigned partitions with their positions now."""
        return {source: slot.position for source, slot in self._slots.items()}

    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        """Assign further partitions. One that is assigned already is InvalidRequest: use seek."""
        twice = [str(source) for source in positions if source in self._slots]
        if twice:
            raise InvalidRequest(f"{few(twice)} already assigned to this reader: move it with seek")
        self._slots.update(self._resolve(positions))
        self._idle_version = -1

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Unassign these partitions; no error for one that is not assigned."""
        for source in partitions:
            self._slots.pop(source, None)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Move the position of an assigned partition."""
        slot = self._slot(partition)
        slot.position = _checked(partition, offset)
        slot.told_end = False
        self._idle_version = -1

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch no records of these partitions until they are resumed; positions stay."""
        for slot in [self._slot(source) for source in partitions]:
            slot.paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these partitions again."""
        for slot in [self._slot(source) for source in partitions]:
            slot.paused = False
        self._idle_version = -1

    def fetch(self, max_records: int, timeout_ms: int = 0) -> list[Fetched]:
        """See LogReader. Raises StateLost, also with reason "topic-recreated"; UnknownStore if the topic is gone."""
        if max_records < 1:
            raise InvalidRequest(f"fetch needs max_records of 1 or more, got {max_records}")
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        pause_ms = POLL_FIRST_MS
        while True:
            version = self._db.data_version()  # before the pass: a commit during the pass must cause another one
            if version != self._idle_version:
                found = self._pass(max_records)
                if found:
                    return found
                self._idle_version = version
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                return []
            self._clock.sleep_ms(min(pause_ms, left_ms))
            pause_ms = min(2 * pause_ms, POLL_LAST_MS)

    def fetch_ready(self, max_records: int) -> list[Fetched]:
        """See LogReader: a fetch without a time limit does not wait here."""
        return self.fetch(max_records)

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Begin and end offsets of all these partitions, read in one transaction."""
        with self._db.mutex, self._db.guard, self._db.read() as run:
            rows = {source: partition_by_name(run, source) for source in partitions}
        return {source: Bounds(row.begin, row.end) for source, row in rows.items()}

    def written_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """See LogReader; the ends of `bounds`, since a transaction becomes visible as a whole."""
        return {source: bounds.end for source, bounds in self.bounds(partitions).items()}

    def epoch_tags(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
        """See LogReader."""
        tags = {}
        with self._db.mutex, self._db.guard, self._db.read() as run:
            for source, position in positions.items():
                row = find_partition(run, source)
                # The partition's row has the tag of the last record; an older record's tag needs a look into `epochs`.
                if row is not None and position == row.end > 0:
                    tags[source] = row.tag
                elif row is not None:
                    found = run.execute(_EPOCH_BEFORE, (row.id, position)).fetchone()
                    tags[source] = found[0] if found is not None else ""
        return {source: tag for source, tag in tags.items() if tag}

    def epoch_ends(self, tags: Mapping[TopicPartition, str]) -> dict[TopicPartition, int]:
        """See LogReader."""
        ends = {}
        with self._db.mutex, self._db.guard, self._db.read() as run:
            for source, tag in tags.items():
                row = find_partition(run, source)
                if row is not None and tag:
                    found = run.execute(_EPOCH_END, (row.id, tag, row.end)).fetchone()
                    ends[source] = 0 if found is None else int(found[0])
        return ends

    def close(self) -> None:
        """Close the connection. Twice is fine."""
        self._db.close()
        self._closed(self)

    def _resolve(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, _Slot]:
        with self._db.mutex, self._db.guard, self._db.read() as run:
            return {
                TopicPartition(*source): _Slot(partition_by_name(run, source).id, _checked(source, position))
                for source, position in positions.items()
            }

    def _slot(self, source: TopicPartition) -> _Slot:
        slot = self._slots.get(source)
        if slot is None:
            held = few(self._slots) or "nothing"
            raise InvalidRequest(f"{TopicPartition(*source)} is not assigned to this reader, it has {held}")
        return slot

    def _pass(self, max_records: int) -> list[Fetched]:
        """Read the partitions in turn until there are enough records or all are at their end."""
        turn = [source for source, slot in self._slots.items() if not slot.paused]
        if turn:  # begin with another partition each time, or the first ones would get every small fetch
            first = self._turn % len(turn)
            turn = turn[first:] + turn[:first]
            self._turn += 1
        taken: dict[TopicPartition, _Taken] = {}
        left, left_bytes = max_records, FETCH_BYTES_MAX
        # A part of a block costs as much as all of it, and the next fetch would read the block again.
        enough = BLOCK_RECORDS if max_records >= LARGE_RECORDS else 0
        while turn and left > enough and left_bytes > 0:
            share = max(1, left // len(turn))
            more = []
            for source in turn:
                if left <= 0 or left_bytes <= 0:
                    break
                slot = self._slots[source]
                piece = taken.setdefault(source, _Taken(slot.position))
                try:
                    count, size = self._read(source, slot.partition_id, piece, min(share, left), left_bytes)
                except (StateLost, UnknownStore, Corruption) as error:
                    error.sources = (source,)
                    raise
                left -= count
                left_bytes -= size
                if not piece.at_end:
                    more.append(source)
            turn = more
        before = [(slot, slot.position, slot.told_end) for slot in map(self._slots.__getitem__, taken)]
        try:
            return [found for source, piece in taken.items() if (found := self._settle(source, piece)) is not None]
        except BaseException:  # of a signal handler: nothing was given to the caller
            for slot, position, told_end in before:
                slot.position, slot.told_end = position, told_end
            raise

    def _settle(self, source: TopicPartition, piece: _Taken) -> Fetched | None:
        """Move the position; None if there are no records and the caller knows the end already."""
        slot = self._slots[source]
        if piece.position == slot.position and (slot.told_end or not piece.at_end):
            return None
        slot.position = piece.position
        slot.told_end = piece.at_end
        records = joined(piece.pieces) if piece.pieces else []
        return Fetched(source, records, piece.position, piece.at_end)

    def _read(
        self, source: TopicPartition, partition_id: int, piece: _Taken, want: int, bytes_max: int
    ) -> tuple[int, int]:
        """Read one chunk into `piece`; returns the number of records and the bytes of their keys and values."""
        with self._db.mutex, self._db.guard, self._db.read() as run:
            row = partition_by_id(run, partition_id)
            if row is None:
                raise self._lost(run, source)
            position = piece.position
            if not row.begin <= position <= row.end:
                raise _out_of_range(source, position, row)
            if position == row.end:
                piece.at_end = True
                return 0, 0
            fitting = bytes_max // max(row.widest_bytes, 1)
            limit = max(1, min(want, CHUNK_RECORDS, fitting))
            read = read_piece(run, row, position, limit)
        records = record_columns(read.offsets, read.cells, read.payload_bytes)
        if len(records) > limit:  # only a whole block can be checked; the next fetch reads the rest again
            records = records[:limit]
            piece.position = records.offsets[-1] + 1
        else:
            piece.position = read.next_offset
        piece.at_end = piece.position == row.end
        if records:
            piece.pieces.append(records)
        return len(records), records.payload_bytes

    def _lost(self, run: Transaction, source: TopicPartition) -> Exception:
        if find_topic(run, source.topic) is not None:
            return StateLost(
                f"{source}: topic {source.topic!r} was deleted and recreated since this reader was assigned: "
                "reinitialise from its beginning",
                reason="topic-recreated",
            )
        try:
            partition_by_name(run, source)
        except InvalidRequest as error:
            return error
        raise AssertionError("a partition without a topic")


def _checked(source: TopicPartition, position: int) -> int:
    if not isinstance(position, int) or position < 0:
        raise InvalidRequest(f"{TopicPartition(*source)}: position {position!r} is not an offset, use 0 or more")
    return position


def _out_of_range(source: TopicPartition, position: int, row: PartitionRow) -> StateLost:
    return StateLost(
        f"{source}: position {position} is outside of the log, begin {row.begin} to end {row.end}: "
        "reinitialise from the beginning",
        reason="offset-out-of-range",
    )
