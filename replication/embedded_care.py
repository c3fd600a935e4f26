"""Care of the embedded log: compaction, retention, truncation, giving space back, checking.

    begin ........ clean ................ end        clean: no two records below it have the same key
          swept                                      swept: no tombstone below it may go yet, or any more

Rules of this file: whatever may be long is done in chunks. Reading for a decision needs no lock (records never change,
and what is superseded stays superseded); each write transaction removes at most `CHUNK_ROWS` rows from at most
`CHUNK_PAGES` pages, so that writers never wait long. Every step may be killed: `begin_offset` moves before its
records are removed, `clean_offset` after. `end_offset` is never touched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from standfast.replication.embedded_db import Database, Transaction
from standfast.replication.embedded_rows import OFFSET_BITS, OFFSET_MAX, first_id
from standfast.replication.embedded_topics import (
    PartitionRow,
    all_topics,
    dirty_ratio,
    partition_by_id,
    partition_by_name,
    partition_ids,
)
from standfast.replication.log import TopicPolicy
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.store.errors import Corruption, InvalidRequest

CHUNK_ROWS = 2_000  # rows removed in one transaction
CHUNK_PAGES = 300  # pages it may touch, estimated
SCAN_ROWS = 5_000  # rows of one read transaction
WINDOW_KEYS = 500_000  # distinct keys held in memory by compaction
VACUUM_PAGES = 50  # pages moved in one transaction
VACUUM_KEEP_PAGES = 256  # free pages left for coming appends
_PAGE_ROWS_SHIFT = 5  # assume 32 rows a page when scattered rows are counted


@dataclass(frozen=True, slots=True)
class CareReport:
    """What one round of care removed: expired and superseded records, rows of deleted topics, pages given back."""

    expired: int
    compacted: int
    purged: int
    pages_freed: int


class Care:
    """Maintenance on a connection of its own. May be used by several threads, and processes at once."""

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
        """One round over all topics, each by its policy; compaction only where enough is new."""
        expired = self.apply_retention(now_ms)
        compacted = 0
        for policy, partition_id in self._partitions("compact"):
            row = self._row(partition_id)
            if row is not None:
                dirty = row.end - row.clean
                due = dirty >= dirty_ratio(policy) * (dirty + row.kept)
                compacted += self._compact_partition(partition_id, policy, now_ms, dedupe=due)
        return CareReport(expired, compacted, self.purge(), self._vacuum())

    def compact(self, topic: str, now_ms: int) -> int:
        """Compact a topic now. Returns how many records were removed.

        Keeps the last record of each key; removes tombstones appended `delete_retention_ms` or longer ago.
        """
        with self._db.read() as run:
            partitions = partition_ids(run, topic)
            policy = next(info.policy for info in all_topics(run) if info.name == topic)
        if "compact" not in policy.cleanup:
            raise InvalidRequest(f"topic {topic!r} has cleanup {sorted(policy.cleanup)}, it is not to be compacted")
        return sum(self._compact_partition(each, policy, now_ms, dedupe=True) for each in partitions)

    def apply_retention(self, now_ms: int) -> int:
        """Remove records older than `retention_ms`, by timestamp and by append, from the head. Returns how many.

        Both ages must have passed: a replay of old events writes old timestamps now, and a changelog of them must not
        lose at once what its store has just been given.
        """
        removed = 0
        for policy, partition_id in self._partitions("delete"):
            row = self._row(partition_id)
            if policy.retention_ms >= 0 and row is not None:
                begin = self._first_kept(row, now_ms - policy.retention_ms)
                removed += self._move_begin(partition_id, begin)
                self._set("DELETE FROM ages WHERE partition = ? AND end_offset <= ?", partition_id, begin)
        return removed

    def truncate(self, source: TopicPartition, before: int) -> Bounds:
        """Remove all records below offset `before`. Raises InvalidRequest if it is past the end."""
        with self._db.read() as run:
            row = partition_by_name(run, source)
        if not 0 <= before <= row.end:
            raise InvalidRequest(
                f"{TopicPartition(*source)} cannot be truncated before {before}: it holds {row.begin} to {row.end}"
            )
        self._move_begin(row.id, before)
        with self._db.read() as run:
            row = partition_by_name(run, source)
        return Bounds(row.begin, row.end)

    def purge(self) -> int:
        """Remove the records of deleted topics. Returns how many."""
        removed = 0
        with self._db.read() as run:
            doomed = [partition_id for (partition_id,) in run.execute("SELECT partition FROM doomed").fetchall()]
        for partition_id in doomed:
            removed += self._remove_range(first_id(partition_id), first_id(partition_id + 1))
            with self._db.write() as run:
                run.execute("DELETE FROM doomed WHERE partition = ?", (partition_id,))
        return removed

    def integrity_check(self) -> list[str]:
        """Everything found wrong with the file, in sentences; empty if all is well. Reads the whole file."""
        try:
            with self._db.read() as run:
                damage = [text for (text,) in run.execute("PRAGMA integrity_check").fetchall() if text != "ok"]
                damage += self._check_offsets(run)
        except Corruption as error:
            return [str(error)]
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
            self._set(
                "UPDATE partitions SET clean_offset = max(clean_offset, ?), kept = ? WHERE id = ?",
                *(clean, kept, partition_id),
            )
            row = self._row(partition_id)
        if row is not None and policy.delete_retention_ms >= 0:
            removed += self._sweep_tombstones(row, now_ms - policy.delete_retention_ms)
            if "delete" not in policy.cleanup:  # else retention still asks for them
                self._set("DELETE FROM ages WHERE partition = ? AND end_offset <= ?", partition_id, row.swept)
        return removed

    def _latest_rows(self, row: PartitionRow, end: int, newest_ms: int | None) -> tuple[dict[Any, int], int]:
        """Key -> last row id over the dirty records, and the offset up to which they were looked at.

        Stops at the first record younger than `newest_ms`, or when memory holds `WINDOW_KEYS` keys.
        """
        base = first_id(row.id)
        latest: dict[Any, int] = {}
        for rows in self._scan("id, key, timestamp", base + row.clean, base + end):
            if newest_ms is not None:
                young = next((index for index, (_, _, at_ms) in enumerate(rows) if at_ms > newest_ms), None)
                if young is not None:
                    latest.update((key, record_id) for record_id, key, _ in rows[:young])
                    return latest, rows[young][0] - base
            latest.update((key, record_id) for record_id, key, _ in rows)
            if len(latest) >= WINDOW_KEYS:
                return latest, rows[-1][0] + 1 - base
        return latest, end

    def _remove_superseded(self, row: PartitionRow, latest: dict[Any, int], clean: int) -> tuple[int, int]:
        """Remove records below `clean` that have a later one of their key; returns removed and kept."""
        base = first_id(row.id)
        doomed: list[int] = []
        removed = seen = 0
        for rows in self._scan("id, key", base + row.begin, base + clean):
            seen += len(rows)
            doomed += [record_id for record_id, key in rows if latest.get(key, 0) > record_id]
            if len(doomed) >= CHUNK_ROWS:
                removed += self._remove_rows(doomed)
                doomed = []
        removed += self._remove_rows(doomed)
        return removed, seen - removed

    def _sweep_tombstones(self, row: PartitionRow, cutoff_ms: int) -> int:
        """Remove tombstones appended by `cutoff_ms` from the clean part, where nothing older of their keys is left.

        Age is counted from the append, not from the record's timestamp: that one may be an event of years ago, and a
        standby that was away for an hour would never learn of the delete.
        """
        swept = min(self._appended_by(row, cutoff_ms), row.clean)
        if swept <= row.swept:
            return 0
        base = first_id(row.id)
        removed = 0
        for rows in self._scan("id, value IS NULL", base + row.swept, base + swept):
            removed += self._remove_rows([record_id for record_id, tombstone in rows if tombstone])
        self._set(
            "UPDATE partitions SET swept_offset = max(swept_offset, ?), kept = max(kept - ?, 0) WHERE id = ?",
            *(swept, removed, row.id),
        )
        return removed

    def _appended_by(self, row: PartitionRow, cutoff_ms: int) -> int:
        """Offset below which everything was appended at `cutoff_ms` or before (to the step in which ages are noted)."""
        if row.appended_ms <= cutoff_ms:
            return row.end
        with self._db.read() as run:
            found = run.execute(
                "SELECT coalesce(max(end_offset), 0) FROM ages WHERE partition = ? AND appended_ms <= ?",
                (row.id, cutoff_ms),
            ).fetchone()
        return int(found[0])

    # -- retention and truncation -------------------------------------------------------------------------------------

    def _first_kept(self, row: PartitionRow, cutoff_ms: int) -> int:
        """Offset of the first record with a timestamp of `cutoff_ms` or later, else where younger appends begin."""
        base = first_id(row.id)
        old = max(self._appended_by(row, cutoff_ms), row.begin)
        for rows in self._scan("id, timestamp", base + row.begin, base + old):
            for record_id, timestamp in rows:
                if timestamp >= cutoff_ms:
                    return int(record_id) - base
        return old

    def _move_begin(self, partition_id: int, begin: int) -> int:
        """Move the begin offset forward and remove what is below; returns how many records that were."""
        row = self._row(partition_id)
        if row is None:
            return 0
        if begin > row.begin:
            self._set(
                "UPDATE partitions SET begin_offset = max(begin_offset, ?1), clean_offset = max(clean_offset, ?1), "
                "swept_offset = max(swept_offset, ?1) WHERE id = ?2",
                *(begin, partition_id),
            )
        # Also without a move: a run that was killed in between left records below the begin offset.
        return self._remove_range(first_id(partition_id), first_id(partition_id) + max(begin, row.begin))

    # -- giving space back --------------------------------------------------------------------------------------------

    def _vacuum(self) -> int:
        """Shrink the file in small steps while more than a quarter of it is free; returns pages given back."""
        freed = 0
        while True:
            with self._db.read() as run:
                free, before = self._pages(run)
            if free <= VACUUM_KEEP_PAGES or free * 4 <= before:
                break
            with self._db.write() as run:
                for _ in range(VACUUM_PAGES):  # Python steps this statement once, which frees one page whatever N is
                    run.execute("PRAGMA incremental_vacuum(1)")
                _, after = self._pages(run)
            if after >= before:
                break  # another process appends as fast as this gives back: next time
            freed += before - after
        if freed:
            self._db.checkpoint()  # the file itself shrinks when the WAL is moved into it
        return freed

    def _pages(self, run: Transaction) -> tuple[int, int]:
        """Free pages, all pages."""
        return run.execute("PRAGMA freelist_count").fetchone()[0], run.execute("PRAGMA page_count").fetchone()[0]

    # -- steps --------------------------------------------------------------------------------------------------------

    def _partitions(self, cleanup: str) -> list[tuple[TopicPolicy, int]]:
        """Ids of all partitions whose policy has this cleanup."""
        with self._db.read() as run:
            topics = [info for info in all_topics(run) if cleanup in info.policy.cleanup]
            return [(info.policy, each) for info in topics for each in partition_ids(run, info.name)]

    def _row(self, partition_id: int) -> PartitionRow | None:
        with self._db.read() as run:
            return partition_by_id(run, partition_id)

    def _set(self, statement: str, *values: int) -> None:
        with self._db.write() as run:
            run.execute(statement, values)

    def _scan(self, columns: str, start: int, end: int) -> Iterator[list[tuple[Any, ...]]]:
        """Rows of the range [start, end) in chunks, `id` first, each chunk a read transaction of its own."""
        select = f"SELECT {columns} FROM records WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"  # noqa: S608  ours
        while start < end:
            with self._db.read() as run:
                rows = run.execute(select, (start, end, SCAN_ROWS)).fetchall()
            if rows:
                yield rows
            if len(rows) < SCAN_ROWS:
                return
            start = rows[-1][0] + 1

    def _remove_rows(self, row_ids: list[int]) -> int:
        """Remove single rows; `row_ids` ascend."""
        removed = at = 0
        while at < len(row_ids):
            stop, pages, last_page = at, 0, -1
            while stop < min(len(row_ids), at + CHUNK_ROWS) and pages < CHUNK_PAGES:
                page = row_ids[stop] >> _PAGE_ROWS_SHIFT
                pages += page != last_page
                last_page = page
                stop += 1
            with self._db.write() as run:
                chunk = [(row_id,) for row_id in row_ids[at:stop]]
                removed += run.executemany("DELETE FROM records WHERE id = ?", chunk).rowcount
            at = stop
        return removed

    def _remove_range(self, start: int, end: int) -> int:
        """Remove all rows of the range [start, end)."""
        last_of_chunk = "SELECT max(id) FROM (SELECT id FROM records WHERE id >= ? AND id < ? ORDER BY id LIMIT ?)"
        removed = 0
        while True:
            with self._db.read() as run:
                last = run.execute(last_of_chunk, (start, end, CHUNK_ROWS)).fetchone()[0]
            if last is None:
                return removed
            with self._db.write() as run:
                removed += run.execute("DELETE FROM records WHERE id >= ? AND id <= ?", (start, last)).rowcount
            start = last + 1

    def _check_offsets(self, run: Transaction) -> list[str]:
        stray = run.execute(
            "SELECT r.id >> ?1, count(*) FROM records r LEFT JOIN partitions p ON p.id = r.id >> ?1 "
            "WHERE r.id >> ?1 NOT IN (SELECT partition FROM doomed) AND (p.id IS NULL OR r.id & ?2 >= p.end_offset) "
            "GROUP BY 1",
            (OFFSET_BITS, OFFSET_MAX - 1),
        ).fetchall()
        return [f"partition id {number} has {count} records that no partition row covers" for number, count in stray]
