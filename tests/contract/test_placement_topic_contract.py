"""The contract of every log for an application's placement topic: claims, generations and reports.

Rules of this file: several instances are several logs of one bench; leases run by the test's clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from standfast.replication.log import Log, Outgoing
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.placement.explained import MOVES_SLOTS, read_moves, read_reasons
from standfast.replication.placement.model import Assignment, Move, MoveKind, Reason, Round
from standfast.replication.placement.records import (
    Generation,
    Report,
    assignment_records,
    report_record,
)
from standfast.replication.placement.topic import PlacementTopic
from standfast.store.clock import ManualClock
from standfast.store.errors import CommitUnknown, Corruption, Fenced, InvalidRequest
from support.serve import wait_for
from support.waits import until

LEASE_MS = 3_000
SOURCE = TopicPartition("board-standfast-placement", 0)
T0, T1, T2, T3 = (TaskId(0, number) for number in range(4))
NOW_MS = 1_356_998_400_000


def of(**active: tuple[TaskId, ...]) -> Assignment:
    """An assignment of active tasks by instance."""
    return Assignment(active={task: name for name, tasks in active.items() for task in tasks})


class Instances:
    """Members of group `board`, each with a log of its own."""

    def __init__(self, reopen: Callable[[], Log]) -> None:
        self.clock = ManualClock(NOW_MS)
        self._reopen = reopen
        self._topics: list[PlacementTopic] = []
        self._logs: dict[str, Log] = {}

    def join(self, name: str) -> PlacementTopic:
        log = self._logs[name] = self._reopen()
        log.group("board").join(name, lease_ms=LEASE_MS)
        self._topics.append(PlacementTopic(log, "board", name, self.clock, acceptable_lag=1_000))
        return self._topics[-1]

    def leave(self, name: str) -> None:
        self._logs[name].group("board").leave(name)

    def write(self, *records: Outgoing) -> None:
        """Write to the topic as no leader does."""
        self._reopen().producer().append({SOURCE: records})

    def close(self) -> None:
        for topic in self._topics:
            topic.close()


@pytest.fixture
def instances(reopen: Callable[[], Log]) -> Iterator[Instances]:
    found = Instances(reopen)
    yield found
    found.close()


def seen(topic: PlacementTopic, wanted: Generation | None) -> None:
    until(lambda: topic.look().valid == wanted, f"the valid generation is {wanted}", 10)


def test_first_claim_leads_until_its_member_has_left(instances: Instances) -> None:
    first, second = instances.join("a"), instances.join("b")
    assert first.claim()
    assert first.claim()
    assert not second.claim()
    assert (first.leads, second.leads) == (True, False)
    instances.leave("a")
    assert second.claim()


def test_smaller_id_that_joins_later_leaves_the_leader_alone(instances: Instances) -> None:
    leader = instances.join("b")
    assert leader.claim()
    assert not instances.join("a").claim()


def test_claim_passes_on_when_the_lease_has_run_out(instances: Instances, pass_time_ms: Callable[[int], None]) -> None:
    first, second = instances.join("a"), instances.join("b")
    assert first.claim()
    pass_time_ms(LEASE_MS + 1)
    assert second.claim()


def test_generation_of_the_leader_is_seen_by_all(instances: Instances) -> None:
    leader, other = instances.join("a"), instances.join("b")
    assert other.look().valid is None
    leader.claim()
    wanted = Assignment(
        active={T0: "a", T1: "b", T2: "a"},
        standbys={T1: ("a", "c"), T0: ("c", "b")},
        warmups={T2: "b"},
        after={T0: "c"},
        held={T3: "gone"},
        replacing={T1: ("c", "b")},
        homes={T1: "gone"},
    )
    published = leader.publish(wanted)
    assert published.assignment == replace(wanted, generation=1)
    for topic in (leader, other, instances.join("c")):
        seen(topic, published)


def test_instance_that_is_not_named_any_more_has_no_record(instances: Instances) -> None:
    leader, other = instances.join("a"), instances.join("b")
    leader.claim()
    leader.publish(of(a=(T0,), b=(T1,)))
    last = leader.publish(of(a=(T0, T1)))
    seen(other, last)
    assert other.state.written == {"a"}


def test_replaced_leader_is_fenced_and_publishes_nothing(instances: Instances) -> None:
    old, new = instances.join("a"), instances.join("b")
    old.claim()
    old.publish(of(a=(T0,)))
    instances.leave("a")  # as if its lease had run out: it is alive and does not know
    assert new.claim()
    kept = new.publish(of(b=(T0,)))
    with pytest.raises(Fenced, match="board-leader"):
        old.publish(of(a=(T0, T1)))
    assert not old.leads
    for topic in (old, new):
        seen(topic, kept)
    with pytest.raises(InvalidRequest, match="claim first"):
        old.publish(of(a=(T0,)))


def test_live_leader_whose_lead_is_claimed_is_fenced_with_the_generation_that_it_had_decided(
    instances: Instances,
) -> None:
    old, new = instances.join("a"), instances.join("b")
    old.claim()
    first = old.publish(of(a=(T0,)))
    assert not new.claim(), "a live leader has it"
    assert new.claim(if_free=False)
    assert new.state.valid == first, "it goes on from the last generation of the former leader"
    with pytest.raises(Fenced, match="board-leader"):  # before the new leader has published anything
        old.publish(of(a=(T0, T1)))
    kept = new.publish(of(b=(T0, T1)))
    assert not old.leads
    for topic in (old, new):
        seen(topic, kept)


def test_new_leader_goes_on_from_the_last_generation(instances: Instances) -> None:
    old, new = instances.join("a"), instances.join("b")
    old.claim()
    old.publish(of(b=(T0,)))
    last = old.publish(of(a=(T0,), b=(T1,)))
    instances.leave("a")
    assert new.claim()
    assert new.state.valid == last  # read whole by the claim, without another look
    after = new.publish(of(b=(T0, T1)))
    assert after.assignment.generation == last.assignment.generation + 1
    assert after.epoch > last.epoch


def test_generation_after_one_whose_answer_was_lost_has_a_number_of_its_own_and_is_seen_by_all(
    instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, other = instances.join("a"), instances.join("b")
    leader.claim()
    writer = leader._leader
    assert writer is not None
    transact = writer.transact

    def unanswered(*given: Any) -> None:
        transact(*given)
        raise CommitUnknown("the log did not answer, so it may or may not be written")

    with monkeypatch.context() as broken, pytest.raises(CommitUnknown):
        broken.setattr(writer, "transact", unanswered)
        leader.publish(of(a=(T0,), b=(T1,)))
    wait_for(lambda: other.look().valid is not None, 10)  # it was written
    last = leader.publish(of(a=(T0, T1)))
    assert last.assignment.generation == 2
    for topic in (leader, other):
        seen(topic, last)
    assert other.state.written == {"a"}


def test_half_a_generation_and_an_older_epoch_change_nothing(instances: Instances) -> None:
    leader, other = instances.join("a"), instances.join("b")
    leader.claim()
    valid = leader.publish(of(a=(T0,), b=(T1,)))
    half = Generation(valid.epoch, replace(of(a=(T1,), b=(T0,)), generation=2))
    old = Generation(valid.epoch - 1, replace(of(a=(T2,)), generation=9))
    first, *_, last = assignment_records(half, (), NOW_MS)
    instances.write(first, last)  # without the record of "b"
    instances.write(*assignment_records(old, (), NOW_MS))
    seen(other, valid)
    until(lambda: other.look().unfinished == 1, "the unfinished generation was read", 10)
    assert other.state.valid == valid
    seen(leader, valid)
    following = leader.publish(of(b=(T0, T1)))
    seen(other, following)


def test_tasks_that_fit_into_no_record_are_refused_and_nothing_is_published(instances: Instances) -> None:
    leader = instances.join("a")
    leader.claim()
    valid = leader.publish(of(a=(T0,)))
    scattered = tuple(TaskId(0, number) for number in range(0, 200_000, 2))
    with pytest.raises(InvalidRequest, match=r"instance 'a' take \d+ bytes of a record, the limit is 500000"):
        leader.publish(of(a=scattered))
    assert leader.look().valid == valid
    assert leader.publish(of(a=(T1,))).assignment.generation == valid.assignment.generation + 1


def test_report_is_written_for_new_tasks_at_once_and_for_new_lags_once_a_second(instances: Instances) -> None:
    one, leader = instances.join("a"), instances.join("b")
    first = Report(frozenset({T0}), frozenset({T1}), {T3: 7}, {T2: 40_000}, 3)
    assert one.report(first)
    assert not one.report(first)
    assert not one.report(replace(first, lags={T2: 10_000}))
    assert one.report(replace(first, restoring=frozenset(), lags={T2: 10_000}))
    instances.clock.advance(1_000)
    nearer = replace(first, restoring=frozenset(), lags={T2: 0})
    assert one.report(nearer)
    until(lambda: leader.look().report("a") == nearer, "the leader reads the last report", 10)
    instances.clock.advance(1_000)
    assert not one.report(replace(nearer, lags={T2: 7}))  # it follows closely, as before
    assert one.report(replace(nearer, lags={T2: 999}))  # people see how far behind it is
    instances.clock.advance(1_000)
    assert one.report(replace(nearer, lags={T2: 1}))
    instances.clock.advance(1_000)
    assert one.report(nearer)  # a copy that has reached its end says so, however near it was
    instances.clock.advance(1_000)
    assert one.report(replace(nearer, stored={T3: 7, T0: 9}))
    assert not one.report(replace(nearer, stored={}))  # rows on disk wait for the interval, as lags do


def test_instance_that_closes_reports_it_until_a_generation_forgets_it(instances: Instances) -> None:
    one, leader = instances.join("a"), instances.join("b")
    one.report(Report(frozenset({T0})))
    until(lambda: list(leader.look().reporters()) == ["a"], "the leader reads the report", 10)
    one.close()
    stopped = Report(stopped=True)
    until(lambda: leader.look().report("a") == stopped, "the leader reads that it stopped", 10)
    leader.claim()
    leader.publish(of(a=(T0,)), {"b"})
    leader.publish(of(b=(T0,)), {"a", "b"})
    assert leader.look().report("a") == stopped
    leader.publish(of(b=(T0, T1)), {"b"})
    until(lambda: leader.look().report("a") is None, "the report is deleted", 10)


def test_deleted_topic_begins_again(instances: Instances, reopen: Callable[[], Log]) -> None:
    leader, other = instances.join("a"), instances.join("b")
    leader.claim()
    seen(other, leader.publish(of(a=(T0,))))
    reopen().admin.delete_topic(SOURCE.topic)
    seen(other, None)


def test_record_that_no_instance_writes_is_corruption_with_its_offset(instances: Instances) -> None:
    topic = instances.join("a")
    topic.report(Report(frozenset({T0})))
    instances.write(Outgoing(b"hello", b"world", NOW_MS))
    with pytest.raises(Corruption, match=r"board-standfast-placement-0 at offset \d+: no record of a placement"):
        until(lambda: topic.look() is None, "the record is read", 10)


def test_record_of_a_newer_format_names_both_formats(instances: Instances) -> None:
    topic = instances.join("a")
    topic.report(Report(frozenset({T0})))
    (_, last) = assignment_records(Generation(1, replace(of(a=(T0,)), generation=1)), (), NOW_MS)
    newer = (last.value or b"").replace(b'"standfast":1', b'"standfast":2')
    instances.write(Outgoing(last.key, newer, NOW_MS))
    with pytest.raises(Corruption, match="it has format 2, this version reads 1"):
        until(lambda: topic.look() is None, "the record is read", 10)


def test_report_with_what_a_later_version_adds_is_read(instances: Instances) -> None:
    topic = instances.join("a")
    topic.report(Report(frozenset({T0})))
    record = report_record("b", Report(frozenset({T1}), generation=4), NOW_MS)
    later = {**json.loads(record.value or b""), "rack": "x"}
    instances.write(Outgoing(record.key, json.dumps(later).encode(), NOW_MS))
    until(lambda: "b" in set(topic.look().reporters()), "the report is read", 10)
    assert topic.state.report("b") == Report(frozenset({T1}), generation=4)


def test_report_that_a_leader_deleted_before_it_saw_the_instance_is_written_again(instances: Instances) -> None:
    leader, late = instances.join("a"), instances.join("b")
    leader.claim()
    report = Report(frozenset({T1}))
    late.report(report)
    until(lambda: list(leader.look().reporters()) == ["b"], "the leader reads the report", 10)
    leader.publish(of(a=(T0,)), {"a"})
    until(lambda: late.look().report("b") is None, "the report is deleted", 10)
    instances.clock.advance(1_000)
    assert late.report(report)
    until(lambda: leader.look().report("b") == report, "the report is there again", 10)


def round_of(codes: dict[TaskId, str], *moves: Move) -> Round:
    """A round whose active tasks have these reasons."""
    why = {task: Reason(code, {"instance": "a", "load": 3}) for task, code in codes.items()}
    return Round(of(a=tuple(codes)), moves, why, {(T0, "b"): Reason("ADDED_ANYWHERE", {"instance": "b"})}, 2, 1, None)


def test_generation_carries_its_reasons_and_moves(instances: Instances) -> None:
    leader, other = instances.join("a"), instances.join("b")
    leader.claim()
    emptiest = Reason("EMPTIEST", {"instance": "a", "load": 3})
    start = Move(MoveKind.START, T0, None, "a", emptiest)
    why = round_of({T0: "EMPTIEST", T1: "RUNS"}, start, start._replace(task=T1))
    leader.publish(why.assignment, {"a", "b"}, why=why)
    until(lambda: other.look().valid is not None, "the generation is read", 10)
    raw, moves = other.state.reasons, list(other.state.moves.values())
    assert raw is not None
    found = read_reasons(raw)
    assert found.actives == {T0: emptiest}, "the usual reason is not written"
    assert found.copies == {(T0, "b"): Reason("ADDED_ANYWHERE", {"instance": "b"})}
    assert (found.slots_missing, found.standbys_missing) == (2, 1)
    (first, second), left_out = read_moves(moves[0])
    assert (first.task, second.task, first.target, first.reason, left_out) == (T0, T1, "a", emptiest, 0)
    assert (first.at_ms, first.generation, first.leader) == (NOW_MS, 1, "a")


def test_reasons_that_change_without_a_generation_are_published_once_a_second(instances: Instances) -> None:
    leader, other = instances.join("a"), instances.join("b")
    leader.claim()
    why = round_of({T0: "EMPTIEST"})
    leader.publish(why.assignment, why=why)
    assert not leader.explain(why)
    assert not leader.explain(round_of({T0: "EMPTIEST"})), "the same reasons in another round"
    assert leader.explain(round_of({T0: "OPENS"}))
    later = round_of({T0: "RUNS"})
    assert not leader.explain(later)
    instances.clock.advance(1_000)
    assert leader.explain(later)
    changes = leader.look().changes
    until(lambda: other.look().reasons is not None and not read_reasons(other.state.reasons or b"").actives, "read", 10)
    assert leader.look().changes == changes, "a leader's own explanation gives it nothing to decide"
    assert not other.explain(why), "only a leader explains"


def test_moves_of_the_last_generations_are_kept(instances: Instances) -> None:
    leader = instances.join("a")
    leader.claim()
    for number in range(MOVES_SLOTS + 3):
        move = Move(MoveKind.START, T0, None, f"i{number}", Reason("RUNS", {"instance": "a"}))
        why = round_of({T0: "RUNS"}, move)
        leader.publish(why.assignment, why=why)

    def kept() -> list[int]:
        return sorted(read_moves(raw)[0][0].generation for raw in leader.look().moves.values())

    until(lambda: kept() == list(range(4, MOVES_SLOTS + 4)), "the moves of the last generations are read", 10)


def test_leader_that_was_replaced_explains_nothing(instances: Instances, pass_time_ms: Callable[[int], None]) -> None:
    first, second = instances.join("a"), instances.join("b")
    first.claim()
    pass_time_ms(LEASE_MS + 1)
    assert second.claim()
    with pytest.raises(Fenced):
        first.explain(round_of({T0: "OPENS"}))
    assert not first.leads


def test_person_reads_the_topic_to_its_end_and_creates_none(instances: Instances) -> None:
    reader = instances.join("r")
    assert reader.look_whole() is None
    leader = instances.join("a")
    assert reader.look_whole() is None, "the first look created nothing"
    leader.claim()
    published = leader.publish(of(a=(T0,)))
    # A broker answers a commit before it has written the marker, up to which others read.
    wait_for(lambda: (state := reader.look_whole()) is not None and state.valid == published)
