"""Ends and refusals of a restore on a real broker: every possible shape of a changelog's tail and head.

The same shapes on the embedded log are in `test_tails.py`; those of a reader alone in `test_kafka_log.py`.

Rules of this file: through sessions. After each restore the rows are right, the position stands at the log's end, and
state was set aside only for a reported reason. Waits are for a condition, with a bound.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.restore.accepted import read_accepted
from standfast.store.clock import ManualClock
from support.kafka_bench import TEXT, WAIT_S, KafkaBench, rows, transaction
from support.waits import until

pytestmark = [pytest.mark.kafka(2), pytest.mark.slow]

HOUR_MS = 3_600_000
COMPACT_NOW = {"min.cleanable.dirty.ratio": "0.001", "segment.ms": "100", "max.compaction.lag.ms": "100"}
GUARANTEES = ("exactly_once", "at_least_once")


@pytest.fixture
def bench(tmp_path: Path, kafka_address: str) -> Iterator[KafkaBench]:
    made = KafkaBench(tmp_path, kafka_address)
    yield made
    made.close()


def logged(**changelog: str) -> dict[str, Any]:
    """Settings of a session whose store has a changelog with these settings."""
    return {"stores": [sf.KeyValueStore("kv", TEXT, TEXT, changelog=changelog)]}


def bounds(bench: KafkaBench) -> Bounds:
    reader = bench.log.reader()
    try:
        return reader.bounds([bench.changelog])[bench.changelog]
    finally:
        reader.close()


def position(session: sf.Session) -> int:
    return session.tasks()[0].stores.cut.positions["kv"].offset


def wait_for_marker(bench: KafkaBench, session: sf.Session) -> None:
    """Wait until the broker has ended the session's last transaction: it replies before that."""
    until(lambda: bounds(bench).end > position(session), "the marker")


def put(bench: KafkaBench, session: sf.Session, **pairs: str | None) -> None:
    """Put each pair in a commit of its own."""
    for key, value in pairs.items():
        session.task(0).store("kv").put(key, value)
        session.task(0).commit({bench.source: bench.offset(session) + 1})


def restored(bench: KafkaBench, directory: str = "cold", **settings: Any) -> sf.Session:
    """A session that restores, stands at the log's end, and lost no state."""
    began = time.monotonic()
    session = bench.active(directory, **settings)
    assert position(session) == bounds(bench).end
    assert time.monotonic() - began < WAIT_S / 2
    return session


# -- tails ------------------------------------------------------------------------------------------------------------


def test_empty_topic_is_whole_at_once(bench: KafkaBench) -> None:
    session = restored(bench)
    assert (rows(session), position(session)) == ({}, 0)


@pytest.mark.parametrize("guarantee", [GUARANTEES[0], pytest.param(GUARANTEES[1], marks=pytest.mark.long)])
def test_tail_of_a_commit_is_reached_whatever_is_its_last_offset(bench: KafkaBench, guarantee: str) -> None:
    """Exactly once the last offset holds a marker; at least once a record."""
    first = bench.active("a", guarantee=guarantee)
    put(bench, first, a="1", b="2")
    first.close()
    until(lambda: bounds(bench).end == (4 if guarantee == "exactly_once" else 2), "the end")
    for directory in ("a", "cold"):
        session = restored(bench, directory, guarantee=guarantee)
        assert rows(session) == {"a": "1", "b": "2"}
        assert session.counters.wipes == {}
        session.close()


def test_compacted_log_with_gaps_restores_to_its_end(bench: KafkaBench) -> None:
    settings = logged(**COMPACT_NOW)
    first = bench.active("a", **settings)
    for number in range(8):
        put(bench, first, a=f"{number}", b="once" if number == 3 else f"b{number}")
        time.sleep(0.12)  # segments are rolled by age
    wanted = rows(first)

    def squeezed() -> bool:
        put(bench, first, tick="t")
        time.sleep(0.2)
        return sum(record.key == b"a" for record in bench.records()) == 1

    until(squeezed, "compaction")
    wanted["tick"] = "t"
    first.close()
    assert len(bench.records()) < bounds(bench).end / 2
    assert bounds(bench).begin == 0  # the cleaner moves no begin: it is the proof of a removal
    assert rows(restored(bench, **settings)) == wanted


@pytest.mark.long
def test_log_compacted_to_nothing_but_markers_restores_to_its_end(bench: KafkaBench) -> None:
    settings = logged(**COMPACT_NOW, **{"delete.retention.ms": "0"})
    first = bench.active("a", **settings)
    put(bench, first, a="1", b="2")
    time.sleep(0.12)

    def emptied() -> bool:
        # A tombstone goes with the second look, and the last segment is not compacted: it holds a tombstone.
        put(bench, first, a=None)
        time.sleep(0.12)
        put(bench, first, b=None)
        time.sleep(0.3)
        return len(bench.records()) <= 2 and all(record.value is None for record in bench.records())

    until(emptied, "compaction")
    end = bounds(bench).end
    assert bounds(bench).begin == 0
    first.close()
    cold = restored(bench, **settings)
    assert (rows(cold), position(cold) >= end) == ({}, True)


def test_aborted_records_at_the_end_are_passed(bench: KafkaBench) -> None:
    first = bench.active("a")
    put(bench, first, a="1")
    wait_for_marker(bench, first)
    first.close()
    before = bounds(bench).end
    transaction(bench, *("bad" for _ in range(300))).abort_transaction(10)
    until(lambda: bounds(bench).end == before + 301, "the abort")
    for directory in ("a", "cold"):
        session = restored(bench, directory)
        assert rows(session) == {"a": "1"}
        session.close()


def test_open_transaction_at_the_end_holds_a_new_owner_back_and_no_standby(bench: KafkaBench) -> None:
    """A standby has an owner that may be writing; of an owner nothing may be hidden."""
    first = bench.active("a")
    put(bench, first, a="1")
    wait_for_marker(bench, first)
    first.close()
    stable = bounds(bench).end
    foreign = transaction(bench, "open")
    standby = bench.session("standby", take_over=False)
    standby.assign(standby=[0])
    until(lambda: standby.poll_once() >= 0 and rows(standby) == {"a": "1"}, "the standby follows")
    until(lambda: standby.poll_once() >= 0 and position(standby) == stable, "the last stable offset")
    cold = bench.session("cold")
    with pytest.raises(sf.Unavailable, match=rf"{bench.changelog}: offsets {stable} to {stable} .* open"):
        cold.assign(active=[0])
    cold.close()
    foreign.commit_transaction(10)
    until(lambda: bounds(bench).end == stable + 2, "the commit")
    again = restored(bench, "cold")
    assert rows(again) == {"a": "1", "k0": "open"}
    assert again.counters.wipes == {}


# -- heads ------------------------------------------------------------------------------------------------------------


WINDOW = sf.WindowStore("kv", TEXT, TEXT, window_size_ms=60_000, retention_ms=HOUR_MS)


def fill_windows(bench: KafkaBench, session: sf.Session, keys: str) -> None:
    start = int(time.time() * 1_000) // 60_000 * 60_000
    for key in keys:
        session.task(0).store("kv").put(key, key, start)
        session.task(0).commit({bench.source: bench.offset(session) + 1})
    wait_for_marker(bench, session)


def window_keys(session: sf.Session) -> str:
    return "".join(window.key for window, _ in session.read("kv", 0, allow_stale=True).store.all())


@pytest.mark.long
def test_head_deleted_beyond_the_position_is_read_from_the_new_beginning_with_its_reason(bench: KafkaBench) -> None:
    first = bench.active("a", stores=[WINDOW])
    behind = bench.session("b", stores=[WINDOW], take_over=False)
    behind.assign(standby=[0])
    fill_windows(bench, first, "ab")
    until(lambda: behind.poll_once() >= 0 and window_keys(behind) == "ab", "the standby has two")
    behind.close()
    fill_windows(bench, first, "cdef")
    bench.log.admin.delete_records({bench.changelog: bounds(bench).end - 4})  # two records and two markers are left
    assert window_keys(first) == "abcdef"  # below its position no removal matters
    first.close()
    again = restored(bench, "a", stores=[WINDOW])
    assert (window_keys(again), again.counters.wipes) == ("abcdef", {})
    again.close()
    late = restored(bench, "b", stores=[WINDOW])
    assert (window_keys(late), late.counters.wipes) == ("ef", {"truncated": 1})


def test_standby_whose_log_lost_its_head_while_it_slept_starts_over(bench: KafkaBench) -> None:
    first = bench.active("a", stores=[WINDOW])
    standby = bench.session("b", stores=[WINDOW], take_over=False)
    standby.assign(standby=[0])
    fill_windows(bench, first, "a")
    until(lambda: standby.poll_once() >= 0 and window_keys(standby) == "a", "the standby has one")
    fill_windows(bench, first, "bcd")
    bench.log.admin.delete_records({bench.changelog: bounds(bench).end - 2})
    until(lambda: standby.poll_once() >= 0 and "d" in window_keys(standby), "the standby goes on")
    # Records that its client had fetched before the deletion may have been in time.
    assert (window_keys(standby), standby.counters.wipes) in (("d", {"truncated": 1}), ("abcd", {}))


def test_log_emptied_beside_rows_that_have_not_seen_it_all_is_refused_until_accepted(bench: KafkaBench) -> None:
    first = bench.active("a", stores=[WINDOW])
    standby = bench.session("b", stores=[WINDOW], take_over=False)
    standby.assign(standby=[0])
    fill_windows(bench, first, "a")
    until(lambda: standby.poll_once() >= 0 and window_keys(standby) == "a", "the standby has one")
    standby.close()
    fill_windows(bench, first, "b")
    first.close()
    bench.log.admin.delete_records({bench.changelog: bounds(bench).end})
    refused = bench.session("b", stores=[WINDOW])
    with pytest.raises(sf.StateLost, match=rf"{bench.changelog}.*may be the last copy.*accept") as error:
        refused.assign(active=[0])
    assert error.value.reason == "log-empty"
    refused.close()
    accepted = restored(bench, "b", stores=[WINDOW], accept_empty_log=True)
    assert (window_keys(accepted), accepted.counters.wipes) == ("", {"truncated": 1})
    accepted.close()
    kept = restored(bench, "a", stores=[WINDOW])  # it had applied every record: nothing is lost
    assert (window_keys(kept), kept.counters.wipes) == ("ab", {})


@pytest.mark.long
def test_standby_of_an_owner_whose_log_was_emptied_up_to_its_marker_goes_on(bench: KafkaBench) -> None:
    first = bench.active("a", stores=[WINDOW])
    fill_windows(bench, first, "a")
    first.close()
    bench.log.admin.delete_records({bench.changelog: bounds(bench).end})
    owner = bench.active("b", stores=[WINDOW])
    standby = bench.session("a", stores=[WINDOW], take_over=False)
    standby.assign(standby=[0])
    fill_windows(bench, owner, "b")
    until(lambda: standby.poll_once() >= 0 and window_keys(standby) == "ab", "the standby goes on")
    assert standby.counters.wipes == {}


def test_log_without_its_head_that_nothing_explains_is_refused_until_accepted(bench: KafkaBench) -> None:
    settings = logged(**{"cleanup.policy": "delete"})
    first = bench.active("a", **settings)
    put(bench, first, a="1", b="2")
    first.close()
    bench.log.admin.delete_records({bench.changelog: 2})
    refused = bench.session("cold", **settings)
    with pytest.raises(sf.StateLost, match=rf"{bench.changelog}.*below offset 2 are gone") as error:
        refused.assign(active=[0])
    assert error.value.reason == "history-missing"
    refused.close()
    accepted = restored(bench, "cold", **settings, accept_missing_history=True)
    assert rows(accepted) == {"b": "2"}


def remove_head(bench: KafkaBench, before: int) -> None:
    """As a person does it: Kafka removes records only while the policy deletes."""
    topic = bench.changelog.topic
    bench.log.admin.change_topic(topic, {"cleanup.policy": "compact,delete"})
    until(lambda: removed(bench, before), "the removal")
    bench.log.admin.change_topic(topic, {"cleanup.policy": "compact"})
    info = bench.log.admin.describe_topic(topic)
    assert info is not None
    assert info.policy.cleanup == {"compact"}


def removed(bench: KafkaBench, before: int) -> bool:
    try:
        bench.log.admin.delete_records({bench.changelog: before})
    except sf.StandfastError:  # until the broker knows the policy
        return False
    return bounds(bench).begin == before


@pytest.mark.parametrize("guarantee", [GUARANTEES[0], pytest.param(GUARANTEES[1], marks=pytest.mark.long)])
def test_only_compacted_log_that_lost_its_head_is_refused_where_no_rows_have_seen_it(
    bench: KafkaBench, guarantee: str
) -> None:
    first = bench.active("a", guarantee=guarantee)
    behind = bench.session("b", guarantee=guarantee, take_over=False)
    behind.assign(standby=[0])
    put(bench, first, a="1", b="2")
    until(lambda: behind.poll_once() >= 0 and len(rows(behind)) == 2, "the standby has two")
    behind.close()
    put(bench, first, c="3", d="4")
    if guarantee == "exactly_once":
        wait_for_marker(bench, first)
    first.close()
    last = bench.records()[-1].offset
    remove_head(bench, last)
    for directory in ("b", "cold"):
        refused = bench.session(directory, guarantee=guarantee)
        with pytest.raises(sf.StateLost, match=rf"{bench.changelog}.*below offset {last} were removed") as error:
            refused.assign(active=[0])
        assert error.value.reason == "history-missing"
        assert refused.counters.wipes == {}
        refused.close()
    whole = restored(bench, "a", guarantee=guarantee)  # it had applied every record
    assert (rows(whole), whole.counters.wipes) == ({"a": "1", "b": "2", "c": "3", "d": "4"}, {})
    whole.close()
    accepted = restored(bench, "b", guarantee=guarantee, accept_missing_history=True)
    assert rows(accepted) == {"d": "4"}
    assert [one.name.split(".")[1] for one in (accepted.state_path / ".kept").iterdir()] == ["truncated"]
    assert [one.begin for one in read_accepted(accepted.state_path)] == [last]


@pytest.mark.long
def test_snapshot_that_has_the_removed_head_is_used_by_itself(bench: KafkaBench) -> None:
    policy = sf.SnapshotPolicy(to=str(bench.root / "snaps"))
    first = bench.active("a", snapshots=policy)
    put(bench, first, a="1", b="2")
    first.snapshot(0)
    at = position(first)
    put(bench, first, c="3", d="4")
    wait_for_marker(bench, first)
    first.close()
    last = bench.records()[-1].offset
    remove_head(bench, at)
    cold = restored(bench, "cold", snapshots=policy)
    assert (rows(cold), read_accepted(cold.state_path)) == ({"a": "1", "b": "2", "c": "3", "d": "4"}, [])
    cold.close()
    remove_head(bench, last)
    refused = bench.session("colder", snapshots=policy)
    with pytest.raises(sf.StateLost, match="were removed although the topic is only compacted"):
        refused.assign(active=[0])


# -- another topic, another log ---------------------------------------------------------------------------------------


def recreate(bench: KafkaBench) -> None:
    bench.log.admin.delete_topic(bench.changelog.topic)
    bench.log.admin.create_topic(bench.changelog.topic, 1, TopicPolicy(frozenset({"compact"})))


def test_recreated_topic_with_as_many_records_is_another_topic(bench: KafkaBench) -> None:
    first = bench.active("a", guarantee="at_least_once")
    put(bench, first, a="1", b="2", c="3")
    first.close()
    recreate(bench)
    bench.log.producer().append({bench.changelog: [Outgoing(f"n{n}".encode(), b"new", 5) for n in range(3)]})
    again = bench.session("a", guarantee="at_least_once")
    again.assign(active=[0])
    aside = again.state_path / ".aside"
    assert [path.name.split(".")[1] for path in aside.iterdir()] == ["topic-recreated"]
    again.wait_ready(WAIT_S)
    assert rows(again) == {f"n{n}": "new" for n in range(3)}
    assert (position(again), list(aside.iterdir())) == (3, [])
    assert len(list((again.state_path / ".kept").iterdir())) == 1  # the rows of the topic that is gone


def test_topic_deleted_under_a_restored_task_is_refused_and_its_rows_stay(bench: KafkaBench) -> None:
    first = bench.active("a")
    put(bench, first, a="1")
    first.close()
    bench.log.admin.delete_topic(bench.changelog.topic)
    refused = bench.session("a")
    with pytest.raises(sf.StateLost, match="may be the last copy") as error:
        refused.assign(active=[0])
    assert error.value.reason == "log-empty"
    refused.close()
    assert (bench.root / "a" / bench.app / "0_0" / "CURRENT").exists()


def test_running_standby_learns_that_its_topic_was_made_anew(bench: KafkaBench) -> None:
    first = bench.active("a", guarantee="at_least_once")
    standby = bench.session("b", take_over=False)
    standby.assign(standby=[0])
    put(bench, first, a="1", b="2")
    until(lambda: standby.poll_once() >= 0 and len(rows(standby)) == 2, "the standby has both")
    recreate(bench)
    bench.log.producer().append({bench.changelog: [Outgoing(f"n{n}".encode(), b"new", 5) for n in range(4)]})
    wanted = {f"n{n}": "new" for n in range(4)}

    def followed() -> bool:
        standby.poll_once()
        task = standby.tasks()[0]
        return task.error is None and rows(standby) == wanted

    until(followed, "the standby has the rows of the new topic, and only them")
    assert standby.counters.wipes == {"topic-recreated": 1}


# -- age --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("days", "reason"), [(6, {}), (7, {"tombstones-expired": 1})])
def test_position_older_than_deletes_are_kept_is_rebuilt(bench: KafkaBench, days: int, reason: dict[str, int]) -> None:
    """Deletes are kept for seven days; nine tenths of that is the limit."""
    first = bench.active("a")
    behind = bench.session("b", take_over=False)
    behind.assign(standby=[0])
    put(bench, first, a="1", b="2")
    until(lambda: behind.poll_once() >= 0 and len(rows(behind)) == 2, "the standby has both")
    behind.close()
    put(bench, first, a=None)
    first.close()
    clock = ManualClock(int(time.time() * 1_000) + days * 24 * HOUR_MS)
    late = restored(bench, "b", clock=clock)
    assert (rows(late), late.counters.wipes) == ({"b": "2"}, reason)


# -- groups' offsets --------------------------------------------------------------------------------------------------


def test_source_offsets_go_on_from_the_groups_commit_after_a_cold_restore(bench: KafkaBench) -> None:
    first = bench.active("a")
    put(bench, first, a="1", b="2")
    first.close()
    cold = restored(bench, "cold")
    assert cold.task(0).source_offsets() == {TopicPartition(*bench.source): 2}
