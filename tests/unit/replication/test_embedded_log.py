"""The embedded log's own parts: its address, its file, its write-ahead log, boots and bounds.

Rules of this file: real files in a temporary folder, time from a manual clock. The contract of every log is in
`tests/contract/`, compaction and retention in `test_embedded_care.py`, several processes at once in
`test_embedded_log_processes.py`.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.replication.embedded import db as embedded_db
from standfast.replication.embedded import reader as embedded_reader
from standfast.replication.embedded.db import Database
from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.embedded.rows import pack_headers, unpack_headers
from standfast.replication.embedded.schema import SCHEMA_VERSION
from standfast.replication.log import Committed, Headers, Outgoing, TopicPolicy
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store.clock import ManualClock
from standfast.store.errors import (
    BadConfig,
    Corruption,
    Fenced,
    InvalidRequest,
    StandfastError,
    Unavailable,
)
from support.embedded import T0, contents, put


@pytest.fixture
def log(embedded_log: EmbeddedLog) -> EmbeddedLog:
    return embedded_log


# -- address and file -------------------------------------------------------------------------------------------------


def test_address_opens_the_same_log_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = open_log("sqlite:///./deep er/log?synchronous=normal")
    first.admin.create_topic("board", 1, TopicPolicy())
    assert first.address == f"sqlite:///{tmp_path}/deep%20er/log?synchronous=normal"
    monkeypatch.chdir("/")  # a part that is opened later finds the same file
    assert first.reader().bounds([T0]) == {T0: Bounds(0, 0)}
    second = open_log(first.address)
    assert [info.name for info in second.admin.topics()] == ["board"]
    first.close()
    second.close()
    assert (tmp_path / "deep er" / "log").is_file()


def test_folder_holds_the_log_as_log_sqlite(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for address in (f"sqlite:///{tmp_path}/new/", f"sqlite:///{tmp_path}/there"):
        open_log(address).close()
    assert (tmp_path / "new" / "log.sqlite").is_file()
    assert (tmp_path / "there" / "log.sqlite").is_file()


def test_files_can_be_read_by_their_owner_only(log: EmbeddedLog, tmp_path: Path) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("log.sqlite", "log.sqlite-shm", "log.sqlite-wal", "log.sqlite.lock"), 0o600)


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("./log", "no scheme"),
        ("sqlite://log", "three slashes"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqllite:///log", "did you mean 'sqlite'"),
        ("postgres://host/db", "unknown scheme 'postgres', known are sqlite, kafka: write"),
        ("sqlite:///log?synchronus=full", "did you mean 'synchronous'"),
        ("sqlite:///log?synchronous=off", "full or normal"),
    ],
)
def test_bad_address_is_refused_with_the_way_to_write_it(
    address: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadConfig, match=problem):
        open_log(address)
    assert list(tmp_path.iterdir()) == []


def test_bad_address_names_every_problem() -> None:
    with pytest.raises(BadConfig) as caught:
        open_log("sqlite://log?mode=fast&synchronous=off")
    assert len(caught.value.problems) == 3


def test_file_that_is_no_database_is_corruption_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    path.write_bytes(b"no database at all, but long enough to look for a header" * 20)
    before = path.read_bytes()
    with pytest.raises(Corruption, match=str(path)):
        EmbeddedLog(path)
    assert path.read_bytes() == before


def test_newer_format_is_refused_naming_both_versions(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    EmbeddedLog(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(InvalidRequest, match=rf"version {SCHEMA_VERSION + 1}, .* {SCHEMA_VERSION}:"):
        EmbeddedLog(path)
    assert path.read_bytes() == before


def test_database_of_another_program_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(InvalidRequest, match="another program"):
        EmbeddedLog(path)
    assert path.read_bytes() == before


def test_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidRequest, match="not a folder"):
        EmbeddedLog(tmp_path / "file" / "log.sqlite")
    with pytest.raises(InvalidRequest, match="full or normal"):
        EmbeddedLog(tmp_path / "log.sqlite", synchronous="off")


def test_full_disk_is_unavailable_with_advice_and_writes_nothing(log: EmbeddedLog) -> None:
    log.admin.create_topic("board", 1, TopicPolicy())
    db = Database(log.path)
    with db.lock(), db.mutex, db.guard, db.write() as run:
        pages = run.execute("PRAGMA page_count").fetchone()[0]
        run.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(Unavailable, match="free disk space"), db.lock(), db.mutex, db.guard, db.write() as run:
        run.execute("UPDATE partitions SET end_offset = 5")
        run.execute("INSERT INTO log_records (id, timestamp, value) VALUES (1, 1, zeroblob(1000000))")
    db.close()
    assert log.reader().bounds([T0]) == {T0: Bounds(0, 0)}
    assert log.integrity_check() == []


def test_file_locked_by_another_program_is_unavailable(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_db, "BUSY_TIMEOUT_MS", 1)
    producer = log.producer()
    log.admin.create_topic("board", 1, TopicPolicy())
    stranger = sqlite3.connect(log.path, isolation_level=None)
    stranger.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="another program"):
        producer.append({T0: [Outgoing(b"k", b"v", 1)]})
    stranger.execute("ROLLBACK")
    stranger.close()
    assert producer.append({T0: [Outgoing(b"k", b"v", 1)]}) == {T0: 1}


def test_damaged_page_is_found(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "log.sqlite"
    log = EmbeddedLog(path, clock=clock)
    log.admin.create_topic("board", 1, TopicPolicy())
    put(log, *[(str(number), "x" * 200) for number in range(2_000)])
    assert log.integrity_check() == []
    log.close()
    damaged = bytearray(path.read_bytes())
    middle = len(damaged) // 2 // 8_192 * 8_192
    damaged[middle : middle + 8_192] = b"\xa5" * 8_192
    path.write_bytes(damaged)
    log = EmbeddedLog(path, clock=clock)
    assert log.integrity_check()
    with pytest.raises(StandfastError, match=str(path)):  # never a short read
        contents(log)
    log.close()


# -- the write-ahead log ----------------------------------------------------------------------------------------------


def test_wal_stays_small_however_much_is_written(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_db, "WAL_SOFT_BYTES", 1 << 18)
    log.admin.create_topic("board", 1, TopicPolicy())
    other = log.producer()
    for _ in range(30):
        put(log, *[(str(number), "x" * 500) for number in range(200)])  # a new connection each time
        other.append({T0: [Outgoing(b"k", b"x" * 500, 1)] * 200})
    assert Path(f"{log.path}-wal").stat().st_size < 1 << 20
    assert Path(log.path).stat().st_size > 5 << 20


def test_wal_hindered_by_a_reader_is_cut_once_the_reader_is_gone(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_db, "WAL_SOFT_BYTES", 1 << 17)
    monkeypatch.setattr(embedded_db, "WAL_HARD_BYTES", 1 << 19)
    monkeypatch.setattr(embedded_db, "HARD_WAIT_MS", 1)
    log.admin.create_topic("board", 1, TopicPolicy())
    wal = Path(f"{log.path}-wal")
    producer = log.producer()
    batch = [Outgoing(b"k", b"x" * 500, 1)] * 200
    db = Database(log.path)
    with db.read() as run:
        assert run.execute("SELECT count(*) FROM log_records").fetchone()[0] == 0
        for _ in range(20):
            producer.append({T0: batch})
        held_bytes = wal.stat().st_size
        assert run.execute("SELECT count(*) FROM log_records").fetchone()[0] == 0  # one consistent view
    assert held_bytes > 1 << 20
    for _ in range(10):
        producer.append({T0: batch})
    db.close()
    assert wal.stat().st_size < held_bytes
    assert len(contents(log)) == 6_000


def test_failed_checkpoint_is_reported_by_the_next_write_not_by_the_one_before(log: EmbeddedLog) -> None:
    log.admin.create_topic("board", 1, TopicPolicy())
    db = Database(log.path)
    db._checkpoint_due = True  # as after a commit whose checkpoint failed
    with db.lock(), db.mutex, db.guard, db.write() as run:
        run.execute("UPDATE partitions SET kept = 1")
    assert not db._checkpoint_due
    db.close()


# -- reading, groups --------------------------------------------------------------------------------------------------


def test_fetch_holds_a_bounded_number_of_bytes(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_reader, "FETCH_BYTES_MAX", 10_000)
    log.admin.create_topic("board", 1, TopicPolicy())
    put(log, *[(str(number), "x" * 3_000) for number in range(10)], ("large", "x" * 50_000))
    reader = log.reader()
    reader.assign({T0: 0})
    counts = []
    while batch := reader.fetch(100):
        counts.append(len(batch[0].records))
    assert max(counts) <= 4
    assert sum(counts) == 11


def test_waiting_fetch_wakes_up_when_another_writes(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log.sqlite")
    log.admin.create_topic("board", 1, TopicPolicy())
    reader = log.reader()
    reader.assign({T0: 0})
    reader.fetch(1)
    feeder = threading.Thread(target=put, args=(log, ("a", "1")))
    feeder.start()
    (found,) = reader.fetch(10, timeout_ms=30_000)
    feeder.join()
    assert [record.value for record in found.records] == [b"1"]
    log.close()


def test_members_of_an_earlier_boot_are_dead(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = EmbeddedLog(tmp_path / "log.sqlite", clock=clock)
    first = before.group("board").join("a", lease_ms=60_000)
    before.writer("board-0", group="board", owner="a")
    before.close()
    monkeypatch.setattr("standfast.replication.embedded.log.boot_id", lambda: "another boot")
    after = EmbeddedLog(tmp_path / "log.sqlite", clock=clock)
    view = after.group("board").view()
    assert view.members == ()
    assert view.generation > first.generation
    after.group("board").join("b")
    assert after.writer("board-0", group="board", owner="b", if_free=True).epoch == 2
    with pytest.raises(Fenced):
        after.group("board").heartbeat("a")
    after.close()


def test_parts_may_be_used_in_different_threads(log: EmbeddedLog) -> None:
    log.admin.create_topic("board", 4, TopicPolicy())
    sources = [TopicPartition("board", number) for number in range(4)]

    def work(source: TopicPartition) -> None:
        producer, group = log.producer(), log.group("board")
        group.join(str(source))
        for number in range(50):
            producer.append({source: [Outgoing(b"k", b"%d" % number, number)] * 10})
            group.commit({source: Committed(number)})
            log.admin.topics()

    threads = [threading.Thread(target=work, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(log.reader().bounds(sources).values()) == {Bounds(0, 500)}
    assert set(log.group("board").committed().values()) == {Committed(49)}
    assert len(log.group("board").view().members) == 4


@given(st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=50)), max_size=8).map(tuple))
def test_header_bytes_come_back_as_they_went_in(headers: Headers) -> None:
    packed = pack_headers(headers)
    assert (packed is None) == (not headers)
    assert unpack_headers(packed or b"") == headers


@given(st.binary(max_size=60))
def test_any_header_bytes_either_parse_or_are_corruption(packed: bytes) -> None:
    try:
        headers = unpack_headers(packed)
    except Corruption:
        return
    assert isinstance(headers, tuple)


def test_header_bytes_are_laid_out_as_documented() -> None:
    headers: Headers = (("ab", b"\x01"), ("c", None))
    assert pack_headers(headers) == bytes.fromhex("0200 6162 01000000 01 0100 63 ffffffff".replace(" ", ""))


def test_closing_twice_writes_into_no_file_that_was_opened_meanwhile(tmp_path: Path) -> None:
    """The number of a file is used again as soon as it is free."""
    log = open_log(f"sqlite:///{tmp_path}/log")
    log.admin.create_topic("t", 1, TopicPolicy())
    writer = log.writer("w", group="g", owner="me")
    writer.close()
    others = [(tmp_path / f"other{number}").open("w+b") for number in range(64)]
    try:
        writer.close()
        log.close()
        log.close()
        assert [other.read() for other in others] == [b""] * 64
        for other in others:
            other.write(b"still open")
    finally:
        for other in others:
            other.close()


@pytest.mark.parametrize("broken_off", ["read", "write"])
def test_transaction_whose_end_a_signal_handler_broke_off_is_ended_by_the_next(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch, broken_off: str
) -> None:
    db = Database(log.path)
    end = Database._end

    def break_off(_self: Database, _statement: str) -> None:
        monkeypatch.setattr(Database, "_end", end)
        raise KeyboardInterrupt

    def work(name: str) -> None:
        with getattr(db, name)() as run:
            run.execute("SELECT 1")
            if name == broken_off:
                monkeypatch.setattr(Database, "_end", break_off)
                raise ValueError("the work fails, and its transaction is to be ended")

    for name in ("read", "write"):
        with pytest.raises(KeyboardInterrupt):
            work(broken_off)
        with getattr(db, name)() as run:
            assert run.execute("SELECT 1").fetchone() == (1,)
    db.close()
