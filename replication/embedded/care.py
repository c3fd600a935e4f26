"""Care of the embedded log: compaction, retention, truncation, vacuum, checks. On Kafka, brokers do this.

    begin ........ clean ................ end        clean: no two records below it have the same key
          swept                                      swept: no tombstone below it is left to remove

Rules of this file: long work is done in chunks. Reading for a decision needs no lock (records never change, and a
superseded record stays superseded); each write transaction removes at most `CHUNK_ROWS` rows from at most
`CHUNK_PAGES` pages, so that writers never wait long. Every step may be killed: `begin_offset` moves before its
records are removed, `clean_offset` after. `end_offset` is never touched.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from standfast.replication.embedded.blocks import (
    BlockPiece,
    BlocksChanged,
    read_block,
    read_blocks,
    read_piece,
    replace_blocks,
    trim_block,
)
from standfast.replication.embedded.db import Database, Transaction
from standfast.replication.embedded.rows import OFFSET_BITS, OFFSET_MAX, first_id
from standfast.replication.embedded.schema import check_described
from standfast.replication.embedded.sums import BLOCK_RECORDS, Cells, ChecksumBlock, Sums, add, block_of
from standfast.replication.embedded.topics import (
    PartitionRow,
    all_topics,
    dirty_ratio,
    partition_by_id,
    partition_by_name,
    partition_ids,
    store_partition,
)
from standfast.replication.log import TopicPolicy
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.store.errors import Corruption, InvalidRequest

# One statement over 300,000 rows held the log's lock for 0.66 s, and every writer with it.
CHUNK_ROWS = 2_000  # rows removed in one transaction
CHUNK_PAGES = 300  # pages it may touch, estimated
SCAN_ROWS = 5_000  # rows of one read transaction
WINDOW_KEYS = 500_000  # distinct keys held in memory by compaction
VACUUM_PAGES = 50  # pages moved in one transaction
VACUUM_KEEP_PAGES = 256  # free pages left for coming appends
_PAGE_ROWS_SHIFT = 5  # assume 32 rows a page when scattered rows are counted
_DROP_EPOCHS = (
    "DELETE FROM epochs WHERE partition = ?1 AND begin_offset < (SELECT max(begin_offset) FROM epochs "
    "WHERE partition = ?1 AND begin_offset < ?2)"
)
_LAST_OF_BLOCKS = (
    "SELECT max(end_offset) FROM (SELECT end_offset FROM sums WHERE partition = ? AND end_offset <= ? "
    "ORDER BY end_offset LIMIT ?)"
)


@dataclass(frozen=True, slots=True)
class CareReport:
    """Counts of one round of care: expired and superseded records, rows of deleted topics, pages given back."""

    expired: int
    compacted: int
    purged: int
    pages_freed: int


class Care:
    """Maintenance on a connection of its own. Several threads, and several processes, may use it at once."""

    def __init__(self, connect: Callable[[], Database]) -> None:
        self._connect = connect
        self._mutex = threading.Lock()
        self._own: Database | None = None

    @property
    def _db(self) -> Database:
        with self._mutex:  # two threads must not open one each
            if self._own is None:
                self._own = self._connect()
            return self._own

    def run(self, now_ms: int) -> CareReport:
        """One round over all topics, each by its policy; compacts partitions whose dirty ratio is reached."""
        damaged: list[Corruption] = []
        expired = self._retain(now_ms, damaged)
        compacted = 0
        for policy, partition_id in self._partitions("compact"):
            try:
                row = self._row(partition_id)
                if row is not None:
                    dirty = row.end - row.clean
                    due = dirty >= dirty_ratio(policy) * (dirty + row.kept)
                    compacted += self._compact_partition(partition_id, policy, now_ms, dedupe=due)
            except Corruption as error:
                damaged.append(error)
        report = CareReport(expired, compacted, self.purge(), self._vacuum())
        if damaged:  # raised last: damage in one partition must not keep the others from their care
            raise damaged[0]
        return report

    def compact(self, topic: str, now_ms: int) -> int:
        """Compact a topic now. Returns the number of removed records.

        Keeps the last record of each key; removes tombstones appended `delete_retention_ms` or longer ago.
        """
        with self._db.mutex, self._db.guard, self._db.read() as run:
            partitions = partition_ids(run, topic)
            policy = next(info.policy for info in all_topics(run) if info.name == topic)
        if "compact" not in policy.cleanup:
            raise InvalidRequest(f"topic {topic!r} has cleanup {sorted(policy.cleanup)}, which excludes compaction")
        return sum(self._compact_partition(each, policy, now_ms, dedupe=True) for each in partitions)

    def apply_retention(self, now_ms: int) -> int:
        """Remove records older than `retention_ms`, by timestamp and by append, from the head. Returns their number.

        Both ages must have passed: a replay of old events writes old timestamps now, and their changelog must not lose
        at once the rows that its store has just been given.
        """
        damaged: list[Corruption] = []
        removed = self._retain(now_ms, damaged)
        if damaged:
            raise damaged[0]
        return removed

    def _retain(self, now_ms: int, damaged: list[Corruption]) -> int:
        removed = 0
        for policy, partition_id in self._partitions("delete"):
            try:
                row = self._row(partition_id)
                if policy.retention_ms >= 0 and row is not None:
                    begin = self._first_kept(row, now_ms - policy.retention_ms)
                    removed += self._move_begin(partition_id, begin)
                    self._set("DELETE FROM ages WHERE partition = ? AND end_offset <= ?", partition_id, begin)
            except Corruption as error:
                damaged.append(error)
        return removed

    def truncate(self, source: TopicPartition, before: int) -> Bounds:
        """Remove all records below offset `before`. Raises InvalidRequest if it is past the end."""
        with self._db.mutex, self._db.guard, self._db.read() as run:
            row = partition_by_name(run, source)
        if not 0 <= before <= row.end:
            raise InvalidRequest(
                f"{TopicPartition(*source)} cannot be truncated before {before}: it holds {row.begin} to {row.end}"
            )
        self._move_begin(row.id, before)
        with self._db.mutex, self._db.guard, self._db.read() as run:
            row = partition_by_name(run, source)
        return Bounds(row.begin, row.end)

    def purge(self) -> int:
        """Remove the records of deleted topics. Returns their number."""
        removed = 0
        with self._db.mutex, self._db.guard, self._db.read() as run:
            doomed = [partition_id for (partition_id,) in run.execute("SELECT partition FROM doomed").fetchall()]
        for partition_id in doomed:
            if self._row(partition_id) is not None:
                raise Corruption(
                    f"log {self._db.path}: partition id {partition_id} is marked as deleted and is in use: the log is "
                    "damaged, set its file aside and restore a copy"
                )
            self._remove_blocks(partition_id, OFFSET_MAX)
            removed += self._remove_range(first_id(partition_id), first_id(partition_id + 1))
            with self._db.lock(), self._db.mutex, self._db.guard, self._db.write() as run:
                run.execute("DELETE FROM doomed WHERE partition = ?", (partition_id,))
        return removed

    def integrity_check(self) -> list[str]:
        """All damage found in the file, in sentences; empty if all is well. Reads the whole file."""
        damage: list[str] = []
        ids: list[int] = []

        def of_file(run: Transaction) -> None:
            damage.extend(text for (text,) in run.execute("PRAGMA integrity_check").fetchall() if text != "ok")

        # Each check by itself: one that cannot go on must not hide the findings of the others.
        for look in (
            of_file,
            lambda run: damage.extend(_check_offsets(run)),
            lambda run: damage.extend(check_described(run.execute, self._db.path)),
            lambda run: ids.extend(found for (found,) in run.execute("SELECT id FROM partitions ORDER BY id")),
        ):
            try:
                with self._db.mutex, self._db.guard, self._db.read() as run:
                    look(run)
            except Corruption as error:
                if str(error) not in damage:
                    damage.append(str(error))
        for partition_id in ids:
            try:
                row = self._row(partition_id)
                for _ in () if row is None else self._pieces(row, row.begin, row.end):
                    pass
            except Corruption as error:
                if str(error) not in damage:
                    damage.append(str(error))
        return damage

    def close(self) -> None:
        if self._own is not None:
            self._own.close()

    # -- compaction ---------------------------------------------------------------------------------------------------

    def _compact_partition(self, partition_id: int, policy: TopicPolicy, now_ms: int, *, dedupe: bool) -> int:
        removed = 0
        row = self._row(partition_id)
        end = row.end if row is not None else 0
        while dedupe and row is not None and row.clean < end:
            newest_ms = now_ms - policy.min_compaction_lag_ms if policy.min_compaction_lag_ms else None
            latest, clean = self._latest_rows(row, end, newest_ms)
            if clean == row.clean:
                break  # the next record is too young
            gone, kept = self._remove_superseded(row, latest, clean)
            removed += gone
            row = self._change(partition_id, _cleaned(clean, kept))
        if row is not None and policy.delete_retention_ms >= 0:
            removed += self._sweep_tombstones(row, now_ms - policy.delete_retention_ms)
            if "delete" not in policy.cleanup:  # retention still needs the ages of its records
                self._set("DELETE FROM ages WHERE partition = ? AND end_offset <= ?", partition_id, row.swept)
        return removed

    def _latest_rows(self, row: PartitionRow, end: int, newest_ms: int | None) -> tuple[dict[Any, int], int]:
        """Key -> last offset over the dirty records, and the offset up to which this method read them.

        Stops at the first record younger than `newest_ms`, by its timestamp or by its append, or when memory holds
        `WINDOW_KEYS` keys. By its append, because a replay of old events writes the history of a store with old
        timestamps now, and the next restore must have it.
        """
        latest: dict[Any, int] = {}
        if newest_ms is not None:
            end = max(min(end, self._appended_by(row, newest_ms)), row.clean)
        for piece in self._pieces(row, row.clean, end):
            offsets, keys = piece.offsets, piece.cells.keys
            if newest_ms is not None:
                young = next((index for index, at_ms in enumerate(piece.cells.timestamps) if at_ms > newest_ms), None)
                if young is not None:
                    latest.update(zip(keys[:young], offsets[:young], strict=True))
                    return latest, offsets[young]
            latest.update(zip(keys, offsets, strict=True))
            if len(latest) >= WINDOW_KEYS:
                return latest, piece.next_offset
        return latest, end

    def _remove_superseded(self, row: PartitionRow, latest: dict[Any, int], clean: int) -> tuple[int, int]:
        """Remove records below `clean` that have a later one of their key; returns the numbers of removed and kept."""
        doomed: list[int] = []
        removed = seen = 0
        for piece in self._pieces(row, row.begin, clean):
            seen += len(piece.offsets)
            pairs = zip(piece.offsets, piece.cells.keys, strict=True)
            doomed += [offset for offset, key in pairs if latest.get(key, 0) > offset]
            if len(doomed) >= CHUNK_ROWS:
                removed += self._remove_rows(row, doomed)
                doomed = []
        removed += self._remove_rows(row, doomed)
        return removed, seen - removed

    def _sweep_tombstones(self, row: PartitionRow, cutoff_ms: int) -> int:
        """Remove tombstones appended by `cutoff_ms` from the clean part, which has no older record of their keys.

        Age counts from the append, not from the record's timestamp: that may belong to an event of years ago, and a
        standby that was away for an hour would never see the delete.
        """
        swept = min(self._appended_by(row, cutoff_ms), row.clean)
        if swept <= row.swept:
            return 0
        removed = 0
        for piece in self._pieces(row, row.swept, swept):
            pairs = zip(piece.offsets, piece.cells.values, strict=True)
            removed += self._remove_rows(row, [offset for offset, value in pairs if value is None])
        self._change(row.id, lambda now: now._replace(swept=max(now.swept, swept), kept=max(now.kept - removed, 0)))
        return removed

    def _appended_by(self, row: PartitionRow, cutoff_ms: int) -> int:
        """Offset below which every append is of `cutoff_ms` or before; ages are noted in steps of `AGE_STEP_MS`."""
        if row.appended_ms <= cutoff_ms:
            return row.end
        with self._db.mutex, self._db.guard, self._db.read() as run:
            found = run.execute(
                "SELECT coalesce(max(end_offset), 0) FROM ages WHERE partition = ? AND appended_ms <= ?",
                (row.id, cutoff_ms),
            ).fetchone()
        return int(found[0])

    # -- retention and truncation -------------------------------------------------------------------------------------

    def _first_kept(self, row: PartitionRow, cutoff_ms: int) -> int:
        """Offset of the first record with a timestamp of `cutoff_ms` or later, else where younger appends begin."""
        old = max(self._appended_by(row, cutoff_ms), row.begin)
        for piece in self._pieces(row, row.begin, old):
            for offset, timestamp in zip(piece.offsets, piece.cells.timestamps, strict=True):
                if timestamp >= cutoff_ms:
                    return int(offset)
        return old

    def _move_begin(self, partition_id: int, begin: int) -> int:
        """Move the begin offset forward and remove the records below it; returns their number."""
        row = self._row(partition_id)
        if row is None:
            return 0
        if begin > row.begin:
            with self._db.lock(), self._db.mutex, self._db.guard, self._db.write() as run:
                now = partition_by_id(run, partition_id)
                if now is not None and begin > now.begin:
                    trim_block(run, now, begin)
                    clean, swept = max(now.clean, begin), max(now.swept, begin)
                    store_partition(run, now._replace(begin=begin, clean=clean, swept=swept))
                    # A position right at the begin carries the tag of the epoch that ends there, so that epoch stays.
                    run.execute(_DROP_EPOCHS, (partition_id, begin))
        # Also without a move: a process killed between the two steps left records below the begin offset.
        self._remove_blocks(partition_id, max(begin, row.begin))
        return self._remove_range(first_id(partition_id), first_id(partition_id) + max(begin, row.begin))

    # -- giving space back --------------------------------------------------------------------------------------------

    def _vacuum(self) -> int:
        """Shrink the file in small steps while more than a quarter of it is free; returns pages given back."""
        freed = 0
        while True:
            with self._db.mutex, self._db.guard, self._db.read() as run:
                free, before = _pages(run)
            if free <= VACUUM_KEEP_PAGES or free * 4 <= before:
                break
            with self._db.lock(), self._db.mutex, self._db.guard, self._db.write() as run:
                for _ in range(VACUUM_PAGES):  # Python steps this statement once, which frees one page for any N
                    run.execute("PRAGMA incremental_vacuum(1)")
                _, after = _pages(run)
            if after >= before:
                break  # another process appends as fast as this loop frees pages: the next round goes on
            freed += before - after
        if freed:
            self._db.checkpoint()  # the file itself shrinks when the WAL is moved into it
        return freed

    # -- steps --------------------------------------------------------------------------------------------------------

    def _partitions(self, cleanup: str) -> list[tuple[TopicPolicy, int]]:
        """Ids of all partitions whose policy has this cleanup."""
        with self._db.mutex, self._db.guard, self._db.read() as run:
            topics = [info for info in all_topics(run) if cleanup in info.policy.cleanup]
            return [(info.policy, each) for info in topics for each in partition_ids(run, info.name)]

    def _row(self, partition_id: int) -> PartitionRow | None:
        with self._db.mutex, self._db.guard, self._db.read() as run:
            return partition_by_id(run, partition_id)

    def _set(self, statement: str, *values: int) -> None:
        with self._db.lock(), self._db.mutex, self._db.guard, self._db.write() as run:
            run.execute(statement, values)

    def _change(self, partition_id: int, change: Callable[[PartitionRow], PartitionRow]) -> PartitionRow | None:
        """Change a partition's row in one transaction; returns the new row, or None if the partition is gone."""
        with self._db.lock(), self._db.mutex, self._db.guard, self._db.write() as run:
            row = partition_by_id(run, partition_id)
            if row is not None:
                row = change(row)
                store_partition(run, row)
            return row

    def _pieces(self, row: PartitionRow, start: int, stop: int) -> Iterator[BlockPiece]:
        """Checked records of [start, stop) in chunks, each chunk a read transaction of its own."""
        position = start
        while position < stop:
            with self._db.mutex, self._db.guard, self._db.read() as run:
                now = partition_by_id(run, row.id)
                if now is None:
                    return
                position = max(position, now.begin)
                if position >= min(stop, now.end):
                    return
                piece = read_piece(run, now, position, SCAN_ROWS)
            position = piece.next_offset
            if position > stop:
                kept = bisect_left(piece.offsets, stop)
                piece = BlockPiece(piece.offsets[:kept], piece.cells.cut(0, kept), -1, stop)
            if len(piece.offsets):
                yield piece

    def _remove_rows(self, row: PartitionRow, offsets: list[int]) -> int:
        """Remove single records; `offsets` ascend."""
        removed = at = 0
        while at < len(offsets):
            stop, pages, last_page = at, 0, -1
            while stop < min(len(offsets), at + CHUNK_ROWS) and pages < CHUNK_PAGES:
                page = offsets[stop] >> _PAGE_ROWS_SHIFT
                pages += page != last_page
                last_page = page
                stop += 1
            removed += self._remove_chunk(row.id, offsets[at:stop])
            at = stop
        return removed

    def _remove_chunk(self, partition_id: int, offsets: list[int]) -> int:
        """Remove records, and replace their blocks by blocks over the records that stay.

        The blocks are read, checked and summed before the lock is taken. If one of them has changed by then (a writer
        extended the last one, another process removed records too), nothing is written and this method tries again.
        """
        base = first_id(partition_id)
        while True:
            with self._db.mutex, self._db.guard, self._db.read() as run:
                row = partition_by_id(run, partition_id)
                offsets = [] if row is None else offsets[bisect_left(offsets, row.begin) :]
                if row is None or not offsets:
                    return 0
                old, new = _without(run, row, offsets[bisect_left(offsets, row.summed) :])
            try:
                with self._db.lock(), self._db.mutex, self._db.guard, self._db.write() as run:
                    replace_blocks(run, partition_id, old, new)
                    doomed = [(base + offset,) for offset in offsets]
                    return run.executemany("DELETE FROM log_records WHERE id = ?", doomed).rowcount
            except BlocksChanged:
                continue  # the write was rolled back with it

    def _remove_blocks(self, partition_id: int, before: int) -> None:
        """Remove the rows of `sums` of blocks that end at or below an offset."""
        while True:
            with self._db.mutex, self._db.guard, self._db.read() as run:
                last = run.execute(_LAST_OF_BLOCKS, (partition_id, before, CHUNK_ROWS)).fetchone()[0]
            if last is None:
                return
            self._set("DELETE FROM sums WHERE partition = ? AND end_offset <= ?", partition_id, last)

    def _remove_range(self, start: int, end: int) -> int:
        """Remove all rows of the range [start, end)."""
        last_of_chunk = "SELECT max(id) FROM (SELECT id FROM log_records WHERE id >= ? AND id < ? ORDER BY id LIMIT ?)"
        removed = 0
        while True:
            with self._db.mutex, self._db.guard, self._db.read() as run:
                last = run.execute(last_of_chunk, (start, end, CHUNK_ROWS)).fetchone()[0]
            if last is None:
                return removed
            with self._db.lock(), self._db.mutex, self._db.guard, self._db.write() as run:
                removed += run.execute("DELETE FROM log_records WHERE id >= ? AND id <= ?", (start, last)).rowcount
            start = last + 1


def _pages(run: Transaction) -> tuple[int, int]:
    """Free pages, all pages."""
    return run.execute("PRAGMA freelist_count").fetchone()[0], run.execute("PRAGMA page_count").fetchone()[0]


def _check_offsets(run: Transaction) -> list[str]:
    stray = run.execute(
        "SELECT r.id >> ?1, count(*) FROM log_records r LEFT JOIN partitions p ON p.id = r.id >> ?1 "
        "WHERE r.id >> ?1 NOT IN (SELECT partition FROM doomed) AND (p.id IS NULL OR r.id & ?2 >= p.end_offset) "
        "GROUP BY 1",
        (OFFSET_BITS, OFFSET_MAX - 1),
    ).fetchall()
    return [f"partition id {number} has {count} records that no partition row covers" for number, count in stray]


def _cleaned(clean: int, kept: int) -> Callable[[PartitionRow], PartitionRow]:
    return lambda row: row._replace(clean=max(row.clean, clean), kept=kept)


def _without(run: Transaction, row: PartitionRow, doomed: list[int]) -> tuple[list[ChecksumBlock], list[ChecksumBlock]]:
    """The blocks of these offsets, and the blocks that replace them; neighbours that shrank become one."""
    if not doomed:
        return [], []
    gone = frozenset(doomed)
    old: list[ChecksumBlock] = []
    merged: list[tuple[int, int, list[int], list[Cells]]] = []  # begin, end, offsets and cells that stay
    for block in read_blocks(run, row, doomed[0], doomed[-1] + 1):
        at = bisect_left(doomed, block.begin)
        if at == len(doomed) or doomed[at] >= block.end:
            continue
        piece = read_block(run, row, block)
        old.append(block)
        stays = [index for index, offset in enumerate(piece.offsets) if offset not in gone]
        offsets = [piece.offsets[index] for index in stays]
        cells = piece.cells.pick(stays)
        if merged and merged[-1][1] == block.begin and len(merged[-1][2]) + len(offsets) <= BLOCK_RECORDS:
            begin, _, before, parts = merged[-1]
            merged[-1] = (begin, block.end, before + offsets, [*parts, cells])
        else:
            merged.append((block.begin, block.end, offsets, [cells]))
    return old, [block_of(begin, end, offsets, _sums(parts)) for begin, end, offsets, parts in merged]


def _sums(parts: list[Cells]) -> Sums:
    sums = Sums()
    for cells in parts:
        sums, _ = add(sums, cells)
    return sums
