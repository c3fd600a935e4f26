"""Writers of the embedded log: one SQLite transaction per call, fenced by the epoch of the transactional id.

Rules of this file: records and arguments are checked before the lock is taken, the epoch inside the transaction, so no
record of a fenced writer can slip in. It must not know of leases, except whether a member is live.
"""

from __future__ import annotations

from collections.abc import Callable

from standfast.replication.checks import check_commit, check_text
from standfast.replication.embedded.blocks import append_blocks
from standfast.replication.embedded.db import Database, Transaction
from standfast.replication.embedded.group import check_claim, find_writer, lease_left_ms, store_commit
from standfast.replication.embedded.rows import OFFSET_MAX, PreparedBatch, first_id, insert, prepare
from standfast.replication.embedded.sums import seal
from standfast.replication.embedded.topics import PartitionRow, partition_by_name, store_partition
from standfast.replication.log import Batches, GroupCommit, WriterClaim
from standfast.replication.offsets import TopicPartition
from standfast.replication.record_limits import TopicLimits
from standfast.store.clock import Clock
from standfast.store.errors import Held, InvalidRequest
from standfast.store.outside import new_id
from standfast.store.timestamps import duration_text

# Step in which a partition notes when its records were appended (see care.py).
AGE_STEP_MS = 600_000
_NO_LIMITS = TopicLimits()


class Began:
    """Epoch of one writer, or of the producers of one opened log: its tag, and the partitions in which it began.

    An epoch's tag is random, and its first append in a partition begins it there. So when a file is put back to an
    older state and written on, the new records belong to an epoch that the other history does not have. Later appends
    go on in the partition's current epoch, since no other file can replace one that is open: writers that take turns
    need one epoch each, not one for each append.
    """

    def __init__(self) -> None:
        self.tag = new_id("writer", 16)
        self.partitions: set[int] = set()


class EmbeddedWriter:
    """LogWriter of the embedded log; without a transactional id it is a producer."""

    def __init__(
        self,
        db: Database,
        clock: Clock,
        closed: Callable[[EmbeddedWriter], None],
        began: Began,
        fence: WriterClaim | None = None,
    ) -> None:
        self._db = db
        self._began = began
        self._clock = clock
        self._closed = closed
        self._fence = fence

    @property
    def epoch(self) -> int:
        """Epoch of the transactional id when this writer was opened; 0 for a producer."""
        return self._fence.epoch if self._fence else 0

    @property
    def claim(self) -> WriterClaim | None:
        """The id and epoch that every write is checked against; None for a producer."""
        return self._fence

    @property
    def marks_transactions(self) -> bool:
        """False: a transaction here is one of SQLite and adds no marker record."""
        return False

    @property
    def limits(self) -> TopicLimits:
        """None of a topic: the file takes records of any size that a session lets through."""
        return _NO_LIMITS

    def append(self, batches: Batches, *, meanwhile: Callable[[], None] | None = None) -> dict[TopicPartition, int]:
        """Write and wait for the acknowledgement. Returns next offset per partition; here it is all or nothing too.

        `meanwhile` is not called: nothing waits for another process here.
        """
        return self._write(batches, None)

    def transact(
        self, batches: Batches, commit: GroupCommit | None = None, *, meanwhile: Callable[[], None] | None = None
    ) -> dict[TopicPartition, int]:
        """Write records and commit group offsets, all or nothing. Returns the next offset per partition.

        Raises Fenced if a newer writer was opened, UnknownStore or InvalidRequest for a bad partition or record; in
        each case nothing was written.
        """
        if commit is not None:
            check_commit(commit.group, commit.offsets)
        return self._write(batches, commit)

    def close(self) -> None:
        """Close the connection; the transactional id keeps its owner. Twice is fine."""
        self._db.close()
        self._closed(self)

    def _write(self, batches: Batches, commit: GroupCommit | None) -> dict[TopicPartition, int]:
        sources = [TopicPartition(*source) for source in batches]
        prepared = [(source, prepare(source, batches[source])) for source in sources]
        now_ms = self._clock.wall_ms()
        with self._db.lock(), self._db.mutex, self._db.guard, self._db.write() as run:
            if self._fence:
                check_claim(run, self._fence)
            rows = {source: _append(run, source, batch, now_ms, self._began) for source, batch in prepared}
            if commit is not None:
                store_commit(run, commit.group, commit.offsets)
        # Only after the commit: a write that was rolled back began no epoch, so the next append must begin it.
        self._began.partitions |= {
            row.id for (_, batch), row in zip(prepared, rows.values(), strict=True) if batch.records
        }
        return {source: row.end for source, row in rows.items()}


def open_epoch(
    db: Database, transactional_id: str, *, group: str, owner: str, if_free: bool, clock: Clock, boot: str
) -> int:
    """Take over the transactional id, in one atomic step that fences every older writer of it. Returns the epoch.

    Raises Held if `if_free` and its last owner is another live member of `group`.
    """
    check_text("transactional id", transactional_id)
    check_text("group name", group)
    check_text("owner", owner)
    # A take-over is tried again anyway, and its thread also reads for standbys: it must not wait for a stuck holder.
    with db.lock(patient=False), db.mutex, db.guard, db.write() as run:
        row = find_writer(run, transactional_id)
        last_owner, last_epoch = row if row is not None else (owner, 0)
        if if_free and last_owner != owner:
            left_ms = lease_left_ms(run, group, last_owner, clock.monotonic_ms(), boot)
            if left_ms is not None:
                raise Held(
                    f"{transactional_id!r} belongs to {last_owner!r}, a live member of group {group!r} with "
                    f"{duration_text(left_ms)} of lease left: claim it when that member has left or its lease has run "
                    "out"
                )
        columns = (transactional_id, group, owner, last_epoch + 1, boot)
        run.execute(
            "INSERT OR REPLACE INTO writers (transactional_id, group_name, owner, epoch, boot_id, seal) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (*columns, seal(*columns)),
        )
    return int(last_epoch) + 1


def _append(run: Transaction, source: TopicPartition, batch: PreparedBatch, now_ms: int, began: Began) -> PartitionRow:
    """Write one partition's batch; returns the partition's new row."""
    row = partition_by_name(run, source)
    if not batch.records:
        return row
    if row.keyed and batch.keyless:
        raise InvalidRequest(f"{source}: a record without a key cannot go into a compacted topic: give it a key")
    end = row.end + batch.records
    if end > OFFSET_MAX:
        raise InvalidRequest(f"{source}: the partition is full at offset {row.end}: create a new topic")
    insert(run.execute, first_id(row.id) + row.end, batch)
    append_blocks(run, row, batch)
    tag = row.tag
    if row.id not in began.partitions:
        tag = began.tag
        run.execute(
            "INSERT OR REPLACE INTO epochs (partition, begin_offset, tag) VALUES (?, ?, ?)", (row.id, row.end, tag)
        )
    after = row._replace(
        end=end,
        has_headers=max(row.has_headers, int(batch.width == 4)),
        widest_bytes=max(row.widest_bytes, batch.widest_bytes),
        appended_ms=max(now_ms, row.appended_ms),
        aged_ms=_remember_age(run, row, now_ms),
        tag=tag,
    )
    store_partition(run, after)
    return after


def _remember_age(run: Transaction, row: PartitionRow, now_ms: int) -> int:
    """Once per `AGE_STEP_MS`, note that every record below the end was appended by `row.appended_ms`.

    Returns the time of the last note.
    """
    if now_ms - row.aged_ms < AGE_STEP_MS:
        return row.aged_ms
    if row.end:
        run.execute(
            "INSERT OR REPLACE INTO ages (partition, end_offset, appended_ms) VALUES (?, ?, ?)",
            (row.id, row.end, row.appended_ms),
        )
    return now_ms
