"""Checksums of the embedded log: a changed record is Corruption, and never returned.

Rules of this file: SQL damages the file behind the log's back, as a flipped byte in a cell would; damage to the
bytes of the files is in `test_damage_log.py`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.replication.embedded import care as embedded_care
from standfast.replication.embedded import sums as embedded_sums
from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.embedded.sums import BLOCK_RECORDS, Cells, ChecksumBlock, Sums, add, block_of, check
from standfast.replication.log import Committed, Outgoing, TopicPolicy
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.store.clock import ManualClock
from standfast.store.errors import Corruption, StandfastError
from support.embedded import COMPACT, T0, contents, pairs, put

RECORDS = 300
T1 = TopicPartition("board", 1)


@pytest.fixture
def log(embedded_log: EmbeddedLog) -> EmbeddedLog:
    return embedded_log


def sql(log: EmbeddedLog, statement: str, *values: object) -> int:
    with closing(sqlite3.connect(log.path, isolation_level=None)) as connection:
        return connection.execute(statement, values).rowcount


def filled(log: EmbeddedLog, *, headers: bool = False, policy: TopicPolicy | None = None) -> None:
    """300 records in one append, then 20 in appends of one."""
    log.admin.create_topic("board", 2, policy or TopicPolicy())
    extra = ((("h", b"1"),),) if headers else ()
    batch = [(b"k%03d" % number, b"v%03d" % number, 1_000 + number, *extra) for number in range(RECORDS)]
    log.producer().append({T0: batch, T1: batch})  # type: ignore[dict-item]
    for number in range(20):
        put(log, (f"small{number}", "v"))


DAMAGE = {
    "value": "UPDATE log_records SET value = x'76303031' WHERE id = (1 << 40) + 200",
    "key": "UPDATE log_records SET key = x'6b303031' WHERE id = (1 << 40) + 200",
    "timestamp": "UPDATE log_records SET timestamp = timestamp + 1 WHERE id = (1 << 40) + 200",
    "tombstone": "UPDATE log_records SET value = NULL WHERE id = (1 << 40) + 200",
    "cells shifted": "UPDATE log_records SET key = x'6b32', value = x'303076323030' WHERE id = (1 << 40) + 200",
    "gone": "DELETE FROM log_records WHERE id = (1 << 40) + 200",
    "first gone": "DELETE FROM log_records WHERE id = (1 << 40)",
    "last gone": "DELETE FROM log_records WHERE id = (1 << 40) + 319",
    "many gone": "DELETE FROM log_records WHERE id BETWEEN (1 << 40) + 128 AND (1 << 40) + 255",
    "moved": "UPDATE log_records SET id = id + 100 WHERE id = (1 << 40) + 319",
    "sums": "UPDATE sums SET values_sum = values_sum + 1 WHERE partition = 1 AND begin_offset = 128",
    "sums gone": "DELETE FROM sums WHERE partition = 1 AND begin_offset = 128",
    "last sums gone": "DELETE FROM sums WHERE partition = 1 AND end_offset = 320",
    "end": "UPDATE partitions SET end_offset = 128 WHERE id = 1",
    "begin": "UPDATE partitions SET begin_offset = 128 WHERE id = 1",
    "number": "UPDATE partitions SET number = 2 + number",
    "topic": "UPDATE topics SET name = 'boars'",
    "policy": """UPDATE topics SET policy = replace(policy, 'delete"', 'compact"')""",
    "index": "DELETE FROM sqlite_master",
}


@pytest.mark.parametrize("what", [name for name in DAMAGE if name not in ("number", "topic", "policy", "index")])
@pytest.mark.parametrize("headers", [False, True], ids=["plain", "headers"])
def test_damage_is_named_by_partition_and_offset_and_the_other_partition_reads_on(
    log: EmbeddedLog, what: str, headers: bool
) -> None:
    filled(log, headers=headers)
    sql(log, DAMAGE[what])
    assert log.integrity_check()
    with pytest.raises(Corruption, match="board-0"):
        contents(log, 0)
    reader = log.reader()
    reader.assign({T1: 0})
    (found,) = reader.fetch(1_000)
    assert [record.value for record in found.records] == [b"v%03d" % number for number in range(RECORDS)]


def test_error_names_the_offset_that_is_gone_and_what_lies_before_its_block_is_given_out(log: EmbeddedLog) -> None:
    filled(log)
    sql(log, DAMAGE["gone"])
    reader = log.reader()
    reader.assign({T0: 0})
    (first,) = reader.fetch(BLOCK_RECORDS)
    assert first.next_offset == BLOCK_RECORDS
    with pytest.raises(
        Corruption, match=r"board-0: the records at offsets 128 to 255 .*the first missing one is 200"
    ) as error:
        reader.fetch(BLOCK_RECORDS)
    assert error.value.sources == (T0,)
    assert reader.assignment() == {T0: BLOCK_RECORDS}


def test_header_that_changed_is_damage(log: EmbeddedLog) -> None:
    filled(log, headers=True)
    assert len(contents(log)) == RECORDS + 20
    sql(log, "UPDATE log_records SET headers = NULL WHERE id = (1 << 40) + 5")
    with pytest.raises(Corruption, match="offsets 0 to 127"):
        contents(log)


@pytest.mark.parametrize("what", ["number", "topic", "policy"])
def test_damage_to_what_describes_the_log_is_found_on_opening(log: EmbeddedLog, what: str) -> None:
    filled(log)
    sql(log, DAMAGE[what])
    with pytest.raises(Corruption, match=r"topic|partitions"):
        EmbeddedLog(log.path)
    assert log.integrity_check()


@pytest.mark.parametrize(
    ("statement", "call"),
    [
        ("UPDATE committed SET position = 6", lambda log: log.group("app").committed()),
        ("UPDATE writers SET epoch = 7", lambda log: log.writer("app-0", group="app", owner="b")),
        ("UPDATE writers SET owner = 'c'", lambda log: log.group("app").owners()),
    ],
)
def test_damage_to_offsets_and_owners_is_noticed(
    log: EmbeddedLog, statement: str, call: Callable[[EmbeddedLog], object]
) -> None:
    log.writer("app-0", group="app", owner="a")
    log.group("app").commit({T0: Committed(5, "m")})
    call(log)
    sql(log, statement)
    with pytest.raises(Corruption, match="'app"):
        call(log)


def test_append_beside_damage_leaves_it_damaged(log: EmbeddedLog) -> None:
    filled(log)
    sql(log, DAMAGE["last gone"])
    put(log, ("another", "v"))
    with pytest.raises(Corruption, match="offsets 256 to 320"):
        contents(log)


def test_compaction_removes_nothing_beside_damage_and_does_not_make_it_look_well(
    log: EmbeddedLog, clock: ManualClock
) -> None:
    filled(log, policy=TopicPolicy(COMPACT))
    put(log, *[(f"k{number:03}", "new") for number in range(RECORDS)])
    sql(log, DAMAGE["key"])
    with pytest.raises(Corruption, match="board-0"):
        log.compact("board", clock.wall_ms())
    with pytest.raises(Corruption, match="board-0"):
        contents(log)


def test_care_of_the_other_partitions_goes_on_beside_damage(log: EmbeddedLog, clock: ManualClock) -> None:
    filled(log, policy=TopicPolicy(COMPACT))
    batch = [(b"k%03d" % number, b"new", 1_000) for number in range(RECORDS)]
    log.producer().append({T1: batch})  # type: ignore[dict-item]
    sql(log, DAMAGE["key"])
    with pytest.raises(Corruption, match="board-0"):
        log.care(clock.wall_ms())
    reader = log.reader()
    reader.assign({T1: 0})
    (found,) = reader.fetch(1_000)
    assert [record.value for record in found.records] == [b"new"] * RECORDS


@pytest.mark.parametrize("before", [100, 128, 150, 201])
def test_head_that_is_cut_off_takes_damage_with_it_and_none_that_stays_looks_well(
    log: EmbeddedLog, before: int
) -> None:
    filled(log)
    sql(log, DAMAGE["gone"])
    assert log.truncate(T0, before) == Bounds(before, RECORDS + 20)
    if before >= 256:
        assert len(contents(log)) == RECORDS + 20 - before
    else:
        with pytest.raises(Corruption, match="to 255"):
            contents(log)
    assert log.truncate(T0, 256) == Bounds(256, RECORDS + 20)
    assert len(contents(log)) == RECORDS + 20 - 256


def test_small_appends_share_a_block(log: EmbeddedLog) -> None:
    log.admin.create_topic("board", 1, TopicPolicy())
    for number in range(200):
        put(log, (str(number), "v"))
    with closing(sqlite3.connect(log.path)) as connection:
        found = connection.execute("SELECT begin_offset, end_offset, records FROM sums ORDER BY 1").fetchall()
    assert found == [(0, 128, 128), (128, 200, 72)]
    assert len(contents(log)) == 200


def test_blocks_of_large_records_hold_few(log: EmbeddedLog) -> None:
    log.admin.create_topic("board", 1, TopicPolicy())
    put(log, *[(str(number), "x" * 100_000) for number in range(10)])
    with closing(sqlite3.connect(log.path)) as connection:
        assert connection.execute("SELECT max(records) FROM sums").fetchone() == (2,)
    assert len(contents(log)) == 10


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=30)),
            st.tuples(st.just("cut"), st.integers(0, 10)),
            st.tuples(st.just("compact"), st.just(0)),
        ),
        max_size=12,
    ),
    block=st.integers(1, 9),
    chunk=st.integers(1, 7),
    fetch=st.integers(1, 9),
    headers=st.booleans(),
)
def test_log_reads_as_its_model_whatever_blocks_chunks_and_fetches(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, Any]],
    block: int,
    chunk: int,
    fetch: int,
    headers: bool,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded_sums, "BLOCK_RECORDS", block)
        for name, value in (("CHUNK_ROWS", chunk), ("CHUNK_PAGES", 2), ("SCAN_ROWS", chunk), ("WINDOW_KEYS", 3)):
            patch.setattr(embedded_care, name, value)
        log = EmbeddedLog(tmp_path_factory.mktemp("sums") / "log.sqlite", synchronous="normal")
        log.admin.create_topic("board", 1, TopicPolicy(COMPACT))
        model: dict[int, tuple[bytes, bytes | None]] = {}
        end = begin = 0
        for step, what in steps:
            if step == "put":
                batch = [
                    (b"%d" % key, None if dead else b"%d" % (end + index)) for index, (key, dead) in enumerate(what)
                ]
                rows = [Outgoing(key, value, 7, (("h", key),) if headers else ()) for key, value in batch]
                log.producer().append({T0: rows})
                model |= {end + index: pair for index, pair in enumerate(batch)}
                end += len(batch)
            elif step == "cut":
                begin = min(begin + what, end)
                log.truncate(T0, begin)
                model = {offset: pair for offset, pair in model.items() if offset >= begin}
            else:
                log.compact("board", 0)
                last = {key: offset for offset, (key, _) in sorted(model.items())}
                model = {offset: pair for offset, pair in model.items() if last[pair[0]] == offset}
            reader = log.reader()
            reader.assign({T0: begin})
            found = []
            while batches := reader.fetch(fetch):
                assert len(batches[0].records) <= fetch
                found += list(batches[0].records)
            reader.close()
            assert [(one.offset, one.key, one.value) for one in found] == [(at, *model[at]) for at in sorted(model)]
            assert log.integrity_check() == []
        log.close()


CELLS = st.lists(
    st.tuples(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9)), min_size=1, max_size=9
)


@given(rows=CELLS, at=st.integers(0, 9))
def test_sums_go_on_where_they_ended(rows: list[tuple[bytes | None, bytes | None]], at: int) -> None:
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    cells = Cells(list(range(len(rows))), keys, values)
    whole, size = add(Sums(), cells)
    first, _ = add(Sums(), cells.cut(0, at))
    assert add(first, cells.cut(at, len(rows)))[0] == whole
    assert size == sum(len(cell or b"") for cell in keys + values)


@given(rows=CELLS, where=st.integers(0, 8), column=st.sampled_from(["keys", "values"]), other=st.none() | st.binary())
def test_any_other_cell_is_noticed(
    rows: list[tuple[bytes | None, bytes | None]], where: int, column: str, other: bytes | None
) -> None:
    where %= len(rows)
    cells = Cells([5] * len(rows), [key for key, _ in rows], [value for _, value in rows])
    block = block_of(3, 3 + len(rows), range(3, 3 + len(rows)), add(Sums(), cells)[0])
    check(T0, block, range(3, 3 + len(rows)), cells)
    changed = list(getattr(cells, column))
    if changed[where] == other:
        return
    changed[where] = other
    with pytest.raises(Corruption):
        check(T0, block, range(3, 3 + len(rows)), cells._replace(**{column: changed}))


@pytest.mark.parametrize(
    "cells",
    [Cells([5], ["text"], [b"1"]), Cells([5], [b"a"], [7]), Cells([None], [b"a"], [b"1"])],  # type: ignore[list-item]
)
def test_cell_of_another_type_is_damage(cells: Cells) -> None:
    block = block_of(0, 1, [0], add(Sums(), Cells([5], [b"a"], [b"1"]))[0])
    with pytest.raises(Corruption, match="another type"):
        check(T0, block, [0], cells)


def test_offsets_of_a_block_with_gaps_are_part_of_it() -> None:
    cells = Cells([5, 5], [b"a", b"b"], [b"1", b"2"])
    block = block_of(0, 9, [2, 7], add(Sums(), cells)[0])
    assert check(T0, block, [2, 7], cells) == 4
    for offsets in ([2, 6], [1, 7]):
        with pytest.raises(Corruption):
            check(T0, block, offsets, cells)
    assert block == ChecksumBlock(0, 9, 2, *block.sums, block.gaps)


# -- the older format -------------------------------------------------------------------------------------------------

FORMAT_1 = """
CREATE TABLE topics (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, topic_id TEXT NOT NULL, partitions INTEGER NOT NULL,
    policy TEXT NOT NULL) STRICT;
CREATE TABLE partitions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, topic INTEGER NOT NULL, number INTEGER NOT NULL,
    begin_offset INTEGER NOT NULL DEFAULT 0, end_offset INTEGER NOT NULL DEFAULT 0,
    keyed INTEGER NOT NULL, has_headers INTEGER NOT NULL DEFAULT 0, widest_bytes INTEGER NOT NULL DEFAULT 0,
    clean_offset INTEGER NOT NULL DEFAULT 0, swept_offset INTEGER NOT NULL DEFAULT 0, kept INTEGER NOT NULL DEFAULT 0,
    appended_ms INTEGER NOT NULL DEFAULT 0, aged_ms INTEGER NOT NULL DEFAULT 0, UNIQUE (topic, number)) STRICT;
CREATE TABLE records (
    id INTEGER PRIMARY KEY, timestamp INTEGER NOT NULL, key BLOB, value BLOB, headers BLOB) STRICT;
CREATE TABLE ages (
    partition INTEGER NOT NULL, end_offset INTEGER NOT NULL, appended_ms INTEGER NOT NULL,
    PRIMARY KEY (partition, end_offset)) STRICT, WITHOUT ROWID;
CREATE TABLE doomed (partition INTEGER PRIMARY KEY) STRICT;
CREATE TABLE writers (
    transactional_id TEXT PRIMARY KEY, group_name TEXT NOT NULL, owner TEXT NOT NULL, epoch INTEGER NOT NULL,
    boot_id TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE groups (name TEXT PRIMARY KEY, generation INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE members (
    group_name TEXT NOT NULL, member_id TEXT NOT NULL, metadata TEXT NOT NULL, boot_id TEXT NOT NULL,
    lease_ms INTEGER NOT NULL, deadline_ms INTEGER NOT NULL, PRIMARY KEY (group_name, member_id)) STRICT, WITHOUT ROWID;
CREATE TABLE committed (
    group_name TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, position INTEGER NOT NULL,
    metadata TEXT NOT NULL, PRIMARY KEY (group_name, topic, partition)) STRICT, WITHOUT ROWID;
INSERT INTO topics VALUES (1, 'board', 'id-1', 1, '{"cleanup": ["compact"], "delete_retention_ms": 1,
    "extra": {}, "min_compaction_lag_ms": 0, "retention_ms": -1}');
INSERT INTO partitions (id, topic, number, begin_offset, end_offset, keyed, widest_bytes) VALUES (1, 1, 0, 1, 4, 1, 9);
INSERT INTO records VALUES ((1 << 40) + 1, 5, x'61', x'31', NULL), ((1 << 40) + 3, 6, x'62', x'32', NULL);
INSERT INTO committed VALUES ('app', 'in', 0, 7, 'text');
INSERT INTO writers VALUES ('app-0', 'app', 'me', 3, 'boot');
"""


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    path = tmp_path / "old.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA page_size=8192")
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(FORMAT_1)
        connection.execute("PRAGMA application_id=1397115975")
        connection.execute("PRAGMA user_version=1")
    return path


def test_file_of_format_1_is_read_written_and_compacted(old_file: Path, clock: ManualClock) -> None:
    with closing(EmbeddedLog(old_file, clock=clock)) as log:
        assert pairs(log) == [(1, b"a", b"1"), (3, b"b", b"2")]
        put(log, ("a", "3"), ("c", "4"))
        assert pairs(log) == [(1, b"a", b"1"), (3, b"b", b"2"), (4, b"a", b"3"), (5, b"c", b"4")]
        assert log.integrity_check() == []
        assert log.compact("board", 0) == 1
        assert log.group("app").committed() == {TopicPartition("in", 0): Committed(7, "text")}
        assert log.writer("app-0", group="app", owner="me").epoch == 4
    with closing(EmbeddedLog(old_file, clock=clock)) as log:
        assert pairs(log) == [(3, b"b", b"2"), (4, b"a", b"3"), (5, b"c", b"4")]
        assert log.truncate(T0, 4) == Bounds(4, 6)
        assert pairs(log) == [(4, b"a", b"3"), (5, b"c", b"4")]
        assert log.integrity_check() == []


def test_older_version_that_still_has_the_file_open_can_write_nothing_any_more(old_file: Path) -> None:
    with closing(sqlite3.connect(old_file, isolation_level=None)) as older:
        older.execute("SELECT count(*) FROM records").fetchone()
        EmbeddedLog(old_file).close()
        with pytest.raises(sqlite3.OperationalError, match="no such table: records"):
            older.execute("INSERT INTO records (id, timestamp) VALUES (1, 1)")


def test_upgrade_that_fails_changes_nothing(old_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr("standfast.replication.embedded.schema.seal", fail)
        with pytest.raises(KeyboardInterrupt):
            EmbeddedLog(old_file)
    with closing(sqlite3.connect(old_file)) as older:
        assert older.execute("PRAGMA user_version").fetchone() == (1,)
        assert older.execute("SELECT count(*) FROM records").fetchone() == (2,)
    with closing(EmbeddedLog(old_file)) as log:
        assert len(pairs(log)) == 2


def test_damage_never_passes_for_an_answer_of_another_kind(log: EmbeddedLog) -> None:
    filled(log)
    sql(log, "UPDATE partitions SET summed_offset = 320 WHERE id = 1")  # as if no record had a checksum
    with pytest.raises(StandfastError, match="board-0"):
        contents(log, 0)
