"""The contract of every log for writers, fencing, transactions and groups. Companion of `test_log_contract.py`.

Rules of this file: it uses the port only; the logs under test stand in `conftest.py`. Offsets after a transaction
are compared for order, not for contiguity, since a log may keep markers between records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from standfast.replication.leases import Busy
from standfast.replication.log import (
    Committed,
    GroupCommit,
    GroupView,
    Log,
    Member,
    Outgoing,
)
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.store.errors import Fenced, Held, InvalidRequest, UnknownStore
from support.waits import until

P0, P1, P2 = (TopicPartition("flights", number) for number in range(3))
LEASE_MS = 3_000
Settle = Callable[[Mapping[TopicPartition, int]], None]


def out(*values: str, at_ms: int = 1_000) -> list[Outgoing]:
    return [Outgoing(f"key-{value}".encode(), value.encode(), at_ms) for value in values]


def values(log: Log, source: TopicPartition) -> list[bytes | None]:
    """Values of all records of a partition."""
    reader = log.reader()
    reader.assign({source: 0})
    found: list[bytes | None] = []
    while batch := reader.fetch(100):
        found += [record.value for fetched in batch for record in fetched.records]
    reader.close()
    return found


# -- writers ----------------------------------------------------------------------------------------------------------


def test_newer_writer_fences_the_older_in_append_and_transact(log: Log, reopen: Callable[[], Log]) -> None:
    older = log.writer("board-0", group="board", owner="a")
    older.append({P0: out("a")})
    newer = reopen().writer("board-0", group="board", owner="b")
    assert newer.epoch > older.epoch
    end = log.reader().bounds([P0])
    with pytest.raises(Fenced, match="board-0") as caught:
        older.append({P0: out("lost")})
    assert all(str(part) in str(caught.value) for part in (older.epoch, newer.epoch, "'b'"))
    with pytest.raises(Fenced, match="board-0"):
        older.transact({P0: out("lost")}, GroupCommit("board", {P1: Committed(7)}))
    assert log.reader().bounds([P0]) == end
    assert log.group("board").committed() == {}
    newer.append({P0: out("b")})
    assert values(log, P0) == [b"a", b"b"]


def test_writers_of_other_ids_do_not_fence_each_other(log: Log) -> None:
    one = log.writer("board-0", group="board", owner="a")
    two = log.writer("board-1", group="board", owner="a")
    assert one.epoch > 0
    one.append({P0: out("a")})
    two.append({P0: out("b")})
    assert values(log, P0) == [b"a", b"b"]


def test_preparing_writers_fences_nobody_before_they_are_opened(log: Log) -> None:
    older = log.writer("board-0", group="board", owner="a")
    older.transact({P0: out("a")})
    log.prepare(["board-0", "board-1", "board-2"])
    older.transact({P0: out("b")})
    log.prepare(["board-1", "board-0"])
    newer = log.writer("board-0", group="board", owner="b")
    assert newer.epoch > older.epoch
    with pytest.raises(Fenced, match="board-0"):
        older.transact({P0: out("lost")})
    newer.transact({P0: out("c")})
    log.prepare([])
    log.writer("board-1", group="board", owner="b").transact({P1: out("d")})
    assert [values(log, P0), values(log, P1)] == [[b"a", b"b", b"c"], [b"d"]]


def test_producer_is_not_fenced(log: Log, settle: Settle) -> None:
    producer = log.producer()
    log.producer().append({P0: out("a")})
    log.writer("board-0", group="board", owner="a")
    producer.append({P0: out("b")})
    settle(producer.transact({P0: out("c")}, GroupCommit("feeder", {P1: Committed(0, "sent")})))
    assert producer.epoch == 0
    assert values(log, P0) == [b"a", b"b", b"c"]
    assert log.group("feeder").committed() == {P1: Committed(0, "sent")}


def test_transaction_writes_records_and_offsets_together(log: Log, settle: Settle) -> None:
    writer = log.writer("board-0", group="board", owner="a")
    ends = writer.transact({P0: out("a", "b"), P1: out("c")}, GroupCommit("board", {P2: Committed(4, "cut")}))
    settle(ends)
    bounds = log.reader().bounds([P0, P1])
    assert all(2 - number <= ends[each] <= bounds[each].end for number, each in enumerate((P0, P1)))
    assert values(log, P0) == [b"a", b"b"]
    assert values(log, P1) == [b"c"]
    assert log.group("board").committed() == {P2: Committed(4, "cut")}


@pytest.mark.parametrize("bad", [TopicPartition("flights", 9), TopicPartition("absent", 0)])
def test_transaction_with_one_bad_partition_changes_nothing(log: Log, bad: TopicPartition, settle: Settle) -> None:
    writer = log.writer("board-0", group="board", owner="a")
    commit = GroupCommit("board", {P2: Committed(4)})
    with pytest.raises(UnknownStore):
        writer.transact({P0: out("a"), bad: out("b"), P1: out("c")}, commit)
    with pytest.raises(InvalidRequest, match="metadata"):
        writer.transact({P0: out("a")}, GroupCommit("board", {P2: Committed(4, "x" * 4_097)}))
    assert log.reader().bounds([P0, P1]) == {P0: Bounds(0, 0), P1: Bounds(0, 0)}
    assert log.group("board").committed() == {}
    settle(writer.transact({P0: out("a")}, commit))
    assert values(log, P0) == [b"a"]


def test_transaction_may_commit_offsets_alone(log: Log) -> None:
    writer = log.writer("board-0", group="board", owner="a")
    assert writer.transact({}, GroupCommit("board", {P0: Committed(2, "m")})) == {}
    assert log.group("board").committed([P0, P1]) == {P0: Committed(2, "m")}


def test_writer_if_free_is_held_while_the_owner_lives(log: Log, pass_time_ms: Callable[[int], None]) -> None:
    group = log.group("board")
    group.join("a", lease_ms=LEASE_MS)
    first = log.writer("board-0", group="board", owner="a")
    pass_time_ms(1_000)
    with pytest.raises(Held, match=r"'a'.* 2\.0 s"):
        log.writer("board-0", group="board", owner="b", if_free=True)
    first.append({P0: out("still mine")})
    again = log.writer("board-0", group="board", owner="a", if_free=True)
    pass_time_ms(2_000)
    taken = log.writer("board-0", group="board", owner="b", if_free=True)
    assert first.epoch < again.epoch < taken.epoch
    with pytest.raises(Fenced):
        again.append({P0: out("lost")})


def test_writer_is_free_when_nobody_or_a_stranger_owns_it(log: Log) -> None:
    log.group("board").join("b", lease_ms=LEASE_MS)
    assert log.writer("board-0", group="board", owner="b", if_free=True).epoch > 0
    log.group("board").leave("b")
    log.writer("board-0", group="board", owner="c", if_free=True)
    log.writer("board-0", group="board", owner="d", if_free=True)  # c owns it, but is no member
    assert log.group("board").owners() == {"board-0": "d"}


def test_owners_are_those_of_the_group(log: Log) -> None:
    log.writer("board-0", group="board", owner="a")
    log.writer("board-1", group="board", owner="a")
    log.writer("board-1", group="board", owner="b")
    log.writer("other-0", group="other", owner="c")
    assert log.group("board").owners() == {"board-0": "a", "board-1": "b"}
    assert log.group("nobody").owners() == {}


# -- groups -----------------------------------------------------------------------------------------------------------


def test_committed_offsets_are_kept_with_their_metadata(log: Log, reopen: Callable[[], Log]) -> None:
    group = log.group("board")
    assert group.committed() == {}
    group.commit({P0: Committed(3, "größe " + "x" * 4_000), P1: Committed(0)})
    group.commit({P0: Committed(5, "later")})
    again = reopen().group("board")
    assert again.committed() == {P0: Committed(5, "later"), P1: Committed(0, "")}
    assert again.committed([P0, P2]) == {P0: Committed(5, "later")}
    assert log.group("other").committed() == {}


def test_offsets_alone_of_a_writer_that_was_replaced_are_refused_and_change_nothing(log: Log) -> None:
    group = log.group("board")
    writer = log.writer("board-0", group="board", owner="a")
    group.commit({P0: Committed(3, "cut")}, None, writer.claim)
    newer = log.writer("board-0", group="board", owner="b")
    with pytest.raises(Fenced, match="'board-0'"):
        group.commit({P0: Committed(4, "late"), P1: Committed(1)}, None, writer.claim)
    assert group.committed() == {P0: Committed(3, "cut")}
    group.commit({P0: Committed(5)}, None, newer.claim)
    assert group.committed() == {P0: Committed(5)}
    assert log.producer().claim is None


def test_offsets_of_a_topic_outside_of_this_log_can_be_committed_or_are_refused_whole(
    log: Log, takes_any_offsets: bool
) -> None:
    elsewhere = TopicPartition("of-another-log", 7)
    group = log.group("board")
    commit = GroupCommit("board", {elsewhere: Committed(4, "cut"), P1: Committed(1)})
    if takes_any_offsets:
        group.commit({elsewhere: Committed(3)})
        log.producer().transact({P0: out("a")}, commit)
        assert group.committed() == commit.offsets
        return
    for call in (lambda: group.commit(commit.offsets), lambda: log.producer().transact({P0: out("a")}, commit)):
        with pytest.raises(UnknownStore, match="of-another-log"):
            call()
    assert group.committed() == {}
    assert log.reader().bounds([P0]) == {P0: Bounds(0, 0)}


@pytest.mark.parametrize("bad", [Committed(-1), Committed(1, "x" * 4_097), Committed(1, "ü" * 2_049)])
def test_bad_commit_is_refused_and_changes_nothing(log: Log, bad: Committed) -> None:
    group = log.group("board")
    with pytest.raises(InvalidRequest, match="flights-1"):
        group.commit({P0: Committed(1), P1: bad})
    assert group.committed() == {}


def test_members_are_listed_by_id_and_the_first_leads(log: Log, reopen: Callable[[], Log]) -> None:
    group, other = log.group("board"), reopen().group("board")
    assert group.view() == GroupView(0, None, ())
    group.join("b", "warm=1", lease_ms=LEASE_MS)
    view = other.join("a", "warm=2", lease_ms=LEASE_MS)
    assert view.leader == "a"
    assert view.members == (Member("a", "warm=2"), Member("b", "warm=1"))
    assert group.view() == view
    assert log.group("other").view().members == ()


def test_generation_grows_with_every_change_of_the_live_members(log: Log) -> None:
    group = log.group("board")
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


def test_member_leaves_for_a_process_only_while_its_metadata_are_of_that_process(log: Log) -> None:
    group = log.group("board")
    group.join("a", "of one process", lease_ms=LEASE_MS)
    other = log.group("board")  # as of another process, which renews and has not joined
    before = other.heartbeat("a", lease_ms=LEASE_MS)
    other.leave("a", only=lambda text: text == "of another process")
    assert group.view() == before
    group.join("a", "of the next process", lease_ms=LEASE_MS)
    other.leave("a", only=lambda text: text == "of one process")
    assert [member.metadata for member in group.view().members] == ["of the next process"]
    other.leave("a", only=lambda text: text == "of the next process")
    other.leave("a", only=lambda text: text == "of the next process")
    assert group.view().members == ()
    assert group.view().generation == before.generation + 1
    assert group.view().ended == {"a"}, "most of its lease was left"
    group.join("a", lease_ms=LEASE_MS)
    assert group.view().ended == frozenset()


def test_member_whose_lease_ran_out_is_gone(log: Log, pass_time_ms: Callable[[int], None]) -> None:
    group = log.group("board")
    group.join("a", lease_ms=LEASE_MS)
    before = group.join("b", lease_ms=LEASE_MS)
    pass_time_ms(LEASE_MS - 1)
    assert group.heartbeat("b") == before
    pass_time_ms(1)
    seen = group.view()
    assert seen.members == (Member("b", ""),)
    assert seen.leader == "b"
    assert seen.generation > before.generation
    with pytest.raises(Fenced, match="'a'"):
        group.heartbeat("a")
    assert group.view() == seen == group.heartbeat("b")
    assert group.join("a", lease_ms=LEASE_MS).generation > seen.generation


def test_heartbeat_may_change_the_length_of_a_lease_and_joining_again_never_shortens_it(
    log: Log, pass_time_ms: Callable[[int], None]
) -> None:
    group = log.group("board")
    group.join("a", lease_ms=LEASE_MS)
    group.heartbeat("a", lease_ms=3 * LEASE_MS)
    group.join("a", "other metadata", lease_ms=LEASE_MS)
    pass_time_ms(3 * LEASE_MS - 1)
    assert group.view().members == (Member("a", "other metadata"),)
    group.heartbeat("a")
    pass_time_ms(3 * LEASE_MS - 1)
    assert len(group.view().members) == 1
    group.heartbeat("a", lease_ms=LEASE_MS)
    pass_time_ms(LEASE_MS)
    assert group.view().members == ()
    with pytest.raises(Fenced, match="'a'"):
        group.heartbeat("a", lease_ms=LEASE_MS)
    group.join("a", lease_ms=LEASE_MS)
    pass_time_ms(LEASE_MS)
    assert group.view().members == ()


def test_renewal_says_how_busy_a_member_is_until_the_next_one(
    log: Log, reopen: Callable[[], Log], pass_time_ms: Callable[[int], None]
) -> None:
    group, other = log.group("board"), reopen().group("board")
    before = group.join("a", "the metadata", lease_ms=LEASE_MS)
    assert before.busy == {}
    group.join("b", lease_ms=LEASE_MS)
    busy = Busy(2_900, (0, 3_100))
    assert group.heartbeat("a", busy=busy).busy == {"a": busy}
    until(lambda: other.view().busy == {"a": busy}, "another process sees it", 10)
    assert other.view().members == (Member("a", "the metadata"), Member("b", ""))
    assert group.heartbeat("b", busy=Busy(7)).busy == {"a": busy, "b": Busy(7)}
    assert group.heartbeat("a").busy == {"b": Busy(7)}
    pass_time_ms(LEASE_MS - 1)
    group.heartbeat("a")
    pass_time_ms(1)
    assert group.heartbeat("a").busy == {}, "the other one is no member any more"
    assert group.join("b", lease_ms=LEASE_MS).busy == {}
    group.heartbeat("b", busy=busy)
    group.leave("b")
    assert group.join("b", lease_ms=LEASE_MS).busy == {}


def test_heartbeat_of_one_who_never_joined_is_fenced(log: Log) -> None:
    with pytest.raises(Fenced, match="'ghost'"):
        log.group("board").heartbeat("ghost")


def test_heartbeat_keeps_a_member_alive(log: Log, pass_time_ms: Callable[[int], None]) -> None:
    group = log.group("board")
    group.join("a", lease_ms=LEASE_MS)
    for _ in range(5):
        pass_time_ms(LEASE_MS - 1)
        assert group.heartbeat("a").leader == "a"


# -- notes ------------------------------------------------------------------------------------------------------------


def test_a_note_is_read_by_every_log_until_it_is_removed(log: Log, reopen: Callable[[], Log]) -> None:
    group, other = log.group("board"), reopen()
    assert group.notes() == {}
    group.note({("claim", "t"): "one", ("deaths", "0_0"): "two"})
    group.note({("claim", "t"): "three"})
    for notes in (group.notes(), other.group("board").notes(), other.notes_of(["board"])["board"]):
        assert notes is not None
        assert {key: note.text for key, note in notes.items()} == {("claim", "t"): "three", ("deaths", "0_0"): "two"}
    group.note({("claim", "t"): None, ("claim", "never"): None})
    assert {key: note.text for key, note in (other.notes_of(["board"])["board"] or {}).items()} == {
        ("deaths", "0_0"): "two"
    }


def test_notes_change_neither_members_nor_owners_and_outlive_them(log: Log, reopen: Callable[[], Log]) -> None:
    group = log.group("board")
    generation = group.join("a", lease_ms=LEASE_MS).generation
    log.writer("board-0", group="board", owner="a").close()
    group.note({("claim", "t"): "text"})
    assert group.heartbeat("a") == GroupView(generation, "a", (Member("a", ""),))
    group.leave("a")
    again = reopen().group("board")
    assert (again.owners(), again.view().members) == ({"board-0": "a"}, ())
    assert again.notes()["claim", "t"].text == "text"


def test_the_notes_of_groups_that_are_absent_are_empty_and_make_no_group(log: Log) -> None:
    before = log.admin.groups()
    assert log.notes_of(["none", "not-there", "."]) == {"none": {}, "not-there": {}, ".": {}}
    log.group("none").note({})
    assert log.admin.groups() == before


def test_a_later_note_has_a_later_time(log: Log, pass_time_ms: Callable[[int], None]) -> None:
    group = log.group("board")
    group.note({("ask", "t"): "1"})
    first = group.notes()["ask", "t"].at_ms
    pass_time_ms(5)
    group.note({("ask", "t"): "1"})
    assert group.notes()["ask", "t"].at_ms >= first
