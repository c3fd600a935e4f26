"""The load that snapshots put on a storage and a network: spread over tasks and time, and limited in bandwidth.

Also two applications of one name that write to one address, as a test system and a real one do by mistake.
"""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

import standfast as sf
from standfast.restore.snapshot.catalogue import listed
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.planning import Retention
from standfast.restore.snapshot.prune import prune
from standfast.store.clock import ManualClock, SystemClock
from standfast.stream.snapshots.keeper import SnapshotKeeper
from support.sessions import HOUR_MS, Bench

TEXT = sf.serde.string
KV = [sf.KeyValueStore("kv", TEXT, TEXT)]
TASKS = 8


@pytest.fixture
def to(tmp_path: Path) -> str:
    return str(tmp_path / "snaps")


def keeper_of(session: sf.Session) -> SnapshotKeeper:
    assert session._snapshots is not None
    return session._snapshots


def many(bench: Bench, policy: sf.SnapshotPolicy) -> sf.Session:
    """A session that runs all tasks."""
    session = bench.session(stores=KV, partitions=TASKS, snapshots=policy)
    session.assign(active=range(TASKS))
    session.wait_ready(30)
    return session


def put(session: sf.Session, partition: int, *keys: str, value: str = "1") -> None:
    for key in keys:
        session.task(partition).store("kv").put(key, value)
    session.task(partition).commit()


def rows(session: sf.Session) -> dict[str, str]:
    with session.task(0).store("kv").all() as found:
        return dict(found)


class Waits:
    """Stands in for the event that ends waits: it moves the clock instead of sleeping."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock

    def is_set(self) -> bool:
        return False

    def set(self) -> None:
        """A close ends no wait, since there is none."""

    def wait(self, timeout: float) -> bool:
        self.clock.advance(round(timeout * 1_000))
        return False


def test_uploads_send_no_more_than_the_limit_over_all_tasks(
    bench: Bench, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 50_000
    policy = sf.SnapshotPolicy(to=to, bytes_per_s=limit)
    session = bench.active(partitions=(0, 1), stores=KV, snapshots=policy)
    chance = random.Random(7)
    for partition in (0, 1):
        for number in range(20):
            put(session, partition, f"k{number}", value=chance.randbytes(10_000).hex())
    monkeypatch.setattr(keeper_of(session), "_stop", Waits(bench.clock))
    before_ms = bench.clock.monotonic_ms()
    for partition in (0, 1):
        session.snapshot(partition)
    sent = session.counters.snapshots.uploaded_bytes
    largest = max(one.bytes for one in open_storage(to, "app").list("files"))
    assert sent > 100_000
    # The last piece goes once all before it are paid for.
    assert bench.clock.monotonic_ms() - before_ms >= (sent - largest) * 1_000 // limit - 10


def test_an_upload_that_its_limit_keeps_from_ending_in_time_names_both_settings_and_goes_on_later(
    bench: Bench, to: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = sf.SnapshotPolicy(to=to, every_records=1, bytes_per_s=100, grace_ms=2_000)
    session = bench.active(stores=KV, snapshots=policy)
    keeper, made = keeper_of(session), session.counters.snapshots.made
    monkeypatch.setattr(keeper, "_stop", Waits(bench.clock))
    keeper.round()
    put(session, 0, "a")
    keeper.round()
    assert (made["failed"], made["made"]) == (1, 0)
    assert "grace_ms" in caplog.text and "bytes_per_s" in caplog.text
    storage = open_storage(to, "app")
    assert listed(storage).whole == () and listed(storage).broken == {}
    bench.clock.advance(60_000)
    keeper.round()  # the files of the first attempt are there
    assert made["made"] == 1
    assert len(listed(storage).whole) == 1


def test_without_a_limit_no_upload_waits(bench: Bench, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = bench.active(stores=KV, snapshots=sf.SnapshotPolicy(to=to))
    put(session, 0, "a")
    monkeypatch.setattr(keeper_of(session), "_stop", Waits(bench.clock))
    before_ms = bench.clock.monotonic_ms()
    session.snapshot(0)
    assert bench.clock.monotonic_ms() == before_ms


def test_first_snapshots_of_many_tasks_are_spread_over_the_interval(bench: Bench, to: str) -> None:
    policy = sf.SnapshotPolicy(to=to, every_ms=HOUR_MS)
    session = many(bench, policy)
    for partition in range(TASKS):
        put(session, partition, "a")
    made = session.counters.snapshots.made
    seen = [made["made"]]
    for _ in range(12):
        bench.clock.advance(HOUR_MS // 12)
        keeper_of(session).round()
        seen.append(made["made"])
    first = [later - earlier for earlier, later in pairwise(seen)]
    assert sum(first) == TASKS and max(first) < TASKS // 2, first


def test_first_snapshots_of_many_tasks_are_spread_over_the_number_of_records(bench: Bench, to: str) -> None:
    policy = sf.SnapshotPolicy(to=to, every_records=120)
    session = many(bench, policy)
    for partition in range(TASKS):
        put(session, partition, "a")
    keeper_of(session).round()
    made = session.counters.snapshots.made
    seen = [made["made"]]
    for turn in range(12):
        for partition in range(TASKS):
            put(session, partition, *(f"{turn}-{number}" for number in range(10)))
        keeper_of(session).round()
        seen.append(made["made"])
    first = [later - earlier for earlier, later in pairwise(seen)]
    assert sum(first) >= TASKS and max(first) < TASKS // 2, first


def test_two_systems_with_one_name_and_one_address_take_and_remove_only_their_own(
    tmp_path: Path, clock: ManualClock, to: str
) -> None:
    policy = sf.SnapshotPolicy(to=to)
    one, two = Bench(tmp_path / "one", clock), Bench(tmp_path / "two", clock)
    try:
        first, second = (bench.active(stores=KV, snapshots=policy) for bench in (one, two))
        put(first, 0, "a")
        first.snapshot(0)
        put(second, 0, "x")
        with pytest.raises(sf.InvalidRequest, match="name another address"):
            second.snapshot(0)  # the same name, of another log: it is not overwritten
        put(second, 0, "y")
        newest = second.snapshot(0)
        storage = open_storage(to, "app")
        assert len(listed(storage).whole) == 2
        prune(storage, Retention(1), clock=SystemClock())
        assert [str(kept.snapshot.name) for kept in listed(storage).whole] == [newest, "0_0/1-1"]
        first.close()
        again = one.active("b", stores=KV, snapshots=policy)
        assert rows(again) == {"a": "1"}
        assert again.counters.snapshots.restores["restored"] == 1
    finally:
        one.close()
        two.close()
