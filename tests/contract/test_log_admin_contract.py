"""The contract of every log when a topic grows or changes, and its reports to operators.

Rules of this file: those of `test_log_contract.py`; it uses the port only.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from standfast.replication.log import Committed, Log, Outgoing, TopicPolicy
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.store.errors import InvalidRequest, UnknownStore

P0, P1, P2, P3, P4 = (TopicPartition("flights", number) for number in range(5))


def out(value: str) -> list[Outgoing]:
    return [Outgoing(value.encode(), value.encode(), 1_000)]


def values(log: Log, source: TopicPartition, wait_ms: int, position: int = 0) -> list[bytes | None]:
    reader = log.reader()
    reader.assign({source: position})
    found = [record.value for fetched in reader.fetch(10, wait_ms) for record in fetched.records]
    reader.close()
    return found


def test_added_partitions_are_empty_and_the_others_keep_their_records(log: Log, wait_ms: int) -> None:
    before = log.admin.describe_topic("flights")
    log.producer().append({P0: out("a")})
    grown = log.admin.add_partitions("flights", 5)
    assert before is not None
    assert (grown.partitions, grown.topic_id, grown.policy) == (5, before.topic_id, before.policy)
    assert log.admin.describe_topic("flights") == grown
    assert log.reader().bounds([P3, P4]) == {P3: Bounds(0, 0), P4: Bounds(0, 0)}
    assert values(log, P0, wait_ms) == [b"a"]


def test_parts_opened_before_use_added_partitions(log: Log, reopen: Callable[[], Log], wait_ms: int) -> None:
    producer, writer, reader = log.producer(), log.writer("app-0-3", group="app", owner="me"), log.reader()
    other = reopen()  # as another process, which knows the earlier topic
    other_producer = other.producer()
    for one in (producer, other_producer):
        one.append({P0: out("a")})
    writer.transact({P0: out("a")})
    reader.assign({P0: 0})
    assert reader.fetch(10, wait_ms)
    log.admin.add_partitions("flights", 5)
    reader.add({P3: 0})
    producer.append({P3: out("b")})
    other_producer.append({P4: out("c")})
    writer.transact({P3: out("d")})
    seen: list[bytes | None] = []
    for _ in range(20):
        seen += [one.value for batch in reader.fetch(10, wait_ms) if batch.source == P3 for one in batch.records]
        if len(seen) == 2:
            break
    assert seen == [b"b", b"d"]
    assert values(log, P4, wait_ms) == [b"c"]
    log.group("app").commit({P3: Committed(2)})
    assert log.group("app").committed() == {P3: Committed(2)}


def test_as_many_partitions_as_there_are_change_nothing_and_fewer_are_refused(log: Log) -> None:
    before = log.admin.describe_topic("flights")
    assert log.admin.add_partitions("flights", 3) == before
    with pytest.raises(InvalidRequest, match="'flights' has 3 partitions and cannot have 2"):
        log.admin.add_partitions("flights", 2)
    with pytest.raises(InvalidRequest, match="cannot have 0 partitions"):
        log.admin.add_partitions("flights", 0)
    with pytest.raises(UnknownStore, match="'flightz', did you mean 'flights'"):
        log.admin.add_partitions("flightz", 4)
    assert log.admin.describe_topic("flights") == before


def test_settings_of_a_topic_change_by_name_and_the_others_stay(log: Log, wait_ms: int) -> None:
    made = log.admin.create_topic("board", 2, TopicPolicy(frozenset({"compact"}), delete_retention_ms=3_600_000))
    log.producer().append({TopicPartition("board", 0): out("a")})
    changed = log.admin.change_topic("board", {"cleanup.policy": "compact,delete", "retention.ms": "86400000"})
    assert changed.policy == TopicPolicy(frozenset({"compact", "delete"}), 86_400_000, 3_600_000)
    assert (changed.topic_id, changed.partitions) == (made.topic_id, 2)
    assert log.admin.describe_topic("board") == changed
    again = log.admin.change_topic("board", {"min.compaction.lag.ms": "500", "min.cleanable.dirty.ratio": "0.25"})
    assert again.policy == TopicPolicy(
        frozenset({"compact", "delete"}), 86_400_000, 3_600_000, 500, {"min.cleanable.dirty.ratio": "0.25"}
    )
    assert log.admin.change_topic("board", {}) == again


def test_topic_that_becomes_compacted_takes_no_record_without_a_key(log: Log) -> None:
    log.admin.change_topic("flights", {"cleanup.policy": "compact"})
    with pytest.raises(InvalidRequest, match="key"):
        log.producer().append({P0: [Outgoing(None, b"x", 1_000)]})


@pytest.mark.parametrize(
    "settings",
    [{"cleanup.policy": "shrink"}, {"cleanup.policy": ""}, {"retention.ms": "a week"}, {"retention.ms": "-2"}],
)
def test_setting_that_means_nothing_is_refused_and_changes_nothing(log: Log, settings: dict[str, str]) -> None:
    before = log.admin.describe_topic("flights")
    with pytest.raises(InvalidRequest, match=next(iter(settings))):
        log.admin.change_topic("flights", settings)
    with pytest.raises(UnknownStore, match="'flightz'"):
        log.admin.change_topic("flightz", {"retention.ms": "1"})
    assert log.admin.describe_topic("flights") == before


def test_survey_describes_topics_and_says_which_are_not_there(log: Log) -> None:
    found = log.admin.survey(["flights", "nowhere"])
    described = found.topics["flights"]
    assert described is not None
    assert described.info == log.admin.describe_topic("flights")
    assert found.topics["nowhere"] is None
    if found.brokers:
        assert described.replicas == (found.brokers,) * 3
        assert described.in_sync == (1, 1, 1)
        assert {"min.insync.replicas", "max.message.bytes", "message.timestamp.type"} <= set(described.settings)
        assert {"transaction.state.log.min.isr", "transaction.max.timeout.ms"} <= set(found.settings)


def test_groups_are_those_that_committed_or_have_members(log: Log) -> None:
    assert log.admin.groups() == []
    log.group("board").commit({P0: Committed(0)})
    log.group("app").join("m-1")
    assert log.admin.groups() == ["app", "board"]


def test_group_without_a_consumer_of_its_own_has_none(log: Log) -> None:
    assert log.admin.consumers("nobody") == ()
    log.group("app").join("m-1")
    log.group("app").commit({P0: Committed(0)})
    assert log.admin.consumers("app") == ()


def test_deleted_group_has_committed_nothing_and_others_keep_theirs(log: Log) -> None:
    for name in ("app", "board"):
        log.group(name).commit({P0: Committed(0)})
    log.admin.delete_group("app")
    assert (log.group("app").committed([P0]), log.group("board").committed([P0])) == ({}, {P0: Committed(0)})
    assert log.admin.groups() == ["board"]
    log.admin.delete_group("app")


def test_first_offset_at_or_after_a_time(log: Log) -> None:
    producer = log.producer()
    producer.append({P0: [Outgoing(b"k", b"v", time) for time in (1_000, 3_000, 2_000, 5_000)]})
    wanted = ((0, 0), (1_000, 0), (1_001, 1), (3_000, 1), (3_001, 3), (5_000, 3), (5_001, 4), (9_000, 4))
    assert [log.admin.first_offsets({P0: time})[P0] for time, _ in wanted] == [offset for _, offset in wanted]
    assert log.admin.first_offsets({P0: 5_000, P1: 1}) == {P0: 3, P1: 0}


def test_first_offset_is_never_below_the_begin(log: Log, truncate: Callable[[TopicPartition, int], object]) -> None:
    log.producer().append({P0: [Outgoing(b"k", b"v", time) for time in (1_000, 2_000, 3_000)]})
    truncate(P0, 2)
    assert [log.admin.first_offsets({P0: time})[P0] for time in (1, 2_000, 3_000, 4_000)] == [2, 2, 2, 3]


def test_first_offset_of_no_topic_is_an_error(log: Log) -> None:
    with pytest.raises(UnknownStore):
        log.admin.first_offsets({TopicPartition("trains", 0): 1})
