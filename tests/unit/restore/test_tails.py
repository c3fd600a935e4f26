"""Ends and refusals of a restore: every shape of a log's tail that the embedded log can make.

The shapes of row C3 that only transactions of Kafka make (markers, aborted records) belong to the tests of that log.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping

import pytest

import standfast as sf
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.restore.verify.at_rest import open_task
from standfast.store.clock import ManualClock
from standfast.store.task.commit_record import read_record
from support.sessions import Bench

KV = TopicPartition("app-kv-changelog", 0)
STORES = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
DAY_MS = 24 * 3_600_000


def write(session: sf.Session, pairs: Mapping[str, str | None]) -> None:
    """Put each pair in a commit of its own."""
    task = session.task(0)
    for key, value in pairs.items():
        task.store("kv").put(key, value)
        task.commit()


def rows(session: sf.Session) -> list[tuple[str, str]]:
    return list(session.task(0).store("kv").all())


def position(session: sf.Session) -> int:
    return session.task(0).stores.cut.positions["kv"].offset


def restoring(bench: Bench) -> sf.Session:
    """A session in the middle of restoring 12,000 records."""
    first = bench.active(stores=STORES)
    task = first.task(0)
    for number in range(12_000):
        task.store("kv").put(f"{number:05}", "v")
        if number % 1_000 == 999:
            task.commit()
    first.close()
    cold = bench.session("cold", stores=STORES, accept_missing_history=True)
    cold.assign(active=[0])
    cold.poll_once()
    return cold


def test_empty_topic_is_whole_at_once(bench: Bench) -> None:
    session = bench.active(stores=STORES)
    assert rows(session) == []
    assert position(session) == 0


def test_compacted_log_with_gaps_restores_to_its_end(bench: Bench) -> None:
    first = bench.active(stores=STORES)
    write(first, {"a": "1"} | {"b": "1"})
    write(first, {"a": "2"})
    write(first, {"a": "3"})
    first.close()
    bench.embedded.compact(KV.topic, bench.clock.wall_ms())
    cold = bench.active("cold", stores=STORES)
    assert rows(cold) == [("a", "3"), ("b", "1")]
    assert position(cold) == 4


def test_log_compacted_to_nothing_restores_to_its_end(bench: Bench) -> None:
    first = bench.active(stores=STORES)
    write(first, {"a": "1"})
    write(first, {"a": None})
    first.close()
    bench.clock.advance(30 * 24 * 3_600_000)  # past delete.retention.ms: the tombstone goes as well
    bench.embedded.compact(KV.topic, bench.clock.wall_ms())
    reader = bench.log.reader()
    reader.assign({KV: reader.bounds([KV])[KV].begin})
    assert not [record for batch in reader.fetch(100) for record in batch.records]
    cold = bench.active("cold", stores=STORES)
    assert rows(cold) == []
    assert position(cold) == 2


def test_truncated_head_below_the_position_is_no_loss(bench: Bench) -> None:
    first = bench.active(stores=STORES)
    write(first, {"a": "1", "b": "2", "c": "3"})
    first.close()
    bench.embedded.truncate(KV, 2)
    again = bench.active(stores=STORES)
    assert rows(again) == [("a", "1"), ("b", "2"), ("c", "3")]
    assert again.counters.wipes == {}


def test_truncated_beyond_the_position_reinitialises_with_its_reason_once_it_is_accepted(bench: Bench) -> None:
    first = bench.active(stores=STORES)
    second = bench.session("b", stores=STORES)
    second.assign(standby=[0])
    bench.settle(second)
    second.close()  # stands at 0
    write(first, {"a": "1", "b": "2", "c": "3"})
    bench.embedded.truncate(KV, 2)
    first.close()
    refused = bench.session("b", stores=STORES)
    with pytest.raises(sf.StateLost, match="below offset 2 were removed"):
        refused.assign(active=[0])
    refused.close()
    again = bench.active("b", stores=STORES, accept_missing_history=True)
    assert rows(again) == [("c", "3")]
    assert again.counters.wipes == {"truncated": 1}


def test_recreated_topic_with_records_reinitialises_and_keeps_the_old_until_whole(bench: Bench) -> None:
    first = bench.active(stores=STORES)
    write(first, {"old": "1"})
    first.close()
    bench.log.admin.delete_topic(KV.topic)
    bench.log.admin.create_topic(KV.topic, 2, TopicPolicy(frozenset({"compact"})))
    bench.log.producer().append({KV: [Outgoing(b"new", b"2", 5)]})
    again = bench.session(stores=STORES)
    again.assign(active=[0])
    aside = again.state_path / ".aside"
    assert [path.name.split(".")[1] for path in aside.iterdir()] == ["topic-recreated"]
    again.wait_ready(30)
    assert rows(again) == [("new", "2")]
    assert list(aside.iterdir()) == []


def test_empty_log_beside_local_rows_is_refused_until_accepted(bench: Bench) -> None:
    first = bench.active(stores=STORES)
    write(first, {"last": "copy"})
    first.close()
    bench.log.admin.delete_topic(KV.topic)
    refused = bench.session(stores=STORES)
    with pytest.raises(sf.StateLost, match=r"may be the last copy.*accept") as error:
        refused.assign(active=[0])
    assert error.value.reason == "log-empty"
    refused.close()
    view = bench.session(stores=STORES, take_over=False)
    with pytest.raises(sf.StateLost):  # and the refusal changed nothing
        view.assign(active=[0])
    view.close()
    accepted = bench.active(stores=STORES, accept_empty_log=True)
    assert rows(accepted) == []


def test_position_ahead_of_a_log_put_back_from_a_backup_reinitialises(bench: Bench) -> None:
    first = bench.active(stores=STORES)
    write(first, {"a": "1"})
    first.close()
    shutil.copy(bench.root / "log", bench.root / "backup")
    second = bench.active(stores=STORES)
    write(second, {"b": "2"})
    second.close()
    shutil.copy(bench.root / "backup", bench.root / "log")
    again = bench.active(stores=STORES)
    assert rows(again) == [("a", "1")]
    assert again.counters.wipes == {"position-ahead": 1}


def test_position_older_than_delete_retention_may_have_missed_deletes(bench: Bench) -> None:
    first = bench.active(stores=STORES)
    second = bench.session("b", stores=STORES)
    second.assign(standby=[0])
    write(first, {"a": "1", "b": "2"})
    bench.settle(second)
    second.close()
    write(first, {"a": None})
    bench.clock.advance(8 * 24 * 3_600_000)
    first.close()
    bench.embedded.compact(KV.topic, bench.clock.wall_ms())
    again = bench.active("b", stores=STORES)
    assert rows(again) == [("b", "2")]
    assert again.counters.wipes == {"tombstones-expired": 1}


class AheadClock(ManualClock):
    """A machine's clock whose wall time stands ahead of the bench's clock."""

    def __init__(self, bench: Bench, ahead_ms: int) -> None:
        super().__init__()
        self.bench = bench
        self.ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        return self.bench.clock.wall_ms() + self.ahead_ms

    def monotonic_ms(self) -> int:
        return self.bench.clock.monotonic_ms()


def delete_a_and_compact(bench: Bench) -> None:
    """Another instance deletes row a; eight days later its tombstone is gone, too."""
    other = bench.active("other", stores=STORES)
    write(other, {"a": None})
    other.close()
    bench.clock.advance(8 * DAY_MS)
    bench.embedded.compact(KV.topic, bench.clock.wall_ms())


def test_a_store_that_was_stamped_ahead_of_the_clock_brings_no_deleted_row_back(bench: Bench) -> None:
    ahead = bench.active("b", stores=STORES, clock=AheadClock(bench, 30 * DAY_MS))
    write(ahead, {"a": "1", "b": "2"})
    ahead.close()
    delete_a_and_compact(bench)
    again = bench.active("b", stores=STORES)
    assert (rows(again), again.counters.wipes) == ([("b", "2")], {"time-ahead": 1})


def test_a_position_at_the_end_that_was_stamped_ahead_gets_the_present_time(bench: Bench) -> None:
    """By its first stamp it would later be three days old, and not look as if it missed deletes."""
    ahead = bench.active("b", stores=STORES, clock=AheadClock(bench, 5 * DAY_MS))
    write(ahead, {"a": "1", "b": "2"})
    ahead.close()
    bench.active("b", stores=STORES).close()  # nothing is written
    delete_a_and_compact(bench)
    again = bench.active("b", stores=STORES)
    assert (rows(again), again.counters.wipes) == ([("b", "2")], {"tombstones-expired": 1})


def test_a_standby_at_its_end_gets_the_present_time_when_its_clock_was_ahead(bench: Bench) -> None:
    first = bench.active(stores=STORES)
    clock = AheadClock(bench, 5 * DAY_MS)
    standby = bench.session("b", stores=STORES, take_over=False, clock=clock)
    standby.assign(standby=[0])
    write(first, {"a": "1", "b": "2"})
    bench.settle(standby)
    clock.ahead_ms = 0
    bench.clock.advance(60_000)
    bench.settle(standby)
    standby.close()
    with open_task(bench.root / "b" / "app" / "0_0") as engine:
        stamped = read_record(engine, "b").positions["kv"]
    assert stamped.offset == 2
    assert stamped.at_ms <= bench.clock.wall_ms()


@pytest.mark.usefixtures("small_batches")
def test_log_truncated_in_the_middle_of_a_restore_starts_over(bench: Bench) -> None:
    cold = restoring(bench)
    bench.embedded.truncate(KV, 11_000)
    cold.wait_ready(30)
    assert len(rows(cold)) == 1_000
    assert cold.counters.wipes == {"truncated": 1}


def test_standby_whose_log_was_truncated_starts_over(bench: Bench) -> None:
    first = bench.active(stores=STORES)
    second = bench.session("b", stores=STORES, accept_missing_history=True)
    second.assign(standby=[0])
    write(first, {"a": "1", "b": "2", "c": "3"})
    second.poll_once()
    write(first, {"d": "4", "e": "5"})
    bench.embedded.truncate(KV, 4)
    bench.settle(second)
    assert list(second.read("kv", 0, allow_stale=True).store.all()) == [("e", "5")]
    assert second.counters.wipes == {"truncated": 1}


def test_topic_deleted_under_a_running_standby_is_not_a_silent_wipe(bench: Bench) -> None:
    first = bench.active(stores=STORES)
    second = bench.session("b", stores=STORES)
    second.assign(standby=[0])
    write(first, {"a": "1"})
    bench.settle(second)
    bench.log.admin.delete_topic(KV.topic)
    bench.settle(second)
    with pytest.raises(sf.Closed, match="may be the last copy"):
        second.task(0)
    second.close()
    assert bench.session("b", stores=STORES).state_path.joinpath("0_0", "CURRENT").exists()


@pytest.mark.usefixtures("small_batches")
def test_topic_deleted_in_the_middle_of_a_restore_is_refused_with_rows_here(bench: Bench) -> None:
    cold = restoring(bench)
    bench.log.admin.delete_topic(KV.topic)
    with pytest.raises(sf.NotReady, match="may be the last copy"):
        cold.wait_ready(0.3)
