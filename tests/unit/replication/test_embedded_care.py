"""Care of the embedded log: truncation, retention, compaction, giving space back.

Rules of this file: real files in a temporary folder, time from a manual clock. Care beside another writing process is
in `test_embedded_log_processes.py`.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.replication.embedded import care as embedded_care
from standfast.replication.embedded.care import Care, CareReport
from standfast.replication.embedded.db import PAGE_BYTES, Database
from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.embedded.writer import AGE_STEP_MS
from standfast.replication.log import Outgoing, Record, TopicPolicy
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.store.clock import ManualClock
from standfast.store.errors import (
    InvalidRequest,
    StateLost,
    UnknownStore,
)
from support.embedded import COMPACT, DAY_MS, T0, contents, pairs, put


@pytest.fixture
def log(embedded_log: EmbeddedLog) -> EmbeddedLog:
    return embedded_log


# -- truncation, retention --------------------------------------------------------------------------------------------


def test_truncate_moves_the_begin_and_never_the_end(log: EmbeddedLog) -> None:
    log.admin.create_topic("board", 1, TopicPolicy())
    put(log, *[(str(number), "v") for number in range(5_000)])
    assert log.truncate(T0, 4_998) == Bounds(4_998, 5_000)
    assert log.truncate(T0, 10) == Bounds(4_998, 5_000)
    assert [record.offset for record in contents(log)] == [4_998, 4_999]
    with pytest.raises(InvalidRequest, match="4998 to 5000"):
        log.truncate(T0, 5_001)
    with pytest.raises(UnknownStore):
        log.truncate(TopicPartition("board", 1), 0)
    assert log.truncate(T0, 5_000) == Bounds(5_000, 5_000)
    put(log, ("k", "v"))
    assert log.reader().bounds([T0]) == {T0: Bounds(5_000, 5_001)}


def test_retention_removes_old_records_from_the_head_only(log: EmbeddedLog, clock: ManualClock) -> None:
    now_ms = clock.wall_ms() + 1_000
    log.admin.create_topic("board", 1, TopicPolicy(retention_ms=1_000))
    log.admin.create_topic("forever", 1, TopicPolicy())
    log.producer().append({TopicPartition("forever", 0): [Outgoing(b"k", b"v", 1)]})
    for age_ms in (3_000, 2_000, 1_001, 1_000, 5_000, 10):
        put(log, ("k", str(age_ms)), at_ms=now_ms - age_ms)
    clock.advance(1_000)
    assert log.apply_retention(now_ms) == 3
    assert [record.value for record in contents(log)] == [b"1000", b"5000", b"10"]
    assert log.apply_retention(now_ms) == 0
    assert log.apply_retention(now_ms + DAY_MS) == 3
    assert log.reader().bounds([T0]) == {T0: Bounds(6, 6)}
    assert log.reader().bounds([TopicPartition("forever", 0)]) == {TopicPartition("forever", 0): Bounds(0, 1)}


def test_replayed_old_events_are_kept_until_their_append_is_old_as_well(log: EmbeddedLog, clock: ManualClock) -> None:
    log.admin.create_topic("board", 1, TopicPolicy(retention_ms=DAY_MS))
    put(log, ("a", "1"), at_ms=1)
    clock.advance(DAY_MS // 2)
    put(log, ("b", "2"), at_ms=2)
    assert log.apply_retention(clock.wall_ms()) == 0
    clock.advance(DAY_MS // 2)
    assert log.apply_retention(clock.wall_ms()) == 1
    assert [record.value for record in contents(log)] == [b"2"]


def test_reader_overtaken_by_retention_loses_its_state(log: EmbeddedLog, clock: ManualClock) -> None:
    log.admin.create_topic("board", 1, TopicPolicy(retention_ms=1_000))
    put(log, ("a", "1"), ("b", "2"))
    reader = log.reader()
    reader.assign({T0: 1})
    clock.advance(1_001)
    log.apply_retention(clock.wall_ms())
    with pytest.raises(StateLost, match="position 1"):
        reader.fetch(10)


def test_records_left_below_the_begin_by_a_kill_are_removed_by_the_next_care(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.admin.create_topic("board", 1, TopicPolicy(retention_ms=10**15))
    put(log, ("a", "1"), ("b", "2"), ("c", "3"))
    with monkeypatch.context() as killed:
        killed.setattr(log._care, "_remove_range", lambda *_: 0)
        log.truncate(T0, 2)
    assert [record.offset for record in contents(log)] == [2]
    assert log.care(0) == CareReport(expired=2, compacted=0, purged=0, pages_freed=0)


# -- compaction -------------------------------------------------------------------------------------------------------


def test_compaction_keeps_the_last_record_of_each_key(log: EmbeddedLog, clock: ManualClock) -> None:
    log.admin.create_topic("board", 1, TopicPolicy(COMPACT))
    put(log, ("a", "1"), ("b", "2"), ("a", "3"), ("c", "4"), ("b", "5"), ("a", "6"))
    assert log.compact("board", clock.wall_ms()) == 3
    assert pairs(log) == [(3, b"c", b"4"), (4, b"b", b"5"), (5, b"a", b"6")]
    assert log.reader().bounds([T0]) == {T0: Bounds(0, 6)}
    put(log, ("c", "7"))
    assert log.compact("board", clock.wall_ms()) == 1
    assert pairs(log) == [(4, b"b", b"5"), (5, b"a", b"6"), (6, b"c", b"7")]


def test_reader_reaches_the_end_over_compacted_offsets(log: EmbeddedLog, clock: ManualClock) -> None:
    log.admin.create_topic("board", 1, TopicPolicy(COMPACT, delete_retention_ms=0))
    put(log, ("a", "1"), ("b", "2"), ("a", None))
    reader = log.reader()
    reader.assign({T0: 0})
    log.compact("board", clock.wall_ms())
    (found,) = reader.fetch(10)
    assert ([record.value for record in found.records], found.next_offset, found.at_end) == ([b"2"], 3, True)
    put(log, ("b", None))
    log.compact("board", clock.wall_ms())
    (found,) = reader.fetch(10)  # no record is left, yet the position moves to the end
    assert (list(found.records), found.next_offset, found.at_end) == ([], 4, True)
    assert log.reader().bounds([T0]) == {T0: Bounds(0, 4)}


def test_compacting_an_unchanged_log_reads_no_record(log: EmbeddedLog, clock: ManualClock) -> None:
    log.admin.create_topic("board", 1, TopicPolicy(COMPACT))
    put(log, ("a", "1"), ("a", "2"))
    assert log.compact("board", clock.wall_ms()) == 1
    read: list[str] = []
    connection = log._care._db._connection
    connection.set_trace_callback(read.append)
    assert log.compact("board", clock.wall_ms()) == 0
    connection.set_trace_callback(None)
    assert read
    assert not [statement for statement in read if "records" in statement]


def test_compaction_leaves_records_younger_than_the_lag(log: EmbeddedLog, clock: ManualClock) -> None:
    now_ms = clock.wall_ms()
    log.admin.create_topic("board", 1, TopicPolicy(COMPACT, min_compaction_lag_ms=100))
    put(log, ("a", "1"), ("a", "2"), at_ms=now_ms - 500)
    put(log, ("a", "3"), ("a", "4"), at_ms=now_ms + 50)
    assert log.compact("board", now_ms + 99) == 0
    assert log.compact("board", now_ms + 100) == 1
    assert [value for _, _, value in pairs(log)] == [b"2", b"3", b"4"]
    assert log.compact("board", now_ms + 149) == 0
    assert log.compact("board", now_ms + 150) == 2
    assert [value for _, _, value in pairs(log)] == [b"4"]


def test_history_of_old_events_is_not_compacted_before_their_append_is_old_as_well(
    log: EmbeddedLog, clock: ManualClock
) -> None:
    """New versions with timestamps of years ago are the history of a store that just read them."""
    log.admin.create_topic("board", 1, TopicPolicy(COMPACT, min_compaction_lag_ms=DAY_MS))
    put(log, ("a", "1"), ("a", "2"), at_ms=1_000)
    assert log.compact("board", clock.wall_ms()) == 0
    clock.advance(AGE_STEP_MS)
    put(log, ("a", "3"), at_ms=2_000)  # from here on the partition is written on, and never of one age
    clock.advance(DAY_MS - AGE_STEP_MS)
    put(log, ("a", "4"), at_ms=3_000)
    assert log.compact("board", clock.wall_ms()) == 1
    assert [value for _, _, value in pairs(log)] == [b"2", b"3", b"4"]
    clock.advance(DAY_MS)
    assert log.compact("board", clock.wall_ms()) == 2
    assert [value for _, _, value in pairs(log)] == [b"4"]


def test_tombstone_goes_when_it_was_appended_long_enough_ago(log: EmbeddedLog, clock: ManualClock) -> None:
    log.admin.create_topic("board", 1, TopicPolicy(COMPACT, delete_retention_ms=DAY_MS))
    put(log, ("a", "1"), ("b", "2"), ("a", None), at_ms=5)  # its timestamp is old, the record is not
    assert log.compact("board", clock.wall_ms()) == 1
    assert pairs(log) == [(1, b"b", b"2"), (2, b"a", None)]
    assert log.compact("board", clock.wall_ms() + DAY_MS - 1) == 0
    assert log.compact("board", clock.wall_ms() + DAY_MS) == 1
    assert pairs(log) == [(1, b"b", b"2")]


def test_old_tombstones_go_while_the_partition_is_written_on(log: EmbeddedLog, clock: ManualClock) -> None:
    log.admin.create_topic("board", 1, TopicPolicy(COMPACT, delete_retention_ms=DAY_MS))
    put(log, ("a", "1"), ("a", None))
    clock.advance(2 * AGE_STEP_MS)
    put(log, ("b", "1"), ("b", None))
    clock.advance(DAY_MS - AGE_STEP_MS)
    put(log, ("c", "1"))
    log.compact("board", clock.wall_ms())
    assert pairs(log) == [(3, b"b", None), (4, b"c", b"1")]
    clock.advance(DAY_MS)
    log.compact("board", clock.wall_ms())
    assert pairs(log) == [(4, b"c", b"1")]


def test_tombstones_are_kept_for_ever_if_so_set(log: EmbeddedLog, clock: ManualClock) -> None:
    log.admin.create_topic("board", 1, TopicPolicy(COMPACT, delete_retention_ms=-1))
    put(log, ("a", None))
    assert log.compact("board", clock.wall_ms() + 1_000 * DAY_MS) == 0
    assert pairs(log) == [(0, b"a", None)]


@settings(max_examples=20)
@given(
    batches=st.lists(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=30), max_size=6),
    chunk=st.integers(1, 7),
    window=st.integers(1, 12),
)
def test_compaction_in_chunks_of_any_size_equals_the_last_value_per_key(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple[int, bool]]], chunk: int, window: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("CHUNK_ROWS", chunk), ("CHUNK_PAGES", 2), ("SCAN_ROWS", chunk), ("WINDOW_KEYS", window)):
            patch.setattr(embedded_care, name, value)
        log = EmbeddedLog(tmp_path_factory.mktemp("compact") / "log.sqlite", synchronous="normal")
        log.admin.create_topic("board", 1, TopicPolicy(COMPACT))
        last: dict[bytes, Record] = {}
        for batch in batches:
            put(log, *[(str(key), None if dead else f"value {key}") for key, dead in batch])
            for record in contents(log):
                last[record.key or b""] = record
            log.compact("board", 0)
            assert contents(log) == sorted(last.values())
        log.close()


class Overtaken(Database):
    """A connection before whose first write another connection writes."""

    instead: Callable[[], None] | None = None

    def lock(self, *, patient: bool = True) -> io.FileIO:
        before, self.instead = self.instead, None
        if before is not None:
            before()
        return super().lock(patient=patient)


def test_compaction_that_an_append_overtakes_removes_no_checksum_without_its_successor(
    log: EmbeddedLog, clock: ManualClock
) -> None:
    """The append goes on with the last block, which compaction has read by then and is about to replace."""
    log.admin.create_topic("board", 1, TopicPolicy(COMPACT))
    put(log, *[(str(number % 50), str(number)) for number in range(200)])

    def connect() -> Database:
        overtaken = Overtaken(log.path)
        overtaken.instead = lambda: put(log, ("0", "more"))
        return overtaken

    care = Care(connect)
    assert care.compact("board", clock.wall_ms()) == 150
    care.close()
    assert log.integrity_check() == []
    wanted = {str(number % 50).encode(): str(number).encode() for number in range(150, 200)} | {b"0": b"more"}
    assert {record.key: record.value for record in contents(log)} == wanted


def test_only_compacted_topics_are_compacted(log: EmbeddedLog) -> None:
    log.admin.create_topic("board", 1, TopicPolicy())
    with pytest.raises(InvalidRequest, match=r"\['delete'\]"):
        log.compact("board", 0)
    with pytest.raises(UnknownStore, match="'board'"):
        log.compact("boards", 0)


def test_care_compacts_only_when_enough_is_new(log: EmbeddedLog, clock: ManualClock) -> None:
    log.admin.create_topic("board", 1, TopicPolicy(COMPACT))
    put(log, *[(str(number), "v") for number in range(10)])
    assert log.care(clock.wall_ms()).compacted == 0
    put(log, *[("1", "v")] * 9)
    assert log.care(clock.wall_ms()).compacted == 0  # 9 new of 19: under the ratio of one half
    put(log, ("1", "last"))
    assert log.care(clock.wall_ms()).compacted == 10
    assert log.care(clock.wall_ms()) == CareReport(0, 0, 0, 0)


def test_dirty_ratio_of_the_topic_is_honoured_and_checked(log: EmbeddedLog, clock: ManualClock) -> None:
    policy = TopicPolicy(COMPACT, extra={"min.cleanable.dirty.ratio": "0.05"})
    assert log.admin.create_topic("board", 1, policy).policy == policy
    put(log, *[(str(number), "v") for number in range(10)])
    log.care(clock.wall_ms())
    put(log, ("1", "v"))
    assert log.care(clock.wall_ms()).compacted == 1
    for bad in ("2", "often"):
        with pytest.raises(InvalidRequest, match="dirty"):
            log.admin.create_topic("bad", 1, TopicPolicy(COMPACT, extra={"min.cleanable.dirty.ratio": bad}))


def pages_of(log: EmbeddedLog) -> int:
    with closing(Database(log.path)) as db, db.read() as run:
        return int(run.execute("PRAGMA page_count").fetchone()[0])


def test_space_of_a_deleted_topic_is_given_back(log: EmbeddedLog, clock: ManualClock) -> None:
    log.admin.create_topic("board", 1, TopicPolicy())
    for _ in range(5):
        put(log, *[(str(number), "x" * 1_000) for number in range(2_000)])
    before = pages_of(log)
    log.admin.delete_topic("board")
    freed = log.care(clock.wall_ms()).pages_freed
    assert freed == before - pages_of(log) > before / 2
    assert Path(log.path).stat().st_size == pages_of(log) * PAGE_BYTES
    assert log.integrity_check() == []


def test_records_of_a_deleted_topic_left_by_a_kill_are_purged_by_care(log: EmbeddedLog) -> None:
    log.admin.create_topic("board", 1, TopicPolicy())
    put(log, ("a", "1"), ("b", "2"))
    log._admin._purge = lambda: None
    log.admin.delete_topic("board")
    assert log.integrity_check() == []
    assert log.care(0).purged == 2
    assert log.care(0).purged == 0
