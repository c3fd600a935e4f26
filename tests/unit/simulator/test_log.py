"""The faults of the simulated log, and processes that end amid its calls. tests/contract has its right behaviour."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from simulator.calls import DirectCalls, ProcessEnded
from simulator.log import SimLog, SimLogClient
from standfast.replication.log import Committed, GroupCommit, Log, Outgoing, TopicPolicy
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.store.clock import ManualClock
from standfast.store.errors import CommitUnknown, Fenced, StateLost, Unavailable

T = TypeVar("T")
P0, P1 = (TopicPartition("flights", number) for number in range(2))
MINUTE_MS = 60_000


class Scripted(DirectCalls):
    """Direct calls; the next call of a name fails before its effect, or after it."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.before: dict[str, BaseException] = {}
        self.after: dict[str, BaseException] = {}
        self.names: dict[str, None] = {}

    def run(self, name: str, effect: Callable[[], T]) -> T:
        self.names[name] = None
        if name in self.before:
            raise self.before.pop(name)
        found = effect()
        if name in self.after:
            raise self.after.pop(name)
        return found


class World:
    """A log of one style with topic `flights` of two partitions."""

    def __init__(self, style: str) -> None:
        self.clock = ManualClock(1_356_998_400_000)
        self.calls = Scripted(self.clock)
        self.data = SimLog("world", self.clock, self.calls, style=style)
        self.log = self.client()
        self.log.admin.create_topic("flights", 2, TopicPolicy())

    def client(self) -> Log:
        return SimLogClient(self.data)

    def values(self, source: TopicPartition = P0) -> list[bytes | None]:
        """The values that a reader gets now."""
        reader = self.log.reader()
        reader.assign({source: 0})
        return [record.value for fetched in reader.fetch(100) for record in fetched.records]

    def end(self, source: TopicPartition = P0) -> int:
        return self.log.reader().written_ends([source])[source]


@pytest.fixture
def kafka() -> World:
    return World("kafka")


@pytest.fixture
def embedded() -> World:
    return World("embedded")


def out(*values: str) -> list[Outgoing]:
    return [Outgoing(b"k", value.encode(), 1_000) for value in values]


@pytest.mark.parametrize("style", ["embedded", "kafka"])
def test_every_call_that_reads_or_changes_the_log_has_a_name_of_its_own(style: str) -> None:
    world = World(style)
    group, reader = world.log.group("app"), world.log.reader()
    group.join("m")
    group.heartbeat("m")
    group.view()
    writer = world.log.writer("t", group="app", owner="m")
    writer.append({P0: out("a")})
    writer.transact({P0: out("b")})
    reader.assign({P0: 0})
    reader.fetch(1)
    reader.bounds([P0])
    group.commit({P0: Committed(1)})
    group.committed()
    group.leave("m")
    named = {"group.join", "group.heartbeat", "group.view", "group.leave", "log.open_writer", "log.append"}
    named |= {"log.transact", "log.assign", "log.fetch", "log.bounds", "log.commit", "log.committed"}
    assert named <= world.calls.names.keys()
    assert ("log.begin" in world.calls.names) == (style == "kafka")


def test_brokers_that_do_not_answer_are_waited_for_and_then_unavailable(kafka: World) -> None:
    producer = kafka.log.producer()
    kafka.data.stall(4_000)
    kafka.data.timeout_ms = 3_000
    begin_ms = kafka.clock.now_ms
    with pytest.raises(Unavailable, match="the brokers"):
        producer.append({P0: out("a")})
    assert kafka.clock.now_ms - begin_ms == 3_000
    producer.append({P0: out("b")})  # the outage ends within the time of this call
    assert kafka.values() == [b"b"]


def test_leader_that_is_away_stops_only_its_partition(kafka: World) -> None:
    producer, reader = kafka.log.producer(), kafka.log.reader()
    producer.append({P0: out("a"), P1: out("b")})
    reader.assign({P0: 0, P1: 0})
    kafka.data.stall(2 * MINUTE_MS, P0)
    assert [one.source for one in reader.fetch(10)] == [P1]
    producer.append({P1: out("c")})
    with pytest.raises(Unavailable, match="flights-0"):
        producer.append({P0: out("c")})
    with pytest.raises(Unavailable, match="flights-0"):  # after a while the reader says it, too
        reader.fetch(10, 20_000)


def test_lock_that_another_process_holds_stops_writes_and_no_reads(embedded: World) -> None:
    embedded.data.stall(2 * MINUTE_MS)
    with pytest.raises(Unavailable):
        embedded.log.producer().append({P0: out("a")})
    assert embedded.values() == []
    assert embedded.log.lock_holder() is not None
    assert isinstance(embedded.log.trouble(), Unavailable)


@pytest.mark.parametrize("style", ["embedded", "kafka"])
def test_append_whose_answer_is_lost_is_unknown_and_may_be_written(style: str) -> None:
    world = World(style)
    producer = world.log.producer()
    world.calls.after["log.append"] = Unavailable("the answer is lost")
    with pytest.raises(CommitUnknown):
        producer.append({P0: out("a")})
    assert world.values() == [b"a"]


def test_transaction_whose_end_has_no_answer_is_unknown_only_if_it_cannot_be_aborted(kafka: World) -> None:
    writer = kafka.log.writer("t", group="app", owner="m")
    kafka.calls.before["log.transact"] = Unavailable("no answer")
    with pytest.raises(Unavailable) as aborted:
        writer.transact({P0: out("a")})
    assert not isinstance(aborted.value, CommitUnknown)
    kafka.calls.after["log.transact"] = Unavailable("no answer")
    with pytest.raises(CommitUnknown):
        writer.transact({P0: out("b")})
    writer.transact({P0: out("c")})
    assert kafka.values() == [b"b", b"c"]


def test_process_that_ends_in_a_transaction_holds_readers_until_the_coordinator_aborts_it(kafka: World) -> None:
    writer, group = kafka.log.writer("t", group="app", owner="m"), kafka.log.group("app")
    kafka.calls.after["log.begin"] = ProcessEnded()
    with pytest.raises(ProcessEnded):
        writer.transact({P0: out("lost")}, GroupCommit("app", {P1: Committed(7)}))
    kafka.client().producer().append({P0: out("later")})
    assert kafka.log.reader().bounds([P0]) == {P0: Bounds(0, 0)}
    assert kafka.end() == 2
    assert kafka.data.due_ms() == kafka.clock.now_ms + kafka.data.transaction_ms
    assert group.committed([P1]) == {}  # it waited until then
    assert kafka.values() == [b"later"]
    with pytest.raises(Unavailable, match="still the owner"):  # its own time is over
        kafka.data.transaction_ms = 0
        writer.transact({P0: out("lost")})


def test_next_writer_of_an_id_aborts_what_the_last_one_left_open(kafka: World) -> None:
    writer = kafka.log.writer("t", group="app", owner="m")
    kafka.calls.after["log.begin"] = ProcessEnded()
    with pytest.raises(ProcessEnded):
        writer.transact({P0: out("lost")})
    kafka.client().writer("t", group="app", owner="n").transact({P0: out("kept")})
    assert kafka.values() == [b"kept"]
    with pytest.raises(Fenced):
        writer.transact({P0: out("lost")})


def test_writer_that_claims_and_stalls_before_it_fences_finds_a_later_claim(kafka: World) -> None:
    kafka.calls.before["log.open_writer"] = ProcessEnded()
    with pytest.raises(ProcessEnded):
        kafka.log.writer("t", group="app", owner="m")
    assert kafka.client().writer("t", group="app", owner="n").epoch == 2


def test_markers_that_come_late_hold_back_records_and_offsets_and_the_next_transaction(kafka: World) -> None:
    writer, group = kafka.log.writer("t", group="app", owner="m"), kafka.log.group("app")
    kafka.data.marker_delay_ms = 500
    writer.transact({P0: out("a")}, GroupCommit("app", {P1: Committed(3)}))
    assert kafka.values() == []
    reader = kafka.log.reader()
    reader.assign({P0: 0})
    begin_ms = kafka.clock.now_ms
    assert group.committed() == {P1: Committed(3)}
    assert kafka.clock.now_ms > begin_ms
    assert [len(one.records) for one in reader.fetch(10)] == [1]
    writer.transact({P0: out("b")})
    writer.transact({P0: out("c")})
    kafka.clock.advance(500)
    assert kafka.values() == [b"a", b"b", b"c"]


def test_lost_marker_holds_readers_until_an_operator_ends_it(kafka: World) -> None:
    kafka.data.lose_marker(P0)
    kafka.log.writer("t", group="app", owner="m").transact({P0: out("lost"), P1: out("b")})
    kafka.log.producer().append({P0: out("later")})
    kafka.clock.advance(10 * MINUTE_MS)
    assert (kafka.values(P0), kafka.values(P1), kafka.end(P0)) == ([], [b"b"], 2)
    kafka.data.end_hanging()
    assert kafka.values(P0) == [b"later"]


def test_offsets_whose_transaction_never_ends_are_open_and_others_are_known(kafka: World) -> None:
    group = kafka.log.group("app")
    group.commit({P0: Committed(1), P1: Committed(1)})
    kafka.data.lose_offset_ends("app")
    kafka.log.producer().transact({}, GroupCommit("app", {P0: Committed(2)}))
    with pytest.raises(Unavailable, match="find-hanging") as hanging:
        group.committed()
    assert hanging.value.partitions == {P0}  # type: ignore[attr-defined]
    assert group.committed(only=lambda at: at == P1) == {P1: Committed(1)}
    kafka.data.end_hanging()
    assert group.committed() == {P0: Committed(1), P1: Committed(1)}


def test_records_are_held_back_from_readers_and_appends_are_written_twice(kafka: World) -> None:
    producer = kafka.log.producer()
    producer.append({P0: out("a")})
    kafka.data.hold(P0, 1_000)
    kafka.data.duplicate_appends = 1
    assert producer.append({P0: out("b")}) == {P0: 3}
    assert producer.append({P0: out("c")}) == {P0: 4}
    assert kafka.values() == [b"a"]
    kafka.clock.advance(1_000)
    assert kafka.values() == [b"a", b"b", b"b", b"c"]


def test_tail_that_is_lost_puts_readers_beyond_the_end(kafka: World) -> None:
    kafka.log.producer().append({P0: out("a", "b", "c")})
    reader = kafka.log.reader()
    reader.assign({P0: 3})
    kafka.data.partition(P0).cut(1)
    with pytest.raises(StateLost) as lost:
        reader.fetch(10)
    assert lost.value.reason == "offset-out-of-range"
    assert kafka.values() == [b"a"]


def test_reader_may_take_a_recreated_topic_for_the_old_one_for_a_while(kafka: World) -> None:
    kafka.log.producer().append({P0: out("a")})
    kafka.data.id_check_ms = 1_000
    reader = kafka.log.reader()
    reader.assign({P0: 0})
    reader.fetch(10)
    kafka.data.recreate_topic("flights")
    kafka.log.producer().append({P0: out("new", "newer")})
    assert [record.value for one in reader.fetch(10) for record in one.records] == [b"newer"]
    kafka.clock.advance(1_000)
    with pytest.raises(StateLost) as lost:
        reader.fetch(10)
    assert lost.value.reason == "topic-recreated"


def test_cleaner_keeps_a_tombstone_for_its_time_after_it_came(kafka: World) -> None:
    kafka.log.admin.create_topic("board", 1, TopicPolicy(frozenset({"compact"}), delete_retention_ms=1_000))
    board = TopicPartition("board", 0)
    kafka.log.producer().append({board: [*out("a", "b"), Outgoing(b"k", None, 1_000), Outgoing(b"l", b"c", 1_000)]})
    partition = kafka.data.partition(board)
    assert partition.clean_up(kafka.clock.now_ms, 4) == 2
    kafka.clock.advance(999)
    assert partition.clean_up(kafka.clock.now_ms, 4) == 0
    kafka.clock.advance(1)
    assert partition.clean_up(kafka.clock.now_ms, 4) == 1
    assert kafka.values(board) == [b"c"]
    assert kafka.log.reader().bounds([board]) == {board: Bounds(0, 4)}


def test_cleaner_stays_below_a_transaction_that_is_open(kafka: World) -> None:
    kafka.log.admin.create_topic("board", 1, TopicPolicy(frozenset({"compact"}), delete_retention_ms=1_000))
    board = TopicPartition("board", 0)
    kafka.log.producer().append({board: out("a")})
    partition = kafka.data.partition(board)
    partition.open[7] = partition.end
    kafka.log.producer().append({board: [Outgoing(b"k", None, 1_000)]})
    assert partition.clean_up(kafka.clock.now_ms, 2) == 0
    kafka.clock.advance(1_000)
    assert partition.clean_up(kafka.clock.now_ms, 2) == 0, "its time begins with the first pass over it"
    del partition.open[7]
    assert partition.clean_up(kafka.clock.now_ms, 2) == 1
    assert kafka.data.partition(board).values == [None]
