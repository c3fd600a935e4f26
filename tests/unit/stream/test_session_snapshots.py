"""Sessions with a policy of snapshots: made on a schedule, begun with, and passed over where they do not fit."""

from __future__ import annotations

import logging
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.restore.snapshot.catalogue import listed, names
from standfast.restore.snapshot.closed import create
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.storage import Storage
from standfast.store.clock import SystemClock
from standfast.store.rocks.engine import RocksEngine
from standfast.store.task.state_dir import StateDir
from standfast.stream.snapshot_counts import DownloadStatistics
from standfast.stream.snapshots import beginning
from standfast.stream.snapshots.keeper import SnapshotKeeper
from support.sessions import HOUR_MS, Bench, operate

TEXT = sf.serde.string
KV = [sf.KeyValueStore("kv", TEXT, TEXT)]


@pytest.fixture
def to(tmp_path: Path) -> str:
    return str(tmp_path / "snaps")


def policy(to: str, **given: Any) -> sf.SnapshotPolicy:
    return sf.SnapshotPolicy(to=to, **given)


def keeper_of(session: sf.Session) -> SnapshotKeeper:
    assert session._snapshots is not None
    return session._snapshots


def rows(session: sf.Session) -> dict[str, str]:
    with session.task(0).store("kv").all() as found:
        return {key: value for key, value in found}  # noqa: C416 - an iterator of pairs with a close


def put(session: sf.Session, *keys: str, value: str = "1") -> None:
    task = session.task(0)
    for key in keys:
        task.store("kv").put(key, value)
    task.commit()


def restored(session: sf.Session) -> dict[str, int]:
    return dict(session.counters.snapshots.restores)


def test_a_task_without_local_state_begins_with_its_newest_snapshot_and_reads_the_rest(bench: Bench, to: str) -> None:
    first = bench.active(stores=KV, snapshots=policy(to))
    put(first, *(f"k{number}" for number in range(50)))
    assert first.snapshot(0) == "0_0/1-50"
    put(first, "k1", "new", value="2")
    first.close()
    second = bench.active("b", stores=KV, snapshots=policy(to))
    assert rows(second) == {**{f"k{number}": "1" for number in range(50)}, "k1": "2", "new": "2"}
    assert restored(second) == {"restored": 1, "none": 0, "failed": 0, "store": 0}
    assert dict(second.counters.restored_records) == {("kv", 0, "resume"): 2}


def test_every_kind_of_store_comes_back_from_a_snapshot_as_from_the_log(bench: Bench, to: str) -> None:
    rng = random.Random(4711)
    first = bench.active(snapshots=policy(to))
    operate(first.task(0), rng, 300)
    first.snapshot(0)
    operate(first.task(0), rng, 50)
    first.close()
    with_snapshot = bench.active("b", snapshots=policy(to))
    assert restored(with_snapshot)["restored"] == 1
    found = {name: list(with_snapshot.task(0).store(name).all()) for name in ("kv", "win", "ses")}
    times = with_snapshot.task(0).stores.cut.stores
    with_snapshot.close()
    from_log = bench.active("c")
    assert {name: list(from_log.task(0).store(name).all()) for name in ("kv", "win", "ses")} == found
    assert from_log.task(0).stores.cut.stores == times


def test_good_local_state_is_not_replaced_by_a_snapshot(bench: Bench, to: str) -> None:
    first = bench.active(stores=KV, snapshots=policy(to))
    put(first, "a")
    first.snapshot(0)
    put(first, "b")
    first.close()
    again = bench.active(stores=KV, snapshots=policy(to))
    assert rows(again) == {"a": "1", "b": "1"}
    assert restored(again) == {"restored": 0, "none": 0, "failed": 0, "store": 0}


def test_a_lost_directory_begins_with_a_snapshot(bench: Bench, to: str, tmp_path: Path) -> None:
    first = bench.active(stores=KV, snapshots=policy(to))
    put(first, "a", "b")
    first.snapshot(0)
    first.close()
    (tmp_path / "a/app/0_0/CURRENT").unlink()
    again = bench.active(stores=KV, snapshots=policy(to))
    assert rows(again) == {"a": "1", "b": "1"}
    assert restored(again)["restored"] == 1


def put_in_files(session: sf.Session, count: int) -> None:
    """Leave so many files of level 0, as an instance has them while its compaction is behind."""
    engine = session.task(0).stores.engine
    engine.restoring(True)
    for number in range(count):
        put(session, "same", f"k{number}", value=str(number))
        engine.flush()


def level0(session: sf.Session) -> tuple[int, int]:
    """Files of level 0, and whether a compaction is due."""
    (task,) = session.all_tasks().values()
    properties = task.stores.engine.statistics("kv").properties
    return properties["num-files-at-level0"], properties["compaction-pending"]


def test_a_standby_that_begins_with_a_snapshot_compacts_as_any_other(bench: Bench, to: str) -> None:
    first = bench.active(stores=KV, snapshots=policy(to))
    put_in_files(first, 9)
    first.snapshot(0)
    other = bench.session("b", stores=KV, snapshots=policy(to))
    other.assign(standby=[0])
    bench.settle(first, other)
    assert restored(other)["restored"] == 1
    (standby,) = other.all_tasks().values()
    engine = standby.stores.engine
    assert isinstance(engine, RocksEngine)
    assert engine.settle(30)
    assert level0(other) == (0, 0)


def test_a_snapshot_of_a_stopped_task_has_its_rows_in_files_and_leaves_the_directory_as_it_is(
    bench: Bench, to: str, tmp_path: Path
) -> None:
    first = bench.active(stores=KV, snapshots=policy(to, restore=False))
    put_in_files(first, 9)
    put(first, "in the log")
    wanted = rows(first)
    directory = tmp_path / "a/app/0_0"
    shutil.copytree(directory, tmp_path / "killed")  # a clean stop would bring the rows to files
    first.close()
    shutil.rmtree(directory)
    shutil.copytree(tmp_path / "killed", directory)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert [path for path in directory.glob("*.log") if path.stat().st_size]
    storage = open_storage(to, "app")
    with closing(StateDir(tmp_path / "a", "app")) as state:
        made = create(storage, state, "0_0", clock=SystemClock())
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    assert [file.bytes for file in made.snapshot.files if file.name.endswith(".log")] == [0]
    shutil.rmtree(directory)
    again = bench.active(stores=KV, snapshots=policy(to))
    assert restored(again)["restored"] == 1
    assert rows(again) == wanted
    assert level0(again) == (0, 0)


def test_a_standby_begins_with_a_snapshot(bench: Bench, to: str) -> None:
    first = bench.active(stores=KV, snapshots=policy(to))
    put(first, "a", "b")
    first.snapshot(0)
    other = bench.session("b", stores=KV, snapshots=policy(to))
    other.assign(standby=[0])
    bench.settle(first, other)
    assert restored(other)["restored"] == 1
    assert other.read("kv", 0, allow_stale=True).store.get("b") == "1"


def test_the_newer_epoch_stands_whatever_its_position(bench: Bench, to: str) -> None:
    old = bench.active(stores=KV, snapshots=policy(to), take_over=False)
    put(old, "a", "b", "c")
    new = bench.active("b", stores=KV, snapshots=policy(to), take_over=False)
    put(new, "d")
    made = new.snapshot(0)
    # The fenced owner does not know of the new one yet, and stores its own rows.
    late = keeper_of(old).create(old.tasks()[0].id, old.tasks()[0])
    storage = open_storage(to, "app")
    assert [str(kept.snapshot.name) for kept in listed(storage).whole] == [made, late]
    new.close()
    third = bench.active("c", stores=KV, snapshots=policy(to), take_over=False)
    assert sorted(rows(third)) == ["a", "b", "c", "d"]
    assert sum(third.counters.restored_records.values()) == 0


def test_a_snapshot_of_a_recreated_topic_is_not_used(bench: Bench, to: str) -> None:
    first = bench.active(stores=KV, snapshots=policy(to))
    put(first, "a", "b")
    first.snapshot(0)
    first.close()
    bench.log.admin.delete_topic("app-kv-changelog")
    second = bench.active("b", stores=KV)
    put(second, "c")
    second.close()
    third = bench.active("c", stores=KV, snapshots=policy(to))
    assert rows(third) == {"c": "1"}
    assert restored(third) == {"restored": 0, "none": 1, "failed": 0, "store": 0}


def test_a_snapshot_older_than_the_deletes_that_compaction_keeps_is_not_used(bench: Bench, to: str) -> None:
    first = bench.active(stores=KV, snapshots=policy(to))
    put(first, "a")
    first.snapshot(0)
    bench.clock.advance(8 * 24 * HOUR_MS)  # changelogs keep deletes for seven days
    put(first, "b")
    first.close()
    second = bench.active("b", stores=KV, snapshots=policy(to))
    assert rows(second) == {"a": "1", "b": "1"}
    assert restored(second)["none"] == 1


def test_rows_in_memory_are_not_in_a_snapshot_and_come_from_the_log(bench: Bench, to: str) -> None:
    stores = [*KV, sf.KeyValueStore("mem", TEXT, TEXT, engine="memory")]
    first = bench.active(stores=stores, snapshots=policy(to))
    first.task(0).store("mem").put("m", "1")
    put(first, "a")
    first.snapshot(0)
    first.close()
    assert listed(open_storage(to, "app")).whole[0].snapshot.memory_stores == ("mem",)
    second = bench.active("b", stores=stores, snapshots=policy(to))
    assert (second.task(0).store("mem").get("m"), rows(second)) == ("1", {"a": "1"})
    assert restored(second)["restored"] == 1


def test_a_task_in_memory_alone_has_no_snapshot(bench: Bench, to: str) -> None:
    session = bench.active(
        stores=[sf.KeyValueStore("mem", TEXT, TEXT, engine="memory")], snapshots=policy(to, every_ms=1)
    )
    with pytest.raises(sf.InvalidRequest, match="no rows on disk"):
        session.snapshot(0)
    keeper_of(session).round()
    assert not session.counters.snapshots.at_ms


def test_a_task_without_a_commit_is_not_due(bench: Bench, to: str) -> None:
    session = bench.active(stores=KV, snapshots=policy(to, every_ms=1))
    bench.clock.advance(HOUR_MS)
    keeper_of(session).round()
    assert not any(session.counters.snapshots.made.values())


def test_snapshots_follow_the_interval_and_the_number_of_records(bench: Bench, to: str) -> None:
    session = bench.active(stores=KV, snapshots=policy(to, every_ms=HOUR_MS, every_records=10))
    keeper, made = keeper_of(session), session.counters.snapshots.made
    put(session, "a")
    keeper.round()
    assert made["made"] == 0
    bench.clock.advance(HOUR_MS)
    keeper.round()
    keeper.round()
    assert made["made"] == 1
    put(session, *(f"k{number}" for number in range(10)))
    keeper.round()
    assert made["made"] == 2
    bench.clock.advance(HOUR_MS)
    keeper.round()
    assert (made["made"], made["unchanged"]) == (2, 1)


def test_old_snapshots_go_as_the_policy_says(bench: Bench, to: str) -> None:
    session = bench.active(stores=KV, snapshots=policy(to, every_records=1, keep=2))
    for number in range(5):
        put(session, f"k{number}")
        bench.clock.advance(HOUR_MS)
        keeper_of(session).round()
    assert [name.position for name in names(open_storage(to, "app"))] == [4, 5]


def test_a_storage_that_is_away_disturbs_nothing_and_is_tried_again(
    bench: Bench, to: str, caplog: pytest.LogCaptureFixture
) -> None:
    session = bench.active(stores=KV, snapshots=policy(to, every_records=1))
    keeper_of(session).round()
    put(session, "a")
    shutil.rmtree(to)
    Path(to).write_text("no folder any more")
    with caplog.at_level(logging.WARNING, "standfast"):
        keeper_of(session).round()
    assert "no snapshot of task 0_0" in caplog.text
    put(session, "b")
    keeper_of(session).round()  # not yet again: the storage was away a moment ago
    assert session.counters.snapshots.made["failed"] == 1
    Path(to).unlink()
    (Path(to) / "app").mkdir(parents=True)
    bench.clock.advance(60_000)
    keeper_of(session).round()
    assert (session.counters.snapshots.made["made"], rows(session)) == (1, {"a": "1", "b": "1"})


def test_a_storage_that_is_away_at_an_opening_leaves_the_task_to_its_changelog(
    bench: Bench, to: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bench.active(stores=KV)
    put(first, "a")
    first.close()

    def away(self: Storage, prefix: str) -> list[Any]:
        raise sf.Unavailable("the storage does not answer")

    monkeypatch.setattr(Storage, "list", away)
    second = bench.active("b", stores=KV, snapshots=policy(to))
    assert rows(second) == {"a": "1"}
    assert restored(second) == {"restored": 0, "none": 0, "failed": 1, "store": 0}
    assert "restored from its changelogs alone" in caplog.text


def test_a_storage_that_took_its_time_to_fail_is_not_waited_for_by_each_task(
    bench: Bench, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bench.active(partitions=(0, 1), stores=KV)
    for task in (0, 1):
        first.task(task).store("kv").put("a", f"{task}")
        first.task(task).commit()
    first.close()
    asked: list[str] = []

    def away(self: Storage, prefix: str) -> list[Any]:
        asked.append(prefix)
        bench.clock.advance(20_000)
        raise sf.Unavailable("the storage does not answer")

    monkeypatch.setattr(Storage, "list", away)
    second = bench.active("b", partitions=(0, 1), stores=KV, snapshots=policy(to))
    assert [second.task(task).store("kv").get("a") for task in (0, 1)] == ["0", "1"]
    assert (restored(second)["failed"], asked) == (2, ["tasks/0_0"])
    second.close()
    bench.clock.advance(30_000)
    bench.active("c", partitions=(0,), stores=KV, snapshots=policy(to))
    assert len(asked) == 2


def endless(began: threading.Event) -> Callable[[Storage, str, int], Iterator[bytes]]:
    """Parts of a file that never ends by itself."""

    def parts(self: Storage, key: str, size: int) -> Iterator[bytes]:
        began.set()
        for _ in range(500_000):
            yield b""
        raise AssertionError("the download went on")

    return parts


def test_a_session_that_closes_ends_its_download_and_the_next_one_begins_again(
    bench: Bench, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bench.active(stores=KV, snapshots=policy(to))
    put(first, "a")
    first.snapshot(0)
    first.close()
    second, began, errors = bench.session("b", stores=KV, snapshots=policy(to)), threading.Event(), []

    def assign() -> None:
        try:
            second.assign(active=[0])
        except sf.Unavailable as error:
            errors.append(str(error))

    opening = threading.Thread(target=assign)
    with monkeypatch.context() as patched:
        patched.setattr(Storage, "read_parts", endless(began))
        opening.start()
        assert began.wait(10)
        second.close()  # waits for the lock that the opening has
        opening.join()
    assert ["the session closes" in error for error in errors] == [True]
    assert list((bench.root / "b/app/.copying").iterdir()) == []
    third = bench.active("b", stores=KV, snapshots=policy(to))
    assert (rows(third), restored(third)["restored"]) == ({"a": "1"}, 1)


def test_an_interrupt_ends_the_download_of_an_opening(bench: Bench, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bench.active(stores=KV, snapshots=policy(to))
    put(first, "a")
    first.snapshot(0)
    first.close()
    second, began = bench.session("b", stores=KV, snapshots=policy(to)), threading.Event()

    def interrupted(running: list[Any], timeout: float) -> Any:
        assert began.wait(10)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "read_parts", endless(began))
        patched.setattr(beginning, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            second.assign(active=[0])
    second.assign(active=[0])  # the interrupt was of that call alone
    second.wait_ready(30)
    assert (rows(second), restored(second)["restored"]) == ({"a": "1"}, 1)


def test_a_session_without_a_policy_stores_no_snapshot(bench: Bench) -> None:
    with pytest.raises(sf.InvalidRequest, match="SnapshotPolicy"):
        bench.active(stores=KV).snapshot(0)


def test_a_standby_gives_no_snapshot(bench: Bench, to: str) -> None:
    session = bench.session(stores=KV, snapshots=policy(to))
    session.assign(standby=[0])
    with pytest.raises(sf.NotReady, match="standby"):
        session.snapshot(0)


def test_all_problems_of_a_policy_are_said_at_once(bench: Bench) -> None:
    with pytest.raises(sf.BadConfig) as refused:
        bench.session(snapshots=policy("http://host/x", every_ms=0, keep=0, grace_ms=5))
    assert len(refused.value.problems) == 4
    with pytest.raises(sf.BadConfig, match=r"must be None or standfast\.SnapshotPolicy"):
        bench.session(snapshots="s3://bucket")


def test_no_copy_stays_in_the_state_directory(bench: Bench, to: str, tmp_path: Path) -> None:
    session = bench.active(stores=KV, snapshots=policy(to))
    put(session, "a")
    session.snapshot(0)
    assert list((tmp_path / "a/app/.copying").iterdir()) == []


def test_the_storage_is_listed_for_the_tasks_that_run_here(bench: Bench, to: str) -> None:
    session = bench.active(stores=KV, snapshots=policy(to))
    put(session, "a")
    session.snapshot(0)
    other = bench.active("b", (1,), stores=KV, snapshots=policy(to))
    other.task(1).store("kv").put("z", "1")
    other.task(1).commit()
    other.snapshot(1)
    keeper_of(session).round()
    counts = session.counters.snapshots
    (one,) = counts.stored
    kept = listed(open_storage(to, "app"), "0_0").whole[0].snapshot
    assert (one.snapshot, one.epoch, one.position, one.bytes, one.files) == (
        "0_0/1-1",
        1,
        1,
        kept.bytes,
        len(kept.files),
    )
    assert (counts.storage, counts.listed_ms) == (f"{to}/app", bench.clock.wall_ms())


def test_a_listing_reads_each_manifest_once_and_forgets_removed_ones(
    bench: Bench, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = bench.active(stores=KV, snapshots=policy(to))
    for key in ("a", "b"):
        put(session, key)
        session.snapshot(0)
    keeper_of(session).round()
    assert [one.snapshot for one in session.counters.snapshots.stored] == ["0_0/1-2", "0_0/1-1"]
    read = []
    plain = Storage.read
    monkeypatch.setattr(Storage, "read", lambda self, key: (read.append(key), plain(self, key))[1])
    open_storage(to, "app").delete(names(open_storage(to, "app"))[0].key)
    keeper_of(session).round()
    assert len(session.counters.snapshots.stored) == 2  # not due
    bench.clock.advance(HOUR_MS)
    keeper_of(session).round()
    assert ([one.snapshot for one in session.counters.snapshots.stored], read) == (["0_0/1-2"], [])


def test_the_error_of_the_last_attempt_is_shown_until_one_succeeds(bench: Bench, to: str) -> None:
    session = bench.active(stores=KV, snapshots=policy(to, every_records=1))
    keeper, errors = keeper_of(session), session.counters.snapshots.errors
    keeper.round()
    put(session, "a")
    shutil.rmtree(to)
    Path(to).write_text("no folder any more")
    keeper.round()
    assert list(errors) == ["0_0"]
    assert errors["0_0"][1] == bench.clock.wall_ms()
    bench.clock.advance(HOUR_MS)
    keeper.round()
    assert sorted(errors) == ["0_0", "listing"]
    Path(to).unlink()
    (Path(to) / "app").mkdir(parents=True)
    bench.clock.advance(HOUR_MS)
    keeper.round()
    assert errors == {}


def test_a_download_is_seen_while_it_runs_though_the_session_is_locked(
    bench: Bench, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bench.active(stores=KV, snapshots=policy(to))
    put(first, *(f"k{number}" for number in range(50)))
    first.snapshot(0)
    first.close()
    second = bench.session("b", stores=KV, snapshots=policy(to), background=True, clock=SystemClock())
    second.statistics()
    seen: list[DownloadStatistics] = []
    plain = Storage.download

    def looked_at(self: Storage, *arguments: Any) -> None:
        plain(self, *arguments)
        if not seen:  # from a thread of the download: the one that assigns has the session's lock
            seen.extend(second.statistics().downloads)

    monkeypatch.setattr(Storage, "download", looked_at)
    second.assign(active=[0])
    kept = listed(open_storage(to, "app")).whole[0].snapshot
    assert (seen[0].task, seen[0].snapshot, seen[0].bytes) == ("0_0", str(kept.name), kept.bytes)
    assert 0 < seen[0].done_bytes <= kept.bytes
    assert second.statistics().downloads == ()
    assert second.counters.snapshots.downloaded_bytes == kept.bytes


@pytest.mark.slow
def test_a_stopped_task_on_a_full_disk_is_stored_with_its_write_ahead_log(
    bench: Bench, to: str, tmp_path: Path, small_disk: Callable[[int], Path]
) -> None:
    disk, chance = small_disk(8), random.Random(1)
    first = bench.active(stores=KV)
    put(first, *(f"k{number}" for number in range(400)), value=chance.randbytes(4_000).hex())
    wanted = rows(first)
    shutil.copytree(tmp_path / "a/app/0_0", disk / "app/0_0")  # as it is after a kill
    first.close()
    storage = open_storage(to, "app")
    with closing(StateDir(disk, "app")) as state:
        made = create(storage, state, "0_0", clock=SystemClock())
        assert not state.copying_path("0_0").exists()
    assert max(file.bytes for file in made.snapshot.files if file.name.endswith(".log")) > 400 * 8_000
    again = bench.active("b", stores=KV, snapshots=policy(to))
    assert restored(again)["restored"] == 1
    assert rows(again) == wanted


def test_a_storage_that_fills_up_leaves_the_instance_running(bench: Bench, small_disk: Callable[[int], Path]) -> None:
    to = small_disk(1)
    session = bench.active(stores=KV, snapshots=policy(str(to), every_records=1))
    keeper, made = keeper_of(session), session.counters.snapshots.made
    keeper.round()
    chance = random.Random(1)
    for number in range(400):
        session.task(0).store("kv").put(f"k{number}", chance.randbytes(4_000).hex())
    session.task(0).commit()
    keeper.round()
    assert made["failed"] == 1
    assert names(open_storage(str(to), "app")) == []
    put(session, "after")
    assert session.task(0).store("kv").get("after") == "1"
