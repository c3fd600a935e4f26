"""All stores of one task: the cut, adding, dropping and refusing stores, failed writes, expiry, the bound."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from standfast.replication.log import Record
from standfast.store import serde
from standfast.store.engine import DEFAULT_FAMILY, Prepared
from standfast.store.errors import Backpressure, Closed, Corruption, InvalidRequest, UnknownStore
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from standfast.store.specs import KeyValueStore, SessionStore, StoreSpec, VersionedStore
from standfast.store.task.commit_record import CUT_KEY, CommitRecord, Position, StoreTimes
from standfast.store.task.task_stores import PREPARED_ROWS_MIN, TaskStores
from support.stores import MINUTE_MS, TEXT, Open, at, keyvalue, rows_on_disk, session, versioned, window

# The cut


def test_rows_positions_and_times_come_back_as_one_cut(open_task: Open) -> None:
    task = open_task(keyvalue(), window(retain_duplicates=True))
    task.store("kv").put("a", "1", timestamp=5)
    task.store("win").put("a", "1", 30_000)
    task.store("win").put("a", "2", 30_000)
    cut = CommitRecord(
        positions={"kv": Position(9, 2, "topic-id", 44)},
        sources={"flights/0": 4711},
        stream_times={"flights/0": 12},
        progress={"closed": 3},
        epoch=6,
    )
    task.commit(cut)
    task.store("kv").put("b", "uncommitted")
    task.close()
    again = open_task(keyvalue(), window(retain_duplicates=True))
    assert again.cut == replace(cut, stores={"kv": StoreTimes(-1, 0), "win": StoreTimes(30_000, 2)})
    assert list(again.store("kv").all()) == [("a", "1")]
    assert [value for _, value in again.store("win").all()] == ["1", "2"]


def test_memory_stores_come_back_empty_and_without_a_position(open_task: Open) -> None:
    specs = [keyvalue(), keyvalue("fast", engine="memory"), window(engine="memory")]
    task = open_task(*specs)
    for name in ("kv", "fast"):
        task.store(name).put("a", name)
    task.store("win").put("a", "1", 30_000)
    task.commit(at(3, "kv", "fast", "win"))
    assert task.store("fast").get("a") == "fast"
    task.close()
    again = open_task(*specs)
    assert (again.store("kv").get("a"), again.store("fast").get("a")) == ("kv", None)
    assert set(again.cut.positions) == {"kv"}
    assert again.store("win").rows.observed_ms == -1


def test_a_task_of_memory_stores_needs_no_directory(open_task: Open, tmp_path: Path) -> None:
    task = open_task(keyvalue(engine="memory"))
    task.store("kv").put("a", "1")
    task.commit(at(1))
    assert task.store("kv").get("a") == "1"
    assert not (tmp_path / "0_0").exists()


def test_discard_takes_back_rows_changes_stream_time_and_numbers(open_task: Open) -> None:
    task = open_task(keyvalue(), window(retain_duplicates=True), versioned())
    task.store("win").put("a", "1", 30_000)
    task.commit(at(1))
    task.store("kv").put("a", "1")
    task.store("win").put("a", "2", 10 * MINUTE_MS)
    task.store("ver").put("a", "1", 90)
    assert list(task.store("win").fetch_range("a", 0, MINUTE_MS)) == []
    task.discard()
    assert task.buffer.take_changes() == {}
    assert list(task.store("kv").all()) == []
    assert list(task.store("win").fetch_range("a", 0, 10 * MINUTE_MS)) == [(30_000, "1")]
    assert task.store("ver").get("a") is None
    times = {name: (store.rows.observed_ms, store.rows.sequence) for name, store in task.stores.items()}
    assert times == {"kv": (-1, 0), "win": (30_000, 1), "ver": (-1, 0)}


# Adding, dropping and changing stores between runs


def test_stores_can_be_added_and_dropped(open_task: Open, tmp_path: Path, rocks_shared: RocksShared) -> None:
    task = open_task(keyvalue("kept"), keyvalue("gone"), window("gone-win"))
    for name in ("kept", "gone"):
        task.store(name).put("a", name)
    task.store("gone-win").put("a", "1", 0)
    task.commit(at(5, "kept", "gone", "gone-win"))
    task.close()
    task = open_task(keyvalue("kept"), keyvalue("new"))
    assert (task.store("kept").get("a"), task.store("new").get("a")) == ("kept", None)
    assert set(task.cut.positions) == {"kept"}
    with pytest.raises(UnknownStore, match=r"0_0 has no store 'gone': it declares kept, new"):
        task.store("gone")
    task.close()
    assert set(rows_on_disk(tmp_path / "0_0", rocks_shared)) == {DEFAULT_FAMILY, "kept", "new"}
    task = open_task(keyvalue("kept"), keyvalue("gone"), window("gone-win"))
    assert list(task.store("gone").all()) == list(task.store("gone-win").all()) == []
    assert set(task.cut.positions) == {"kept"}


def test_rows_left_by_a_drop_cut_short_are_not_taken_for_a_new_stores(
    open_task: Open, tmp_path: Path, rocks_shared: RocksShared
) -> None:
    open_task(keyvalue()).close()
    engine = RocksEngine(tmp_path / "0_0", shared=rocks_shared)  # as a crash between record and drop leaves it
    for family in ("old", "old-win@0"):
        engine.create_family(family)
        engine.write({family: {b"a" + b"\x00" * 12: b"stale 89"}})
    engine.close()
    task = open_task(keyvalue(), keyvalue("old"), window("old-win"))
    assert list(task.store("old").all()) == list(task.store("old-win").all()) == []


@pytest.mark.parametrize(
    ("made", "declared", "told"),
    [
        (keyvalue("s"), window("s"), r"kind: 'keyvalue' -> 'window'"),
        (keyvalue("s"), KeyValueStore("s", TEXT, serde.json), r"value: 'string' -> 'json'"),
        (keyvalue("s"), keyvalue("s", timestamped=False), r"timestamped: True -> False"),
        (keyvalue("s"), keyvalue("s", logging=False), r"logging: True -> False"),
        (window("s"), window("s", retain_duplicates=True), r"retain_duplicates: False -> True"),
        (session("s"), SessionStore("s", TEXT, TEXT, retention_ms=1), r"retention_ms: 120000 -> 1\b"),
        (versioned("s"), VersionedStore("s", TEXT, TEXT, history_retention_ms=1), r"history_retention_ms: 6000 -> 1\b"),
    ],
)
def test_a_changed_definition_is_refused_and_changes_nothing(
    open_task: Open, tmp_path: Path, rocks_shared: RocksShared, made: StoreSpec, declared: StoreSpec, told: str
) -> None:
    task = open_task(made, keyvalue("other"))
    task.store("other").put("a", "1")
    task.commit(at(5, "s", "other"))
    task.close()
    before = rows_on_disk(tmp_path / "0_0", rocks_shared)
    with pytest.raises(InvalidRequest, match=rf"store 's' .*{told}.*: declare it as it was, or .* new name"):
        open_task(declared, keyvalue("added"))
    assert rows_on_disk(tmp_path / "0_0", rocks_shared) == before


@pytest.mark.parametrize("beside", [(keyvalue("other"),), (keyvalue("other", engine="memory"),)])
@pytest.mark.parametrize("declared", [(), (keyvalue("s", logging=False, engine="memory"),)])
def test_rows_without_a_changelog_are_not_dropped_with_their_store(
    open_task: Open,
    tmp_path: Path,
    rocks_shared: RocksShared,
    declared: tuple[StoreSpec, ...],
    beside: tuple[StoreSpec, ...],
) -> None:
    task = open_task(keyvalue("s", logging=False), keyvalue("other"))
    task.store("s").put("a", "1")
    task.commit(at(5, "other"))
    task.close()
    before = rows_on_disk(tmp_path / "0_0", rocks_shared)
    with pytest.raises(InvalidRequest, match=r"store 's' of task 0_0 .* the only copy, .*: declare and connect it as"):
        open_task(*declared, *beside)
    assert rows_on_disk(tmp_path / "0_0", rocks_shared) == before
    assert open_task(keyvalue("s", logging=False)).store("s").get("a") == "1"


def test_store_without_a_changelog_and_without_rows_may_go(open_task: Open) -> None:
    task = open_task(keyvalue("s", logging=False), window("w", logging=False))
    task.store("s").put("a", "1")
    task.commit(CommitRecord())
    task.store("s").put("a", None)
    task.commit(CommitRecord())
    task.close()
    assert set(open_task(keyvalue()).stores) == {"kv"}


def test_what_the_stored_bytes_do_not_depend_on_may_change(open_task: Open) -> None:
    task = open_task(keyvalue())
    task.store("kv").put("a", "1")
    task.commit(at(5))
    task.close()
    again = open_task(keyvalue(caching=False, changelog={"retention.ms": "1"}))
    assert (again.store("kv").get("a"), again.cut.positions["kv"].offset) == ("1", 5)


def test_an_engine_switch_starts_from_the_log_both_ways(open_task: Open) -> None:
    for engine in ("rocksdb", "memory", "rocksdb"):
        task = open_task(keyvalue(engine=engine), keyvalue("other"))
        assert (list(task.store("kv").all()), task.cut.positions.get("kv")) == ([], None)
        task.apply({"kv": [Record(0, 7, b"a", b"1")]}, at(1, "kv", "other"))
        assert task.store("kv").get_with_timestamp("a") == ("1", 7)
        task.close()


# Failed writes


def test_a_failed_write_poisons_the_task_until_it_is_opened_again(open_task: Open) -> None:
    task = open_task(keyvalue())
    task.store("kv").put("a", "1")
    task.engine.close()  # the database is closed under the task
    with pytest.raises(Closed):
        task.commit(at(1))
    for write in (lambda: task.commit(at(1)), lambda: task.apply({}, at(1))):
        with pytest.raises(Closed, match=r"task 0_0 .*takes no more writes: reopen it"):
            write()
    task.close()
    again = open_task(keyvalue())
    assert (list(again.store("kv").all()), again.cut) == ([], CommitRecord())


def test_a_record_of_an_unknown_format_changes_nothing_in_any_store(open_task: Open) -> None:
    task = open_task(window(), keyvalue(), session())
    good, bad = Record(0, 5, b"a" + bytes(12), b"1"), Record(4, 5, b"short", b"1")
    with pytest.raises(Corruption, match="not a key of a session store"):
        task.apply({"win": [good], "ses": [bad]}, at(5, "win", "ses"))
    assert task.cut == CommitRecord()
    assert task.store("win").rows.observed_ms == -1
    assert list(task.store("win").all()) == []
    task.commit(at(0))  # it is not poisoned: nothing was written
    with pytest.raises(UnknownStore, match="no store 'absent'"):
        task.apply({"absent": [good]}, at(1))


def test_a_damaged_record_of_the_task_is_refused(open_task: Open, tmp_path: Path, rocks_shared: RocksShared) -> None:
    open_task(keyvalue()).close()
    for raw, error, told in [
        (b"\x02{}", InvalidRequest, r"format 2, .* reads up to 1: run the newer version"),
        (b"\x00{}", Corruption, "begins with 0"),
        (b"", Corruption, "begins with None"),
        (b"\x01{", Corruption, "not readable"),
        (b"\x01{}", Corruption, "lacks a part"),
    ]:
        engine = RocksEngine(tmp_path / "0_0", shared=rocks_shared)
        engine.write({DEFAULT_FAMILY: {CUT_KEY: raw}})
        engine.close()
        with pytest.raises(error, match=told):
            open_task(keyvalue())


# Expiry


def disk_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.sst"))


def test_expiry_drops_whole_families_and_their_disk_space_at_once(open_task: Open, tmp_path: Path) -> None:
    task = open_task(window(), session())
    for number in range(200):
        noise = "".join(chr(32 + (number * i * i) % 90) for i in range(5_000))
        task.store("win").put(f"k{number}", noise, 10)
        task.store("ses").put(f"k{number}", 5, 10, noise)
    task.commit(at(1))
    task.flush()
    full = disk_bytes(tmp_path / "0_0")
    task.store("win").put("late", "x", 3 * MINUTE_MS - 1)  # segment 0 still holds observed - retention
    task.store("ses").put("late", 0, 3 * MINUTE_MS - 1, "x")
    task.commit(at(2))
    assert {"win@0", "ses@0"} <= task.engine.families()
    task.store("win").put("late", "x", 3 * MINUTE_MS)
    task.store("ses").put("late", 0, 3 * MINUTE_MS, "x")
    task.commit(at(3))
    assert not {"win@0", "ses@0"} & task.engine.families()
    assert disk_bytes(tmp_path / "0_0") < full / 10
    assert task.store("win").rows.counters.segments_expired == 1


def test_rows_that_expire_before_their_commit_are_logged_and_never_written(open_task: Open) -> None:
    task = open_task(window())
    win = task.store("win")
    win.put("old", "x", 0)
    win.put("new", "x", 10 * MINUTE_MS)
    assert [change[0][:3] for change in task.buffer.take_changes()["win"]] == [b"old", b"new"]
    task.commit(at(1))
    assert task.engine.families() == {DEFAULT_FAMILY, f"win@{10 * MINUTE_MS}"}
    assert [key.key for key, _ in win.all()] == ["new"]


def test_ended_versions_past_the_history_leave_the_disk(open_task: Open) -> None:
    task = open_task(versioned())
    for number in range(20):
        task.store("ver").put("a", "x", number * 1_000)
        task.commit(at(1))
    with task.engine.scan("ver") as scan:
        segments = [int.from_bytes(key[:8], "big", signed=True) for key, _ in scan]
    assert segments == [6, 7, 8, 9, -1]  # observed 19 s, history from 13 s, segments of 2 s


def test_an_expired_segment_left_by_a_kill_goes_with_the_next_commit(open_task: Open) -> None:
    task = open_task(window())
    task.store("win").put("a", "x", 10 * MINUTE_MS)
    task.commit(at(1))
    task.engine.create_family("win@0")  # as if the process had died between the write and the drop
    task.close()
    again = open_task(window())
    assert "win@0" in again.engine.families()
    again.commit(at(1))
    assert "win@0" not in again.engine.families()


# The bound of the write buffer


@pytest.mark.parametrize("caching", [True, False])
def test_a_write_beyond_twice_the_bound_is_refused_and_changes_nothing(open_task: Open, caching: bool) -> None:
    task = open_task(keyvalue(caching=caching), window(caching=caching), session(caching=caching), buffer_bytes=1_000)
    kv = task.store("kv")
    kv.put("fill", "v" * 700)
    exact = (2_000 - task.buffer.size_bytes - kv.rows.cost(b"k", b"")) // 2
    before = (task.buffer.size_bytes, task.buffer.take_changes(), list(kv.all()))
    for write in (
        lambda: kv.put("k", "v" * (exact + 1)),
        lambda: kv.put_all([("a", "b"), ("k", "v" * (exact + 1))]),
        lambda: task.store("win").put("k", "v" * exact, 10),
        lambda: task.store("ses").put("k", 0, 10, "v" * exact),
    ):
        with pytest.raises(Backpressure, match="commit"):
            write()
    assert (task.buffer.size_bytes, task.buffer.take_changes(), list(kv.all())) == before
    assert task.store("win").rows.observed_ms == task.store("ses").rows.observed_ms == -1
    kv.put("k", "v" * exact)
    assert task.buffer.size_bytes in (1_999, 2_000)
    assert task.buffer.full
    task.commit(at(1))
    kv.put("k", "v" * (exact + 1))


def test_put_all_sets_all_or_none_also_into_an_empty_buffer(open_task: Open) -> None:
    task = open_task(keyvalue(), buffer_bytes=1_000)
    kv = task.store("kv")
    kv.put_all((f"k{number}", "v" * 400) for number in range(9))  # any single write fits into an empty buffer
    assert len(list(kv.all())) == 9
    with pytest.raises(Backpressure):
        kv.put_all([("a", "b"), ("c", "d")])
    assert kv.get("a") is None


def test_a_key_put_several_times_is_logged_once_with_cache_and_every_time_without(open_task: Open) -> None:
    task = open_task(keyvalue("cached"), keyvalue("uncached", caching=False))
    for number in range(3):
        for name in ("cached", "uncached"):
            task.store(name).put("a", str(number), timestamp=number)
    changes = task.buffer.take_changes()
    assert changes["cached"] == [(b"a", b"2", 2, ())]
    assert changes["uncached"] == [(b"a", str(number).encode(), number, ()) for number in range(3)]


def test_an_unlogged_store_has_rows_and_no_changes(open_task: Open) -> None:
    task = open_task(keyvalue(logging=False))
    task.store("kv").put("a", "1")
    assert task.buffer.take_changes() == {}
    task.commit(at(1))
    assert task.store("kv").get("a") == "1"


# Rows prepared ahead


def prepared_now(task: TaskStores) -> Prepared | None:
    """The preparation of a commit that takes the rows now and is refused."""
    task.take()
    prepared = task.prepare()
    task.buffer.put_back()
    return prepared


def prepared_task(open_task: Open, *specs: StoreSpec) -> TaskStores:
    """A task with enough buffered rows to prepare their write."""
    task = open_task(*specs)
    for number in range(PREPARED_ROWS_MIN):
        task.store(specs[0].name).put(f"{number:04}", f"v{number}", number + 1)
    return task


def test_a_commit_writes_the_rows_that_were_prepared_and_its_own_cut(open_task: Open) -> None:
    task = prepared_task(open_task, keyvalue())
    task.store("kv").put("0001", None, 7)
    task.take()
    prepared = task.prepare()
    assert prepared is not None
    assert prepared.counts == {"kv": PREPARED_ROWS_MIN}
    assert task.committed_view("kv").get("0000") is None, "nothing is written ahead"
    task.commit(at(PREPARED_ROWS_MIN, "kv"), prepared)
    task.close()
    again = open_task(keyvalue())
    assert again.cut.positions == at(PREPARED_ROWS_MIN, "kv").positions
    assert [key for key, _ in again.store("kv").all()] == [
        f"{number:04}" for number in range(PREPARED_ROWS_MIN) if number != 1
    ]


def test_rows_that_came_after_the_cut_was_taken_belong_to_the_next_commit(open_task: Open) -> None:
    task = prepared_task(open_task, keyvalue(), keyvalue("other"))
    task.take()
    prepared = task.prepare()
    task.store("kv").put("late", "1", 1)
    task.store("other").put("late", "2", 1)
    task.commit(at(1, "kv", "other"), prepared)
    views = task.committed_view("kv"), task.committed_view("other")
    assert [view.get("late") for view in views] == [None, None]
    assert views[0].get("0000") == "v0"
    assert (task.store("kv").get("late"), task.store("other").get("late")) == ("1", "2")
    assert {name: list(changes) for name, changes in task.buffer.take_changes().items()} == {
        "kv": [(b"late", b"1", 1, ())],
        "other": [(b"late", b"2", 1, ())],
    }
    task.commit(at(2, "kv", "other"))
    assert [view.get("late") for view in views] == ["1", "2"]


def test_a_preparation_that_is_not_used_leaves_nothing(open_task: Open) -> None:
    task = prepared_task(open_task, keyvalue())
    task.take()
    assert task.prepare() is not None
    task.buffer.put_back()
    task.discard()
    task.store("kv").put("only", "1", 1)
    task.commit(at(1, "kv"))
    assert list(task.committed_view("kv").all()) == [("only", "1")]


def test_few_rows_rows_in_memory_new_families_and_expired_ones_are_not_prepared(open_task: Open) -> None:
    task = open_task(keyvalue(), keyvalue("fast", engine="memory"), window())
    assert task.prepare() is None, "nothing is taken"
    task.store("kv").put("a", "1", 1)
    assert prepared_now(task) is None, "few rows"
    for number in range(PREPARED_ROWS_MIN):
        task.store("fast").put(f"{number}", "1", 1)
    assert prepared_now(task) is None, "a row of a store on disk"
    for number in range(PREPARED_ROWS_MIN):
        task.store("win").put(f"{number}", "1", 0)
    assert prepared_now(task) is None, "the segment has no family yet"
    task.commit(at(1, "kv", "fast", "win"))
    for number in range(PREPARED_ROWS_MIN):
        task.store("win").put(f"{number}", "2", 1)
    assert prepared_now(task) is not None
    task.store("win").put("far", "1", 10 * 24 * 60 * MINUTE_MS)
    for number in range(PREPARED_ROWS_MIN):
        task.store("kv").put(f"{number}", "2", 1)
    assert prepared_now(task) is None, "expired segments go with the commit"
    task.commit(at(2, "kv", "fast", "win"))
    assert list(task.committed_view("win").all())[-1][1] == "1"


@pytest.mark.parametrize("again", [False, True], ids=["new key", "key of the buffer"])
def test_put_beside_a_commit_belongs_to_one_of_both_commits(open_task: Open, again: bool) -> None:
    task = open_task(keyvalue(), window())
    key = "first" if again else "second"
    task.store("kv").put("first", "1", 1)
    task.store("win").put("first", "1", 0, 1)
    for name in ("kv", "win"):
        putting = Thread(target=task.store(name).put, args=(key, "2", *([0] if name == "win" else []), 2))
        with task.buffer.latch:  # as a commit that takes its part
            task.buffer.open = False
            putting.start()
            task.take()
        putting.join(60)
        assert len(task.buffer.rows) == len(task.buffer.take_changes()) == 1
        ((*_, taken),) = (change[:2] for change in task.buffer.taken.logged()[name])  # type: ignore[union-attr]
        assert taken == b"1"
        task.commit(at(1, "kv", "win"))
        assert [change[1:3] for change in task.buffer.take_changes()[name]] == [(b"2", 2)]
        task.commit(at(2, "kv", "win"))
        if name == "kv":
            assert task.committed_view("kv").get(key) == "2"
            task.store("win").put("first", "1", 0, 1)
    assert task.committed_view("win").fetch(key, 0) == "2"
    assert task.buffer.held_bytes == 0


def test_rollback_beside_a_row_of_another_thread_leaves_ranges_whole(open_task: Open) -> None:
    task = open_task(keyvalue())
    task.store("kv").put("a", "1", 1)
    task.savepoint()
    task.store("kv").put("c", "1", 1)
    assert [key for key, _ in task.store("kv").all()] == ["a", "c"]
    # As a put that came before the savepoint began.
    task.buffer.rows["kv"][b"b"] = task.buffer.rows["kv"][b"a"]
    task.rollback()
    assert [key for key, _ in task.store("kv").all()] == ["a", "b"]
