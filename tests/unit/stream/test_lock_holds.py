"""Restores and standbys hold the session's lock for a batch at most, so that calls of other tasks do not wait long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import standfast as sf
from standfast.replication.fetch_limits import LIMITS
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.tail.applier import ChangelogApplier
from standfast.replication.tail.pace import BATCH_BYTES, BATCH_ROWS, HOLD_MS, LEAST, READ_MS, WRITE_MS, Pace
from standfast.store.clock import ManualClock, SystemClock
from support.sessions import Bench
from support.sessions import filled as filled_rows

BYTES = sf.serde.bytes
STORES = [sf.KeyValueStore("kv", BYTES, BYTES)]
VALUE_BYTES = 50_000


class Batches(sf.Listener):
    """Records of the batches that were applied; `each` is called with each of them, in the thread that applied it."""

    def __init__(self, each: Callable[[], None] = lambda: None) -> None:
        self.records: list[int] = []
        self._each = each

    def on_batch_restored(
        self, task: TaskId, store: str, changelog: TopicPartition, position: int, records: int
    ) -> None:
        self.records.append(records)
        self._each()

    def on_standby_batch(
        self, task: TaskId, store: str, changelog: TopicPartition, position: int, records: int, end: int
    ) -> None:
        self.records.append(records)


def filled(bench: Bench, records: int, value_bytes: int, partition: int = 1) -> None:
    first = bench.active("first", (0, 1), stores=STORES, take_over=False)
    task = first.task(partition)
    for number in range(records):
        task.store("kv").put(b"%06d" % number, b"v" * value_bytes)
        if task.commit_requested or task.stores.buffer.full:
            task.commit()
    task.commit()
    first.close()


def cold(bench: Bench, batches: Batches, **settings: Any) -> sf.Session:
    return bench.session("cold", stores=STORES, take_over=False, gate="task", listeners=[batches], **settings)


@pytest.mark.parametrize("role", ["active", "standby"])
def test_batch_of_large_values_is_bounded_by_its_bytes(bench: Bench, role: str) -> None:
    filled(bench, 600, VALUE_BYTES)
    batches = Batches()
    session = cold(bench, batches, background=True, clock=SystemClock())
    session.assign(**{role: [1]})
    if role == "active":
        session.wait_ready(60)
    while sum(batches.records) < 600:
        bench.clock.sleep_ms(1)
    # Up to one fetch beyond the bound, and the records of a fetch that waited for the restore.
    most = (BATCH_BYTES + 2 * LIMITS.lane_fetch_bytes) // VALUE_BYTES
    assert max(batches.records) <= most < 600 // 2


class Slow:
    """A disk that takes a time for each row of a batch, on a clock of the test."""

    def __init__(self, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows_per_ms = 50  # 200 ms for a batch of full size
        write = ChangelogApplier.write

        def slow(applier: ChangelogApplier) -> int:
            rows = write(applier)
            clock.advance(rows // self.rows_per_ms)
            return rows

        monkeypatch.setattr(ChangelogApplier, "write", slow)


def longest_hold_ms(bench: Bench, session: sf.Session, rounds_before: int) -> int:
    """The longest round after the first ones, of a session that its caller drives."""
    holds = []
    for _ in range(1_000):
        began_ms = bench.clock.monotonic_ms()
        done = session.poll_once()
        holds.append(bench.clock.monotonic_ms() - began_ms)
        if not done and session.ready:
            return max(holds[rounds_before:])
    raise AssertionError("the restore has not ended")


@pytest.mark.parametrize("role", ["active", "standby"])
def test_batches_on_a_slow_disk_become_as_small_as_their_time_demands(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    filled(bench, 40_000, 1)
    batches = Batches()
    session = cold(bench, batches, restore_workers=0)
    Slow(bench.clock, monkeypatch)
    session.assign(**{role: [1]})
    # The first batch is of full size, since nothing is known of the disk before.
    assert longest_hold_ms(bench, session, rounds_before=3) <= HOLD_MS
    assert sum(batches.records) == 40_000


def test_reading_leaves_the_lock_when_its_time_is_over_although_the_batch_is_not_full(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("standfast.restore.replay.restorer.PIECE_RECORDS", 100)
    filled(bench, 2_000, 1)
    batches = Batches()
    session = cold(bench, batches, restore_workers=0)
    stage = ChangelogApplier.stage

    def slow(applier: ChangelogApplier, *given: Any) -> int:
        bench.clock.advance(10)
        return stage(applier, *given)

    monkeypatch.setattr(ChangelogApplier, "stage", slow)
    session.assign(active=[1])
    began_ms = bench.clock.monotonic_ms()
    assert session.poll_once() > 0
    assert READ_MS <= bench.clock.monotonic_ms() - began_ms <= READ_MS + 10
    assert not batches.records, "rows that are staged wait for a whole batch"
    while not session.ready:
        session.poll_once()
    assert batches.records == [2_000]
    assert session.task(1).store("kv").get(b"001999") == b"v"


def test_tasks_at_their_ends_are_written_in_several_rounds_where_each_write_is_slow(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for partition in (0, 1):
        filled(bench, 1_500, 1, partition)
    session = cold(bench, Batches(), restore_workers=0)
    Slow(bench.clock, monkeypatch).rows_per_ms = 30
    session.assign(active=[0, 1])
    assert longest_hold_ms(bench, session, rounds_before=0) <= WRITE_MS * 2


def test_thread_that_waits_for_the_lock_gets_it_before_the_round_after_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("standfast.stream.session.host.GIVE_WAY_S", 0.2)  # however busy the machine is
    monkeypatch.setattr("standfast.restore.replay.restorer.BATCH_RECORDS_MAX", 100)
    filled(bench, 3_000, 1)
    rounds_of: list[int] = []
    calling: list[threading.Thread] = []
    batches = Batches(lambda: begin())
    session = cold(bench, batches, background=True, clock=SystemClock(), restore_workers=0)

    def call(before: int) -> None:
        session.task(0)
        rounds_of.append(len(batches.records) - before)

    def begin() -> None:
        if len(calling) < 3 and not any(thread.is_alive() for thread in calling):
            thread = threading.Thread(target=call, args=(len(batches.records),))
            calling.append(thread)
            thread.start()

    session.assign(active=[0])
    session.wait_ready(30)
    session.assign(active=[0, 1])
    session.wait_ready(60)
    for thread in calling:
        thread.join()
    assert len(rounds_of) == 3 and max(rounds_of) <= 1


def test_pace_shrinks_with_slow_writes_and_grows_again(clock: ManualClock) -> None:
    pace = Pace(clock)
    assert (pace.rows(BATCH_ROWS), pace.payload_bytes) == (BATCH_ROWS, BATCH_BYTES)

    def write(took_ms: int) -> None:
        pace.begin()
        clock.advance(took_ms)
        pace.wrote()

    write(WRITE_MS * 4)
    assert (pace.rows(BATCH_ROWS), pace.payload_bytes) == (BATCH_ROWS // 4, BATCH_BYTES // 4)
    write(WRITE_MS)
    assert pace.rows(BATCH_ROWS) == BATCH_ROWS // 4
    write(0)
    assert pace.rows(BATCH_ROWS) == BATCH_ROWS * 3 // 8
    for _ in range(10):
        write(0)
    assert pace.rows(BATCH_ROWS) == BATCH_ROWS
    for _ in range(10):
        write(10_000)
    assert pace.rows(BATCH_ROWS) == BATCH_ROWS // LEAST and pace.rows(1) == 1


def test_copy_has_caught_up_once_its_rows_are_written(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
    bench.fill(stores, tasks=2, records=50)
    monkeypatch.setattr(Pace, "wrote_enough", property(lambda _: True))  # one task a round
    with sf.Replica(
        "app", log=bench.address, state_dir=bench.root / "replica", stores=stores, background=False, clock=bench.clock
    ) as replica:
        replica.wait_ready(30)
        for partition in (0, 1):
            with replica.read("kv", partition).store.all() as rows:
                assert dict(rows) == filled_rows(partition, 50)
