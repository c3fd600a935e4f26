"""The contract of every log for an application's placement topic: claims, generations and reports.

Rules of this file: several instances are several logs of one bench; leases run by the test's clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from standfast.replication.log import Log, Outgoing
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.placement.model import Assignment
from standfast.replication.placement.records import (
    Generation,
    Report,
    assignment_records,
    report_record,
)
from standfast.replication.placement.topic import PlacementTopic
from standfast.store.clock import ManualClock
from standfast.store.errors import Corruption, Fenced, InvalidRequest
from support.lease import until

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
    first = Report(frozenset({T0}), frozenset({T1}), frozenset({T3}), {T2: 40_000}, 3)
    assert one.report(first)
    assert not one.report(first)
    assert not one.report(replace(first, lags={T2: 10_000}))
    assert one.report(replace(first, restoring=frozenset(), lags={T2: 10_000}))
    instances.clock.advance(1_000)
    nearer = replace(first, restoring=frozenset(), lags={T2: 0})
    assert one.report(nearer)
    until(lambda: leader.look().report("a") == nearer, "the leader reads the last report", 10)
    instances.clock.advance(1_000)
    assert not one.report(replace(nearer, lags={T2: 999}))  # it follows closely, as before


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
