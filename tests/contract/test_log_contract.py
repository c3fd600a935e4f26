"""What every log must do, whoever implements the port of `standfast.replication.log`.

Rules of this file: it speaks to the port only. A log under test brings itself as one more parameter of `bench`: how to
open it again (as another process would), how to let time pass, and how to remove records from its head. Offsets are
compared for order, not for contiguity, since a log may keep markers between records. What only one log can do is tested
beside that log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

from standfast.replication.embedded import EmbeddedLog
from standfast.replication.log import (
    Committed,
    Fetched,
    GroupCommit,
    GroupView,
    Log,
    LogReader,
    Member,
    Outgoing,
    Record,
    TopicPolicy,
)
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.store.clock import ManualClock
from standfast.store.errors import Closed, Fenced, Held, InvalidRequest, StateLost, UnknownStore

P0, P1, P2 = (TopicPartition("flights", number) for number in range(3))
LEASE_MS = 3_000


class Bench(NamedTuple):
    """A log with topic `flights` of 3 partitions, and what a test may do beside the port."""

    log: Log
    reopen: Callable[[], Log]
    pass_time_ms: Callable[[int], None]
    truncate: Callable[[TopicPartition, int], object]


class MakeBench(Protocol):
    """Sets up one kind of log in an empty folder."""

    def __call__(self, folder: Path) -> tuple[Bench, Callable[[], None]]: ...


def embedded(folder: Path) -> tuple[Bench, Callable[[], None]]:
    """The embedded log, with a clock that moves only when told to."""
    clock = ManualClock(1_356_998_400_000)
    opened: list[EmbeddedLog] = []

    def reopen() -> EmbeddedLog:
        opened.append(EmbeddedLog(folder / "log.sqlite", clock=clock))
        return opened[-1]

    def close_all() -> None:
        for log in opened:
            log.close()

    log = reopen()
    return Bench(log, reopen, clock.advance, log.truncate), close_all


@pytest.fixture(params=[embedded])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    make: MakeBench = request.param
    made, close = make(tmp_path)
    made.log.admin.create_topic("flights", 3, TopicPolicy())
    yield made
    close()


def out(*values: str, at_ms: int = 1_000) -> list[Outgoing]:
    return [Outgoing(f"key-{value}".encode(), value.encode(), at_ms) for value in values]


def assigned(log: Log, positions: dict[TopicPartition, int]) -> LogReader:
    reader = log.reader()
    reader.assign(positions)
    return reader


def drain(reader: LogReader, max_records: int = 100) -> list[Fetched]:
    """Everything there is, fetch by fetch."""
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


def test_created_topic_is_described_with_its_policy(bench: Bench) -> None:
    policy = TopicPolicy(frozenset({"compact", "delete"}), 86_400_000, 3_600_000, 500)
    made = bench.log.admin.create_topic("board", 4, policy)
    assert (made.name, made.partitions, made.policy) == ("board", 4, policy)
    assert bench.log.admin.describe_topic("board") == made
    assert [info.name for info in bench.log.admin.topics()] == ["board", "flights"]
    assert bench.log.admin.describe_topic("boards") is None


def test_creating_a_topic_twice_leaves_it_unchanged(bench: Bench) -> None:
    before = bench.log.admin.describe_topic("flights")
    again = bench.log.admin.create_topic("flights", 7, TopicPolicy(frozenset({"compact"})))
    assert again == before
    assert again.partitions == 3


@pytest.mark.parametrize("name", ["", ".", "../x", "a/b", "x" * 250])
def test_bad_topic_name_is_refused(bench: Bench, name: str) -> None:
    with pytest.raises(InvalidRequest, match="topic name"):
        bench.log.admin.create_topic(name, 1, TopicPolicy())


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
def test_bad_topic_settings_are_refused_and_nothing_is_created(
    bench: Bench, partitions: int, policy: TopicPolicy
) -> None:
    with pytest.raises(InvalidRequest, match="bad-one"):
        bench.log.admin.create_topic("bad-one", partitions, policy)
    assert bench.log.admin.describe_topic("bad-one") is None


def test_recreated_topic_has_a_new_id_and_no_records(bench: Bench) -> None:
    first = bench.log.admin.describe_topic("flights")
    bench.log.producer().append({P0: out("a")})
    bench.log.group("board").commit({P0: Committed(1)})
    bench.log.admin.delete_topic("flights")
    assert bench.log.admin.describe_topic("flights") is None
    second = bench.log.admin.create_topic("flights", 3, TopicPolicy())
    assert first is not None
    assert second.topic_id != first.topic_id
    assert bench.log.reader().bounds([P0]) == {P0: Bounds(0, 0)}
    assert bench.log.group("board").committed() == {}


def test_reader_notices_that_its_topic_was_recreated(bench: Bench) -> None:
    bench.log.producer().append({P0: out("a")})
    reader = assigned(bench.log, {P0: 0})
    assert len(drain(reader)) == 1
    bench.log.admin.delete_topic("flights")
    with pytest.raises(UnknownStore, match="flights"):
        reader.fetch(10)
    bench.log.admin.create_topic("flights", 3, TopicPolicy())
    with pytest.raises(StateLost, match="flights-0") as caught:
        reader.fetch(10)
    assert caught.value.reason == "topic-recreated"


def test_unknown_topic_or_partition_names_what_exists(bench: Bench) -> None:
    absent, outside = TopicPartition("flihgts", 0), TopicPartition("flights", 3)
    for source, hint in ((absent, "'flights'"), (outside, "0 to 2")):
        with pytest.raises(UnknownStore, match=hint):
            bench.log.producer().append({source: out("a")})
        with pytest.raises(UnknownStore, match=hint):
            bench.log.reader().assign({source: 0})
        with pytest.raises(UnknownStore, match=hint):
            bench.log.reader().bounds([source])
        with pytest.raises(UnknownStore, match=hint):
            bench.log.group("board").commit({source: Committed(0)})
    with pytest.raises(UnknownStore, match="'flights'"):
        bench.log.admin.delete_topic("flihgts")


# -- records ----------------------------------------------------------------------------------------------------------


def test_offsets_begin_at_zero_and_increase(bench: Bench) -> None:
    writer = bench.log.producer()
    assert writer.append({P0: out("a", "b", "c")}) == {P0: 3}
    assert writer.append({P0: out("d")}) == {P0: 4}
    found = records(bench.log, P0)
    assert [record.offset for record in found] == [0, 1, 2, 3]
    assert values(found) == [b"a", b"b", b"c", b"d"]
    assert bench.log.reader().bounds([P0, P1]) == {P0: Bounds(0, 4), P1: Bounds(0, 0)}


@pytest.mark.parametrize("count", [1, 9, 10, 49, 50, 51, 60, 1_000, 5_011])
def test_batches_of_any_size_keep_their_order(bench: Bench, count: int) -> None:
    batch = [Outgoing(b"%d" % number, b"value-%d" % number, number) for number in range(count)]
    assert bench.log.producer().append({P0: batch}) == {P0: count}
    found = records(bench.log, P0)
    assert found == [Record(number, number, b"%d" % number, b"value-%d" % number) for number in range(count)]
    assert all(type(record) is Record for record in found)


def test_one_append_may_write_several_partitions(bench: Bench) -> None:
    assert bench.log.producer().append({P0: out("a"), P1: out("b", "c"), P2: []}) == {P0: 1, P1: 2, P2: 0}
    assert values(records(bench.log, P0)) == [b"a"]
    assert values(records(bench.log, P1)) == [b"b", b"c"]
    assert records(bench.log, P2) == []


def test_timestamps_are_kept_as_they_are(bench: Bench) -> None:
    stamps = [5, 0, 1_356_998_400_000, 7]
    bench.log.producer().append({P0: [Outgoing(b"k", b"v", stamp) for stamp in stamps]})
    assert [record.timestamp for record in records(bench.log, P0)] == stamps


def test_headers_come_back_in_order_with_none_and_empty_values(bench: Bench) -> None:
    headers = (("trace", b"\x00\xff"), ("none", None), ("trace", b""), ("größe", b"1"))
    bench.log.producer().append({P0: out("before")})
    bench.log.producer().append({P0: [Outgoing(b"k", b"v", 1, headers), Outgoing(b"k", b"w", 2)]})
    bench.log.producer().append({P0: out("after")})
    assert [record.headers for record in records(bench.log, P0)] == [(), headers, (), ()]


def test_tombstones_empty_values_and_null_keys_are_told_apart(bench: Bench) -> None:
    bench.log.producer().append(
        {P0: [Outgoing(b"k", None, 1), Outgoing(b"k", b"", 2), Outgoing(None, b"v", 3), Outgoing(b"", b"v", 4)]}
    )
    found = [(record.key, record.value) for record in records(bench.log, P0)]
    assert found == [(b"k", None), (b"k", b""), (None, b"v"), (b"", b"v")]


def test_plain_tuples_are_accepted(bench: Bench) -> None:
    plain = [(b"k", b"v", 9, ()), (b"k", None, 9, (("h", b"1"),))]
    bench.log.producer().append({("flights", 0): plain})  # type: ignore[dict-item]
    assert records(bench.log, P0) == [Record(0, 9, b"k", b"v"), Record(1, 9, b"k", None, (("h", b"1"),))]


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
def test_bad_record_is_refused_and_nothing_is_written(bench: Bench, bad: Outgoing) -> None:
    writer = bench.log.producer()
    with pytest.raises(InvalidRequest, match="flights-1"):
        writer.append({P0: out("good"), P1: [*out("good"), bad]})
    assert bench.log.reader().bounds([P0, P1]) == {P0: Bounds(0, 0), P1: Bounds(0, 0)}
    assert writer.append({P0: out("a")}) == {P0: 1}


def test_compacted_topic_refuses_records_without_a_key(bench: Bench) -> None:
    bench.log.admin.create_topic("board", 1, TopicPolicy(frozenset({"compact"})))
    board = TopicPartition("board", 0)
    with pytest.raises(InvalidRequest, match="board-0"):
        bench.log.producer().append({board: [Outgoing(None, b"v", 1)]})
    assert bench.log.reader().bounds([board]) == {board: Bounds(0, 0)}


def test_records_survive_a_reopen(bench: Bench) -> None:
    bench.log.producer().append({P0: out("a", "b")})
    bench.log.close()
    assert values(records(bench.reopen(), P0)) == [b"a", b"b"]


# -- reading ----------------------------------------------------------------------------------------------------------


def test_empty_partition_reports_its_end_once(bench: Bench) -> None:
    reader = assigned(bench.log, {P0: 0})
    assert reader.fetch(10) == [Fetched(P0, [], 0, True)]
    assert reader.fetch(10) == []


def test_end_is_reported_when_newly_reached_and_again_after_more(bench: Bench) -> None:
    writer = bench.log.producer()
    writer.append({P0: out("a", "b", "c")})
    reader = assigned(bench.log, {P0: 0})
    first, second = reader.fetch(2), reader.fetch(2)
    assert [(found.next_offset, found.at_end) for found in first + second] == [(2, False), (3, True)]
    assert reader.fetch(2) == []
    writer.append({P0: out("d")})
    (third,) = reader.fetch(2)
    assert (values(third.records), third.next_offset, third.at_end) == ([b"d"], 4, True)
    assert reader.fetch(2) == []


def test_end_is_reported_again_after_seeking_to_it(bench: Bench) -> None:
    end = bench.log.producer().append({P0: out("a")})[P0]
    reader = assigned(bench.log, {P0: 0})
    drain(reader)
    reader.seek(P0, end)
    assert reader.fetch(10) == [Fetched(P0, [], end, True)]


def test_fetch_never_returns_more_than_asked(bench: Bench) -> None:
    bench.log.producer().append({P0: out(*"abcde"), P1: out(*"fghij")})
    reader = assigned(bench.log, {P0: 0, P1: 0})
    for _ in range(4):
        assert sum(len(found.records) for found in reader.fetch(3)) == 3 or reader.fetch(3) == []
    with pytest.raises(InvalidRequest, match="max_records"):
        reader.fetch(0)


def test_fetch_shares_its_records_between_partitions(bench: Bench) -> None:
    many = [str(number) for number in range(1_000)]
    bench.log.producer().append({P0: out(*many), P1: out(*many), P2: out("few")})
    reader = assigned(bench.log, {P0: 0, P1: 0, P2: 0})
    counts = {found.source: len(found.records) for found in reader.fetch(300)}
    assert counts[P2] == 1
    assert counts[P0] >= 100
    assert counts[P1] >= 100
    assert sum(counts.values()) == 300


def test_small_fetches_take_partitions_in_turn(bench: Bench) -> None:
    bench.log.producer().append({each: out(*"abc") for each in (P0, P1, P2)})
    reader = assigned(bench.log, {P0: 0, P1: 0, P2: 0})
    firsts = [reader.fetch(1)[0].source for _ in range(3)]
    assert sorted(firsts) == [P0, P1, P2]


def test_paused_partition_keeps_its_position_until_resumed(bench: Bench) -> None:
    bench.log.producer().append({P0: out("a", "b"), P1: out("c")})
    reader = assigned(bench.log, {P0: 1, P1: 0})
    reader.pause([P0])
    assert {found.source for found in drain(reader)} == {P1}
    assert reader.assignment() == {P0: 1, P1: 1}
    reader.resume([P0])
    assert [(found.source, values(found.records)) for found in drain(reader)] == [(P0, [b"b"])]


def test_seek_reads_again(bench: Bench) -> None:
    bench.log.producer().append({P0: out("a", "b", "c")})
    reader = assigned(bench.log, {P0: 0})
    drain(reader)
    reader.seek(P0, 1)
    assert [values(found.records) for found in drain(reader)] == [[b"b", b"c"]]


def test_added_partitions_leave_the_others_as_they_are(bench: Bench) -> None:
    bench.log.producer().append({P0: out("a", "b"), P1: out("c")})
    reader = assigned(bench.log, {P0: 2})
    reader.pause([P0])
    reader.add({P1: 0})
    assert reader.assignment() == {P0: 2, P1: 0}
    assert {found.source for found in drain(reader)} == {P1}
    reader.resume([P0])
    assert reader.fetch(10) == [Fetched(P0, [], 2, True)]


def test_removed_partition_is_read_no_more(bench: Bench) -> None:
    bench.log.producer().append({P0: out("a"), P1: out("b")})
    reader = assigned(bench.log, {P0: 0, P1: 0})
    reader.remove([P0, P2])
    assert {found.source for found in drain(reader)} == {P1}
    reader.assign({P0: 0})
    assert reader.assignment() == {P0: 0}


def test_moving_or_pausing_an_unassigned_partition_is_refused(bench: Bench) -> None:
    reader = assigned(bench.log, {P0: 0})
    for call in (lambda: reader.seek(P1, 0), lambda: reader.pause([P1]), lambda: reader.resume([P1])):
        with pytest.raises(InvalidRequest, match="flights-1"):
            call()
    with pytest.raises(InvalidRequest, match="flights-0"):
        reader.seek(P0, -1)
    assert reader.assignment() == {P0: 0}


def test_position_past_the_end_is_out_of_range(bench: Bench) -> None:
    bench.log.producer().append({P0: out("a"), P1: out("b")})
    reader = assigned(bench.log, {P0: 0, P1: 5})
    with pytest.raises(StateLost, match=r"flights-1: position 5 .*begin 0 to end 1") as caught:
        drain(reader)
    assert caught.value.reason == "offset-out-of-range"
    assert reader.assignment()[P1] == 5
    reader.remove([P1])
    reader.seek(P0, 0)
    assert [values(found.records) for found in drain(reader)] == [[b"a"]]


def test_position_before_the_begin_is_out_of_range(bench: Bench) -> None:
    bench.log.producer().append({P0: out(*"abcde")})
    bench.truncate(P0, 3)
    assert bench.log.reader().bounds([P0]) == {P0: Bounds(3, 5)}
    with pytest.raises(StateLost, match=r"flights-0: position 2 .*begin 3 to end 5") as caught:
        assigned(bench.log, {P0: 2}).fetch(10)
    assert caught.value.reason == "offset-out-of-range"
    assert values(records(bench.log, P0, 3)) == [b"d", b"e"]


def test_partition_truncated_to_its_end_is_empty_and_goes_on(bench: Bench) -> None:
    end = bench.log.producer().append({P0: out("a", "b")})[P0]
    bench.truncate(P0, end)
    assert assigned(bench.log, {P0: end}).fetch(10) == [Fetched(P0, [], end, True)]
    bench.log.producer().append({P0: out("c")})
    assert [record.offset for record in records(bench.log, P0, end)] == [end]


def test_waiting_fetch_comes_back_empty_after_its_timeout(bench: Bench) -> None:
    reader = assigned(bench.log, {P0: 0})
    drain(reader)
    assert reader.fetch(10, timeout_ms=30) == []


# -- writers ----------------------------------------------------------------------------------------------------------


def test_newer_writer_fences_the_older_in_append_and_transact(bench: Bench) -> None:
    older = bench.log.writer("board-0", group="board", owner="a")
    older.append({P0: out("a")})
    newer = bench.reopen().writer("board-0", group="board", owner="b")
    assert newer.epoch > older.epoch
    end = bench.log.reader().bounds([P0])
    with pytest.raises(Fenced, match="board-0") as caught:
        older.append({P0: out("lost")})
    assert all(str(part) in str(caught.value) for part in (older.epoch, newer.epoch, "'b'"))
    with pytest.raises(Fenced, match="board-0"):
        older.transact({P0: out("lost")}, GroupCommit("board", {P1: Committed(7)}))
    assert bench.log.reader().bounds([P0]) == end
    assert bench.log.group("board").committed() == {}
    newer.append({P0: out("b")})
    assert values(records(bench.log, P0)) == [b"a", b"b"]


def test_writers_of_other_ids_do_not_fence_each_other(bench: Bench) -> None:
    one = bench.log.writer("board-0", group="board", owner="a")
    two = bench.log.writer("board-1", group="board", owner="a")
    assert one.epoch > 0
    one.append({P0: out("a")})
    two.append({P0: out("b")})
    assert values(records(bench.log, P0)) == [b"a", b"b"]


def test_producer_is_not_fenced(bench: Bench) -> None:
    producer = bench.log.producer()
    bench.log.producer().append({P0: out("a")})
    bench.log.writer("board-0", group="board", owner="a")
    producer.append({P0: out("b")})
    producer.transact({P0: out("c")}, GroupCommit("feeder", {P1: Committed(0, "sent")}))
    assert producer.epoch == 0
    assert values(records(bench.log, P0)) == [b"a", b"b", b"c"]
    assert bench.log.group("feeder").committed() == {P1: Committed(0, "sent")}


def test_transaction_writes_records_and_offsets_together(bench: Bench) -> None:
    writer = bench.log.writer("board-0", group="board", owner="a")
    ends = writer.transact({P0: out("a", "b"), P1: out("c")}, GroupCommit("board", {P2: Committed(4, "cut")}))
    bounds = bench.log.reader().bounds([P0, P1])
    assert all(2 - number <= ends[each] <= bounds[each].end for number, each in enumerate((P0, P1)))
    assert values(records(bench.log, P0)) == [b"a", b"b"]
    assert values(records(bench.log, P1)) == [b"c"]
    assert bench.log.group("board").committed() == {P2: Committed(4, "cut")}


@pytest.mark.parametrize("bad", [TopicPartition("flights", 9), TopicPartition("absent", 0)])
def test_transaction_with_one_bad_partition_changes_nothing(bench: Bench, bad: TopicPartition) -> None:
    writer = bench.log.writer("board-0", group="board", owner="a")
    commit = GroupCommit("board", {P2: Committed(4)})
    with pytest.raises(UnknownStore):
        writer.transact({P0: out("a"), bad: out("b"), P1: out("c")}, commit)
    with pytest.raises(UnknownStore):
        writer.transact({P0: out("a")}, GroupCommit("board", {P2: Committed(4), bad: Committed(1)}))
    with pytest.raises(InvalidRequest, match="metadata"):
        writer.transact({P0: out("a")}, GroupCommit("board", {P2: Committed(4, "x" * 4_097)}))
    assert bench.log.reader().bounds([P0, P1]) == {P0: Bounds(0, 0), P1: Bounds(0, 0)}
    assert bench.log.group("board").committed() == {}
    writer.transact({P0: out("a")}, commit)
    assert values(records(bench.log, P0)) == [b"a"]


def test_transaction_may_commit_offsets_alone(bench: Bench) -> None:
    writer = bench.log.writer("board-0", group="board", owner="a")
    assert writer.transact({}, GroupCommit("board", {P0: Committed(2, "m")})) == {}
    assert bench.log.group("board").committed() == {P0: Committed(2, "m")}


def test_writer_if_free_is_held_while_the_owner_lives(bench: Bench) -> None:
    group = bench.log.group("board")
    group.join("a", lease_ms=LEASE_MS)
    first = bench.log.writer("board-0", group="board", owner="a")
    bench.pass_time_ms(1_000)
    with pytest.raises(Held, match=r"'a'.* 2000 ms"):
        bench.log.writer("board-0", group="board", owner="b", if_free=True)
    first.append({P0: out("still mine")})
    again = bench.log.writer("board-0", group="board", owner="a", if_free=True)
    bench.pass_time_ms(2_000)
    taken = bench.log.writer("board-0", group="board", owner="b", if_free=True)
    assert first.epoch < again.epoch < taken.epoch
    with pytest.raises(Fenced):
        again.append({P0: out("lost")})


def test_writer_is_free_when_nobody_or_a_stranger_owns_it(bench: Bench) -> None:
    bench.log.group("board").join("b", lease_ms=LEASE_MS)
    assert bench.log.writer("board-0", group="board", owner="b", if_free=True).epoch > 0
    bench.log.group("board").leave("b")
    bench.log.writer("board-0", group="board", owner="c", if_free=True)
    bench.log.writer("board-0", group="board", owner="d", if_free=True)  # c owns it, but is no member
    assert bench.log.group("board").owners() == {"board-0": "d"}


def test_owners_are_those_of_the_group(bench: Bench) -> None:
    bench.log.writer("board-0", group="board", owner="a")
    bench.log.writer("board-1", group="board", owner="a")
    bench.log.writer("board-1", group="board", owner="b")
    bench.log.writer("other-0", group="other", owner="c")
    assert bench.log.group("board").owners() == {"board-0": "a", "board-1": "b"}
    assert bench.log.group("nobody").owners() == {}


# -- groups -----------------------------------------------------------------------------------------------------------


def test_committed_offsets_are_kept_with_their_metadata(bench: Bench) -> None:
    group = bench.log.group("board")
    assert group.committed() == {}
    group.commit({P0: Committed(3, "größe " + "x" * 4_000), P1: Committed(0)})
    group.commit({P0: Committed(5, "later")})
    again = bench.reopen().group("board")
    assert again.committed() == {P0: Committed(5, "later"), P1: Committed(0, "")}
    assert again.committed([P0, P2]) == {P0: Committed(5, "later")}
    assert bench.log.group("other").committed() == {}


@pytest.mark.parametrize("bad", [Committed(-1), Committed(1, "x" * 4_097), Committed(1, "ü" * 2_049)])
def test_bad_commit_is_refused_and_changes_nothing(bench: Bench, bad: Committed) -> None:
    group = bench.log.group("board")
    with pytest.raises(InvalidRequest, match="flights-1"):
        group.commit({P0: Committed(1), P1: bad})
    assert group.committed() == {}


def test_members_are_listed_by_id_and_the_first_leads(bench: Bench) -> None:
    group, other = bench.log.group("board"), bench.reopen().group("board")
    assert group.view() == GroupView(0, None, ())
    group.join("b", "warm=1", lease_ms=LEASE_MS)
    view = other.join("a", "warm=2", lease_ms=LEASE_MS)
    assert view.leader == "a"
    assert view.members == (Member("a", "warm=2"), Member("b", "warm=1"))
    assert group.view() == view
    assert bench.log.group("other").view().members == ()


def test_generation_grows_with_every_change_of_the_live_members(bench: Bench) -> None:
    group = bench.log.group("board")
    one = group.join("a", lease_ms=LEASE_MS)
    two = group.join("b", lease_ms=LEASE_MS)
    same = group.join("b", "other metadata", lease_ms=LEASE_MS)
    assert one.generation < two.generation == same.generation == group.heartbeat("a").generation
    assert same.members == (Member("a", ""), Member("b", "other metadata"))
    group.leave("b")
    left = group.view()
    assert left.generation > same.generation
    group.leave("b")
    assert group.view() == left


def test_member_whose_lease_ran_out_is_gone(bench: Bench) -> None:
    group = bench.log.group("board")
    group.join("a", lease_ms=LEASE_MS)
    before = group.join("b", lease_ms=LEASE_MS)
    bench.pass_time_ms(LEASE_MS - 1)
    assert group.heartbeat("b") == before
    bench.pass_time_ms(1)
    seen = group.view()
    assert seen.members == (Member("b", ""),)
    assert seen.leader == "b"
    assert seen.generation > before.generation
    with pytest.raises(Fenced, match="'a'"):
        group.heartbeat("a")
    assert group.view() == seen == group.heartbeat("b")
    assert group.join("a", lease_ms=LEASE_MS).generation > seen.generation


def test_heartbeat_of_one_who_never_joined_is_fenced(bench: Bench) -> None:
    with pytest.raises(Fenced, match="'ghost'"):
        bench.log.group("board").heartbeat("ghost")


def test_heartbeat_keeps_a_member_alive(bench: Bench) -> None:
    group = bench.log.group("board")
    group.join("a", lease_ms=LEASE_MS)
    for _ in range(5):
        bench.pass_time_ms(LEASE_MS - 1)
        assert group.heartbeat("a").leader == "a"


# -- closing ----------------------------------------------------------------------------------------------------------


def test_closed_parts_say_so(bench: Bench) -> None:
    reader, writer, group = bench.log.reader(), bench.log.producer(), bench.log.group("board")
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
    assert bench.log.reader().bounds([P0]) == {P0: Bounds(0, 0)}


def test_closed_log_closes_its_parts(bench: Bench) -> None:
    reader, admin = bench.log.reader(), bench.log.admin
    reader.assign({P0: 0})
    bench.log.close()
    bench.log.close()
    for call in (
        lambda: reader.fetch(1),
        lambda: admin.topics(),
        lambda: bench.log.admin,
        lambda: bench.log.reader(),
        lambda: bench.log.producer(),
        lambda: bench.log.writer("board-0", group="board", owner="a"),
        lambda: bench.log.group("board"),
    ):
        with pytest.raises(Closed):
            call()
