"""The owner of window and session stores removes the records that no live row needs, and no others, by stream time."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

import standfast as sf
from standfast.ops.sidecar.control.session import ServerSession
from standfast.ops.sidecar.worker.worker import TailWorkerSession as TailSession
from standfast.replication.log import TopicPolicy
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.replication.progress import LeaseProgress
from standfast.replication.topics.changelog import TIME_MAX_MS, changelog_policy
from standfast.store.clock import SystemClock
from standfast.store.disk import DiskGuard
from standfast.store.task.commit_record import CommitRecord
from standfast.store.task.state_dir import StateDir
from standfast.stream.session import changelog_heads
from standfast.stream.workers.session import WorkerSession
from support.sessions import DAY_MS, HOUR_MS, START_MS, Bench
from support.waits import until

TEXT = sf.serde.string
MINUTE_MS = 60_000
STORES: list[Any] = [
    sf.WindowStore("win", TEXT, TEXT, window_size_ms=HOUR_MS, retention_ms=DAY_MS),
    sf.SessionStore("ses", TEXT, TEXT, retention_ms=DAY_MS),
    sf.WindowStore("dup", TEXT, TEXT, window_size_ms=HOUR_MS, retention_ms=DAY_MS, retain_duplicates=True),
]
LIVES: dict[str, Any] = {"stores": STORES, "lease_ms": 2 * HOUR_MS}  # two that are driven by turns
KEPT_HOURS = 24 + 24 + 12 + 12 + 12  # retention, slack, and at most one segment and two spans of half a day
CHANGELOGS = {spec.name: TopicPartition(f"app-{spec.name}-changelog", 0) for spec in STORES}


def write_hours(session: sf.Session, first: int, count: int) -> None:
    """One row an hour in each store, and a commit for every six hours of event time."""
    task = session.task(0)
    win, ses, dup = (task.store(name) for name in CHANGELOGS)
    for hour in range(first, first + count):
        at_ms = START_MS // HOUR_MS * HOUR_MS + hour * HOUR_MS
        win.put(f"k{hour % 7}", f"w{hour}", at_ms, at_ms)
        ses.put(f"k{hour % 7}", at_ms, at_ms + MINUTE_MS, f"s{hour}", at_ms)
        dup.put("k", f"d{hour}", at_ms, at_ms)
        if hour % 6 == 5:
            task.commit({("src", 0): hour + 1})


def minute(bench: Bench, *sessions: sf.Session) -> None:
    bench.settle(*sessions)
    bench.clock.advance(MINUTE_MS)
    bench.settle(*sessions)


def contents(session: sf.Session, partition: int = 0) -> dict[str, list[Any]]:
    return {name: list(session.read(name, partition, allow_stale=True).store.all()) for name in CHANGELOGS}


def bounds(bench: Bench) -> dict[str, Bounds]:
    reader = bench.log.reader()
    found = reader.bounds(CHANGELOGS.values())
    reader.close()
    return {name: found[at] for name, at in CHANGELOGS.items()}


def lengths(bench: Bench) -> dict[str, int]:
    return {name: end - begin for name, (begin, end) in bounds(bench).items()}


@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
def test_replay_keeps_the_live_part_of_the_changelogs_and_a_restore_has_every_row(
    bench: Bench, guarantee: str, caplog: pytest.LogCaptureFixture
) -> None:
    owner, standby = bench.active(**LIVES, guarantee=guarantee), bench.session("b", **LIVES)
    standby.assign(standby=[0])
    for day in range(20):
        write_hours(owner, day * 24, 24)
        minute(bench, owner, standby)
    before = contents(owner)
    assert {name: len(rows) for name, rows in before.items()} == {"win": 24, "ses": 24, "dup": 24}
    assert all(24 <= length <= KEPT_HOURS for length in lengths(bench).values())
    assert contents(standby) == before
    assert "state lost" not in caplog.text
    bench.clock.advance(400 * DAY_MS)
    bench.embedded.apply_retention(bench.clock.wall_ms())
    bench.embedded.compact("app-win-changelog", bench.clock.wall_ms())
    assert contents(bench.active("cold", stores=STORES)) == before


def test_rows_live_on_while_stream_time_stands_still(bench: Bench) -> None:
    owner = bench.active(stores=STORES)
    write_hours(owner, 0, 24)
    before = contents(owner)
    for _ in range(5):
        bench.clock.advance(DAY_MS)
        bench.embedded.care(bench.clock.wall_ms())
        minute(bench, owner)
    assert lengths(bench) == {"win": 24, "ses": 24, "dup": 24}
    assert contents(bench.active("cold", stores=STORES)) == before


def test_nothing_goes_within_a_day_behind_the_retention(bench: Bench) -> None:
    owner = bench.active(stores=STORES)
    write_hours(owner, 0, 48)
    minute(bench, owner)
    assert {begin for begin, _ in bounds(bench).values()} == {0}


def test_stream_time_that_no_commit_acknowledged_removes_nothing(bench: Bench) -> None:
    owner = bench.active(stores=STORES)
    write_hours(owner, 0, 24)
    far_ms = START_MS + 100 * DAY_MS
    owner.task(0).store("win").put("k", "far", far_ms, far_ms)
    minute(bench, owner)
    assert bounds(bench)["win"].begin == 0
    owner.task(0).commit()
    minute(bench, owner)
    assert bounds(bench)["win"] == Bounds(24, 25)  # the last record stays


def test_records_that_a_standby_has_not_read_stay_for_ten_minutes(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    owner, standby = bench.active(**LIVES), bench.session("b", **LIVES)
    write_hours(owner, 0, 24)
    standby.assign(standby=[0])
    minute(bench, standby)
    write_hours(owner, 24, 240)
    for _ in range(9):
        minute(bench, owner)  # the standby lives and does not move
        standby._heads.poll()
    assert bounds(bench)["win"].begin == 24
    minute(bench, owner)
    minute(bench, owner)
    assert bounds(bench)["win"].begin > 24 + 100
    minute(bench, owner, standby)  # it starts over, from the begin
    assert contents(standby) == contents(owner)
    assert "state lost (truncated)" in caplog.text


def test_standby_that_has_read_everything_is_waited_for_after_an_hour_without_records(bench: Bench) -> None:
    owner, standby = bench.active(**LIVES), bench.session("b", **LIVES)
    write_hours(owner, 0, 24)
    standby.assign(standby=[0])
    for _ in range(60):
        minute(bench, owner)
        bench.settle(standby)
    write_hours(owner, 24, 240)
    minute(bench, owner)
    assert bounds(bench)["win"].begin == 24


def test_owner_that_was_fenced_removes_nothing(bench: Bench) -> None:
    old = bench.active(stores=STORES)
    write_hours(old, 0, 240)
    new = bench.active("b", stores=STORES, take_over=False)
    bench.clock.advance(MINUTE_MS)
    old._heads.poll()
    assert {begin for begin, _ in bounds(bench).values()} == {0}
    write_hours(new, 240, 96)
    minute(bench, new)
    assert bounds(bench)["win"].begin > 0


def test_owner_of_a_topic_that_was_made_again_removes_nothing(bench: Bench) -> None:
    owner = bench.active(stores=STORES)
    write_hours(owner, 0, 240)
    bench.log.admin.delete_topic("app-win-changelog")
    made = bench.log.admin.create_topic("app-win-changelog", 2, changelog_policy(STORES[0]))
    made = bench.log.admin.change_topic(made.name, {"retention.ms": str(TIME_MAX_MS)})
    producer = bench.log.producer()
    producer.append({CHANGELOGS["win"]: [sf.Outgoing(b"k", b"v", START_MS)] * 300})
    producer.close()
    bench.clock.advance(MINUTE_MS)
    owner._heads.poll()
    assert bounds(bench)["win"] == Bounds(0, 300)
    assert bounds(bench)["ses"].begin > 0


def test_owner_that_was_stopped_after_its_checks_removes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = bench.active(stores=STORES)
    write_hours(owner, 0, 240)
    describe = type(bench.log.admin).describe_topic

    def slow(admin: Any, name: str) -> Any:
        bench.clock.advance(changelog_heads.CHECKED_MS + 1)
        return describe(admin, name)

    bench.clock.advance(MINUTE_MS)
    monkeypatch.setattr(type(bench.log.admin), "describe_topic", slow)
    owner._heads.poll()
    assert {begin for begin, _ in bounds(bench).values()} == {0}


def test_changelog_of_an_earlier_version_loses_no_head_before_its_rows_are_dead(bench: Bench) -> None:
    for spec in STORES:
        bench.log.admin.create_topic(spec.changelog_of("app"), 2, changelog_policy(spec))
    owner = bench.active(stores=STORES)
    write_hours(owner, 0, 240)
    minute(bench, owner)
    assert {begin for begin, _ in bounds(bench).values()} == {0}  # the log's clock decides, as in that version
    stores = owner.task(0).stores
    stores._record(CommitRecord.decode(stores.cut.encode().replace(b'"heads"', b'"other"'), ""), stores._stored)
    owner.close()
    for spec in STORES:
        bench.log.admin.change_topic(spec.changelog_of("app"), {"retention.ms": str(TIME_MAX_MS)})
    owner = bench.active(stores=STORES)
    write_hours(owner, 240, 48)
    minute(bench, owner)
    assert {begin for begin, _ in bounds(bench).values()} == {0}
    write_hours(owner, 288, 72)
    minute(bench, owner)
    assert {begin for begin, _ in bounds(bench).values()} == {288}
    assert contents(bench.active("cold", stores=STORES)) == contents(owner)


def test_restored_owner_counts_from_where_its_restore_began(bench: Bench) -> None:
    first = bench.active(stores=STORES)
    write_hours(first, 0, 120)
    first.close()
    owner = bench.active("b", stores=STORES)
    before = {name: heads.first for name, heads in owner.task(0).stores.cut.heads.items()}
    assert before == dict.fromkeys(CHANGELOGS, 0)
    write_hours(owner, 120, 24 * 10)
    minute(bench, owner)
    assert all(120 < begin <= 360 - 24 for begin, _ in bounds(bench).values())
    assert contents(bench.active("cold", stores=STORES)) == contents(owner)


def test_new_changelogs_are_kept_for_ever_and_in_small_segments(bench: Bench) -> None:
    own = sf.WindowStore(
        "own", TEXT, TEXT, window_size_ms=HOUR_MS, retention_ms=DAY_MS, changelog={"retention.ms": str(9 * DAY_MS)}
    )
    bench.active(stores=[*STORES, own, sf.KeyValueStore("kv", TEXT, TEXT)])
    policies = {info.name: info.policy for info in bench.log.admin.topics()}
    for name in CHANGELOGS:
        assert policies[f"app-{name}-changelog"].retention_ms == TIME_MAX_MS
        assert policies[f"app-{name}-changelog"].extra["segment.bytes"] == str(64 << 20)
    assert policies["app-own-changelog"].retention_ms == 9 * DAY_MS
    assert policies["app-kv-changelog"].retention_ms == TopicPolicy().retention_ms


def test_snapshot_whose_later_records_are_gone_is_passed_over_for_the_log(bench: Bench) -> None:
    policy = sf.SnapshotPolicy(to=str(bench.root / "snaps"))
    owner = bench.active(stores=STORES, snapshots=policy)
    write_hours(owner, 0, 24)
    owner.snapshot(0)
    write_hours(owner, 24, 240)
    minute(bench, owner)
    assert bounds(bench)["win"].begin > 24
    cold = bench.active("cold", stores=STORES, snapshots=policy, take_over=False)
    assert contents(cold) == contents(owner)
    assert not cold.counters.snapshots.restores.get("whole")
    owner.close()
    cold.snapshot(0)
    write_hours(cold, 264, 24)
    again = bench.active("again", stores=STORES, snapshots=policy, take_over=False)
    write_hours(again, 288, 240)  # on from the heads of the snapshot
    minute(bench, again)
    assert all(288 < begin <= 528 - 48 for begin, _ in bounds(bench).values())
    assert contents(bench.active("last", stores=STORES, take_over=False)) == contents(again)


def test_every_kind_of_session_that_owns_tasks_removes_records_in_a_thread(bench: Bench) -> None:
    """Those of a program, of its worker processes, of a sidecar and its worker; not a copy of another application's."""
    with closing(StateDir(bench.root / "state", "app")) as state:
        kinds: list[tuple[type[sf.Session], dict[str, Any]]] = [
            (sf.Session, {"state_dir": bench.root / "own"}),
            (WorkerSession, {"state_dir": state.lend("w0"), "progress": LeaseProgress()}),
            (ServerSession, {"state_dir": state.lend("m"), "disk": DiskGuard({"state directory": bench.root})}),
            (TailSession, {"state_dir": state.lend("m-tail0")}),
        ]
        for kind, given in kinds:
            with kind("app", log=bench.address, stores=STORES, partitions=1, background=False, **given) as session:
                assert changelog_heads.THREAD in session._repeats()
        with sf.Replica("app", log=bench.address, state_dir=bench.root / "copy", stores=STORES) as replica:
            assert changelog_heads.THREAD not in replica._repeats()
        plain: dict[str, Any] = {"stores": [sf.KeyValueStore("kv", TEXT, TEXT)], "state_dir": bench.root / "plain"}
        with sf.Session("other", log=bench.address, partitions=1, background=False, **plain) as session:
            assert changelog_heads.THREAD not in session._repeats()


@pytest.mark.slow
def test_thread_of_a_session_removes_records(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelog_heads, "LOOK_MS", 10)
    monkeypatch.setattr(changelog_heads, "INTERVAL_MS", 0)
    owner = bench.active(stores=STORES, background=True, clock=SystemClock())
    write_hours(owner, 0, 240)
    until(lambda: bounds(bench)["dup"].begin > 0, "the thread has removed records")
    before = contents(owner)
    owner.close()
    assert contents(bench.active("cold", stores=STORES)) == before
