"""The contract of every implementation of `standfast.replication.log`: topics, records and readers.

Rules of this file: it uses the port only; the logs under test stand in `conftest.py`. Offsets are compared for order
where a log may keep markers between records. A fetch that expects a record or a change of just now waits up to
`wait_ms` (0 for a log on this machine): over a network it is on its way for a moment. Writers and groups are in
`test_log_group_contract.py`; abilities of one log are tested beside that log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import pytest

from standfast.replication.log import (
    Committed,
    Fetched,
    Log,
    LogReader,
    Outgoing,
    Record,
    TopicPolicy,
)
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.replication.permissions import topic_needs
from standfast.store.errors import Closed, InvalidRequest, StateLost, UnknownStore
from standfast.store.value_timestamp import RowChanges

P0, P1, P2 = (TopicPartition("flights", number) for number in range(3))


def out(*values: str, at_ms: int = 1_000) -> list[Outgoing]:
    return [Outgoing(f"key-{value}".encode(), value.encode(), at_ms) for value in values]


def assigned(log: Log, positions: dict[TopicPartition, int]) -> LogReader:
    reader = log.reader()
    reader.assign(positions)
    return reader


def drain(reader: LogReader, max_records: int = 100) -> list[Fetched]:
    """All records, fetch by fetch."""
    found: list[Fetched] = []
    while batch := reader.fetch(max_records):
        found += batch
    return found


def records(log: Log, source: TopicPartition, position: int = 0) -> list[Record]:
    reader = assigned(log, {source: position})
    found = [record for fetched in drain(reader) for record in fetched.records]
    reader.close()
    return found


def values(found: Iterable[Record]) -> list[bytes | None]:
    return [record.value for record in found]


# -- topics -----------------------------------------------------------------------------------------------------------


def test_created_topic_is_described_with_its_policy(log: Log) -> None:
    policy = TopicPolicy(frozenset({"compact", "delete"}), 86_400_000, 3_600_000, 500)
    made = log.admin.create_topic("board", 4, policy)
    assert (made.name, made.partitions, made.policy) == ("board", 4, policy)
    assert log.admin.describe_topic("board") == made
    assert [info.name for info in log.admin.topics()] == ["board", "flights"]
    assert log.admin.topic_names() == ["board", "flights"]
    # Neither log of these tests has permissions; an absent topic lacks none.
    assert log.admin.lacking(topic_needs(["board", "absent"], "READ", "WRITE", "DELETE", "DESCRIBE_CONFIGS")) == []
    assert log.admin.describe_topic("boards") is None


def test_creating_a_topic_twice_leaves_it_unchanged(log: Log) -> None:
    before = log.admin.describe_topic("flights")
    again = log.admin.create_topic("flights", 7, TopicPolicy(frozenset({"compact"})))
    assert again == before
    assert again.partitions == 3


@pytest.mark.parametrize("name", ["", ".", "../x", "a/b", "x" * 250])
def test_bad_topic_name_is_refused(log: Log, name: str) -> None:
    with pytest.raises(InvalidRequest, match="topic name"):
        log.admin.create_topic(name, 1, TopicPolicy())


@pytest.mark.parametrize(
    ("partitions", "policy"),
    [
        (0, TopicPolicy()),
        (-1, TopicPolicy()),
        (1, TopicPolicy(frozenset())),
        (1, TopicPolicy(frozenset({"shrink"}))),
        (1, TopicPolicy(retention_ms=-2)),
    ],
)
def test_bad_topic_settings_are_refused_and_nothing_is_created(log: Log, partitions: int, policy: TopicPolicy) -> None:
    with pytest.raises(InvalidRequest, match="bad-one"):
        log.admin.create_topic("bad-one", partitions, policy)
    assert log.admin.describe_topic("bad-one") is None


def test_recreated_topic_has_a_new_id_and_no_records(log: Log) -> None:
    first = log.admin.describe_topic("flights")
    log.producer().append({P0: out("a")})
    log.group("board").commit({P0: Committed(1)})
    log.admin.delete_topic("flights")
    assert log.admin.describe_topic("flights") is None
    second = log.admin.create_topic("flights", 3, TopicPolicy())
    assert first is not None
    assert second.topic_id != first.topic_id
    assert log.reader().bounds([P0]) == {P0: Bounds(0, 0)}
    assert log.group("board").committed() == {}


def test_reader_notices_that_its_topic_was_recreated(log: Log, wait_ms: int) -> None:
    log.producer().append({P0: out("a")})
    reader = assigned(log, {P0: 0})
    assert values(record for fetched in drain(reader) for record in fetched.records) == [b"a"]
    log.admin.delete_topic("flights")
    with pytest.raises(UnknownStore, match="flights"):
        reader.fetch(10, wait_ms)
    log.admin.create_topic("flights", 3, TopicPolicy())
    with pytest.raises(StateLost, match="flights-0") as caught:
        reader.fetch(10, wait_ms)
    assert caught.value.reason == "topic-recreated"


def test_unknown_topic_or_partition_names_what_exists(log: Log) -> None:
    absent, outside = TopicPartition("flihgts", 0), TopicPartition("flights", 3)
    for source, hint in ((absent, "'flights'"), (outside, "0 to 2")):
        with pytest.raises(UnknownStore, match=hint):
            log.producer().append({source: out("a")})
        with pytest.raises(UnknownStore, match=hint):
            log.reader().assign({source: 0})
        with pytest.raises(UnknownStore, match=hint):
            log.reader().bounds([source])
    with pytest.raises(UnknownStore, match="'flights'"):
        log.admin.delete_topic("flihgts")


# -- records ----------------------------------------------------------------------------------------------------------


def test_offsets_begin_at_zero_and_increase(log: Log) -> None:
    writer = log.producer()
    assert writer.append({P0: out("a", "b", "c")}) == {P0: 3}
    assert writer.append({P0: out("d")}) == {P0: 4}
    found = records(log, P0)
    assert [record.offset for record in found] == [0, 1, 2, 3]
    assert values(found) == [b"a", b"b", b"c", b"d"]
    assert log.reader().bounds([P0, P1]) == {P0: Bounds(0, 4), P1: Bounds(0, 0)}


@pytest.mark.parametrize("count", [1, 9, 10, 49, 50, 51, 60, 1_000, 5_011])
def test_batches_of_any_size_keep_their_order(log: Log, count: int) -> None:
    batch = [Outgoing(b"%d" % number, b"value-%d" % number, number + 1) for number in range(count)]
    assert log.producer().append({P0: batch}) == {P0: count}
    found = records(log, P0)
    assert found == [Record(number, number + 1, b"%d" % number, b"value-%d" % number) for number in range(count)]
    assert all(type(record) is Record for record in found)


def test_one_append_may_write_several_partitions(log: Log) -> None:
    assert log.producer().append({P0: out("a"), P1: out("b", "c"), P2: []}) == {P0: 1, P1: 2, P2: 0}
    assert values(records(log, P0)) == [b"a"]
    assert values(records(log, P1)) == [b"b", b"c"]
    assert records(log, P2) == []


@pytest.mark.parametrize("deletes", [False, True])
def test_rows_of_a_store_are_written_as_the_changes_that_they_say(
    log: Log, deletes: bool, settle: Callable[[Mapping[TopicPartition, int]], None]
) -> None:
    stamps = {b"%d" % number: number + 1 for number in range(1_003)}
    gone = {key: stamp for key, stamp in stamps.items() if deletes and stamp % 7 == 0}
    rows = {
        key: None if key in gone else stamp.to_bytes(8, "big") + b"v" * (stamp % 3) for key, stamp in stamps.items()
    }
    written, none = (cast("Sequence[Outgoing]", RowChanges(*given)) for given in ((rows, gone), ({}, {})))
    assert log.producer().append({P0: written, P1: none}) == {P0: 1_003, P1: 0}
    ends = log.producer().transact({P0: written})
    assert ends[P0] >= 2_006
    settle(ends)
    found = records(log, P0)
    expected = [(stamp, key, None if key in gone else b"v" * (stamp % 3), ()) for key, stamp in stamps.items()]
    assert [record[1:] for record in found] == 2 * expected


def test_timestamps_are_kept_as_they_are(log: Log, timestamp_least: int) -> None:
    stamps = [5, timestamp_least, 1_356_998_400_000, 7]
    log.producer().append({P0: [Outgoing(b"k", b"v", stamp) for stamp in stamps]})
    assert [record.timestamp for record in records(log, P0)] == stamps
    with pytest.raises(InvalidRequest, match=f"flights-0: record 0 .* timestamp {timestamp_least - 1}"):
        log.producer().append({P0: [Outgoing(b"k", b"v", timestamp_least - 1)]})


def test_headers_come_back_in_order_with_none_and_empty_values(log: Log) -> None:
    headers = (("trace", b"\x00\xff"), ("none", None), ("trace", b""), ("größe", b"1"))
    log.producer().append({P0: out("before")})
    log.producer().append({P0: [Outgoing(b"k", b"v", 1, headers), Outgoing(b"k", b"w", 2)]})
    log.producer().append({P0: out("after")})
    assert [record.headers for record in records(log, P0)] == [(), headers, (), ()]


def test_tombstones_empty_values_and_null_keys_are_told_apart(log: Log) -> None:
    log.producer().append(
        {P0: [Outgoing(b"k", None, 1), Outgoing(b"k", b"", 2), Outgoing(None, b"v", 3), Outgoing(b"", b"v", 4)]}
    )
    found = [(record.key, record.value) for record in records(log, P0)]
    assert found == [(b"k", None), (b"k", b""), (None, b"v"), (b"", b"v")]


def test_plain_tuples_are_accepted(log: Log) -> None:
    plain = [(b"k", b"v", 9, ()), (b"k", None, 9, (("h", b"1"),))]
    log.producer().append({("flights", 0): plain})  # type: ignore[dict-item]
    assert records(log, P0) == [Record(0, 9, b"k", b"v"), Record(1, 9, b"k", None, (("h", b"1"),))]


@pytest.mark.parametrize(
    "bad",
    [
        Outgoing(b"k", b"v", -1),
        Outgoing(b"k", b"v", None),  # type: ignore[arg-type]
        Outgoing("k", b"v", 1),  # type: ignore[arg-type]
        Outgoing(b"k", 5, 1),  # type: ignore[arg-type]
        Outgoing(b"k", b"v", 1, (("h", "text"),)),  # type: ignore[arg-type]
        Outgoing(b"k", b"v", 1, ((5, b"v"),)),  # type: ignore[arg-type]
        (b"k", b"v"),
    ],
)
def test_bad_record_is_refused_and_nothing_is_written(log: Log, bad: Outgoing) -> None:
    writer = log.producer()
    with pytest.raises(InvalidRequest, match="flights-1"):
        writer.append({P0: out("good"), P1: [*out("good"), bad]})
    assert log.reader().bounds([P0, P1]) == {P0: Bounds(0, 0), P1: Bounds(0, 0)}
    assert writer.append({P0: out("a")}) == {P0: 1}


def test_compacted_topic_refuses_records_without_a_key(log: Log) -> None:
    log.admin.create_topic("board", 1, TopicPolicy(frozenset({"compact"})))
    board = TopicPartition("board", 0)
    with pytest.raises(InvalidRequest, match="board-0"):
        log.producer().append({board: [Outgoing(None, b"v", 1)]})
    assert log.reader().bounds([board]) == {board: Bounds(0, 0)}


def test_records_survive_a_reopen(log: Log, reopen: Callable[[], Log]) -> None:
    log.producer().append({P0: out("a", "b")})
    log.close()
    assert values(records(reopen(), P0)) == [b"a", b"b"]


# -- reading ----------------------------------------------------------------------------------------------------------


def test_empty_partition_reports_its_end_once(log: Log) -> None:
    reader = assigned(log, {P0: 0})
    assert reader.fetch(10) == [Fetched(P0, [], 0, True)]
    assert reader.fetch(10) == []


def test_end_is_reported_when_newly_reached_and_again_after_more(log: Log, wait_ms: int) -> None:
    writer = log.producer()
    writer.append({P0: out("a", "b", "c")})
    reader = assigned(log, {P0: 0})
    first, second = reader.fetch(2), reader.fetch(2)
    assert [(found.next_offset, found.at_end) for found in first + second] == [(2, False), (3, True)]
    assert reader.fetch(2) == []
    writer.append({P0: out("d")})
    (third,) = reader.fetch(2, wait_ms)
    assert (values(third.records), third.next_offset, third.at_end) == ([b"d"], 4, True)
    assert reader.fetch(2) == []


def test_end_is_reported_again_after_seeking_to_it(log: Log) -> None:
    end = log.producer().append({P0: out("a")})[P0]
    reader = assigned(log, {P0: 0})
    drain(reader)
    reader.seek(P0, end)
    assert reader.fetch(10) == [Fetched(P0, [], end, True)]


def test_fetch_never_returns_more_than_asked(log: Log) -> None:
    log.producer().append({P0: out(*"abcde"), P1: out(*"fghij")})
    reader = assigned(log, {P0: 0, P1: 0})
    assert [sum(len(found.records) for found in reader.fetch(3)) for _ in range(4)] == [3, 3, 3, 1]
    with pytest.raises(InvalidRequest, match="max_records"):
        reader.fetch(0)


def test_fetch_shares_its_records_between_partitions(log: Log) -> None:
    many = [str(number) for number in range(1_000)]
    log.producer().append({P0: out(*many), P1: out(*many), P2: out("few")})
    reader = assigned(log, {P0: 0, P1: 0, P2: 0})
    counts = {found.source: len(found.records) for found in reader.fetch(300)}
    assert counts[P2] == 1
    assert counts[P0] >= 100
    assert counts[P1] >= 100
    assert sum(counts.values()) == 300


def test_small_fetches_take_partitions_in_turn(log: Log) -> None:
    log.producer().append({each: out(*"abc") for each in (P0, P1, P2)})
    reader = assigned(log, {P0: 0, P1: 0, P2: 0})
    firsts = [reader.fetch(1)[0].source for _ in range(3)]
    assert sorted(firsts) == [P0, P1, P2]


def test_paused_partition_keeps_its_position_until_resumed(log: Log) -> None:
    log.producer().append({P0: out("a", "b"), P1: out("c")})
    reader = assigned(log, {P0: 1, P1: 0})
    reader.pause([P0])
    assert {found.source for found in drain(reader)} == {P1}
    assert reader.assignment() == {P0: 1, P1: 1}
    reader.resume([P0])
    assert [(found.source, values(found.records)) for found in drain(reader)] == [(P0, [b"b"])]


def test_seek_reads_again(log: Log) -> None:
    log.producer().append({P0: out("a", "b", "c")})
    reader = assigned(log, {P0: 0})
    drain(reader)
    reader.seek(P0, 1)
    assert [values(found.records) for found in drain(reader)] == [[b"b", b"c"]]


def test_added_partitions_leave_the_others_as_they_are(log: Log) -> None:
    log.producer().append({P0: out("a", "b"), P1: out("c")})
    reader = assigned(log, {P0: 2})
    reader.pause([P0])
    reader.add({P1: 0})
    assert reader.assignment() == {P0: 2, P1: 0}
    assert {found.source for found in drain(reader)} == {P1}
    reader.resume([P0])
    assert reader.fetch(10) == [Fetched(P0, [], 2, True)]


def test_removed_partition_is_read_no_more(log: Log) -> None:
    log.producer().append({P0: out("a"), P1: out("b")})
    reader = assigned(log, {P0: 0, P1: 0})
    reader.remove([P0, P2])
    assert {found.source for found in drain(reader)} == {P1}
    reader.assign({P0: 0})
    assert reader.assignment() == {P0: 0}


def test_moving_or_pausing_an_unassigned_partition_is_refused(log: Log) -> None:
    reader = assigned(log, {P0: 0})
    for call in (lambda: reader.seek(P1, 0), lambda: reader.pause([P1]), lambda: reader.resume([P1])):
        with pytest.raises(InvalidRequest, match="flights-1"):
            call()
    with pytest.raises(InvalidRequest, match="flights-0"):
        reader.seek(P0, -1)
    assert reader.assignment() == {P0: 0}


def test_position_past_the_end_is_out_of_range(log: Log) -> None:
    log.producer().append({P0: out("a"), P1: out("b")})
    reader = assigned(log, {P0: 0, P1: 5})
    with pytest.raises(StateLost, match=r"flights-1: position 5 .*begin 0 to end 1") as caught:
        drain(reader)
    assert caught.value.reason == "offset-out-of-range"
    assert reader.assignment()[P1] == 5
    reader.remove([P1])
    reader.seek(P0, 0)
    assert [values(found.records) for found in drain(reader)] == [[b"a"]]


def test_position_before_the_begin_is_out_of_range(log: Log, truncate: Callable[[TopicPartition, int], object]) -> None:
    log.producer().append({P0: out(*"abcde")})
    truncate(P0, 3)
    assert log.reader().bounds([P0]) == {P0: Bounds(3, 5)}
    with pytest.raises(StateLost, match=r"flights-0: position 2 .*begin 3 to end 5") as caught:
        assigned(log, {P0: 2}).fetch(10)
    assert caught.value.reason == "offset-out-of-range"
    assert values(records(log, P0, 3)) == [b"d", b"e"]


def test_partition_truncated_to_its_end_is_empty_and_goes_on(
    log: Log, truncate: Callable[[TopicPartition, int], object]
) -> None:
    end = log.producer().append({P0: out("a", "b")})[P0]
    truncate(P0, end)
    assert assigned(log, {P0: end}).fetch(10) == [Fetched(P0, [], end, True)]
    log.producer().append({P0: out("c")})
    assert [record.offset for record in records(log, P0, end)] == [end]


def test_records_below_an_offset_can_be_deleted_and_the_begin_never_moves_back(log: Log) -> None:
    log.producer().append({P0: out(*"abcde"), P1: out("x")})
    log.admin.delete_records({P0: 3})
    log.admin.delete_records({P0: 1})
    assert log.reader().bounds([P0, P1]) == {P0: Bounds(3, 5), P1: Bounds(0, 1)}
    assert values(records(log, P0, 3)) == [b"d", b"e"]
    with pytest.raises(InvalidRequest):
        log.admin.delete_records({P0: 6})


def test_waiting_fetch_comes_back_empty_after_its_timeout(log: Log) -> None:
    reader = assigned(log, {P0: 0})
    drain(reader)
    assert reader.fetch(10, timeout_ms=30) == []


# -- closing ----------------------------------------------------------------------------------------------------------


def test_closed_parts_say_so(log: Log) -> None:
    reader, writer, group = log.reader(), log.producer(), log.group("board")
    reader.assign({P0: 0})
    for part in (reader, writer, group):
        part.close()
        part.close()
    for call in (
        lambda: reader.fetch(1),
        lambda: reader.bounds([P0]),
        lambda: reader.assign({P0: 0}),
        lambda: writer.append({P0: out("a")}),
        lambda: writer.transact({P0: out("a")}),
        lambda: group.join("a"),
        lambda: group.heartbeat("a"),
        lambda: group.view(),
        lambda: group.committed(),
        lambda: group.commit({P0: Committed(1)}),
    ):
        with pytest.raises(Closed):
            call()
    assert log.reader().bounds([P0]) == {P0: Bounds(0, 0)}


def test_closed_log_closes_its_parts(log: Log) -> None:
    reader, admin = log.reader(), log.admin
    reader.assign({P0: 0})
    log.close()
    log.close()
    for call in (
        lambda: reader.fetch(1),
        lambda: admin.topics(),
        lambda: admin.topic_names(),
        lambda: log.admin,
        lambda: log.reader(),
        lambda: log.producer(),
        lambda: log.writer("board-0", group="board", owner="a"),
        lambda: log.group("board"),
    ):
        with pytest.raises(Closed):
            call()


def test_ready_fetch_gives_what_is_at_hand_in_order_and_no_more_than_asked(log: Log, wait_ms: int) -> None:
    log.admin.create_topic("flights", 2, TopicPolicy())
    log.producer().append({P0: out(*"abcdef")})
    reader = assigned(log, {P0: 0, P1: 0})
    came = list(reader.fetch(1, wait_ms)[0].records)
    while len(came) < 6:
        for fetched in reader.fetch_ready(2):
            assert len(fetched.records) <= 2
            assert reader.assignment()[fetched.source] == fetched.next_offset
            came += fetched.records
    assert values(came) == [b"a", b"b", b"c", b"d", b"e", b"f"]
    drain(reader)
    assert reader.fetch_ready(2) == []


def test_ready_fetch_leaves_a_paused_partition_alone(log: Log, wait_ms: int) -> None:
    log.admin.create_topic("flights", 1, TopicPolicy())
    log.producer().append({P0: out(*"abc")})
    reader = assigned(log, {P0: 0})
    assert values(reader.fetch(1, wait_ms)[0].records) == [b"a"]
    reader.pause([P0])
    assert reader.fetch_ready(5) == []
    reader.resume([P0])
    assert values(record for fetched in drain(reader) for record in fetched.records) == [b"b", b"c"]
