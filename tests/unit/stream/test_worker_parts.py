"""Parts of coordinated checkpoints in worker processes: one report of all, and the loss of them with a worker."""

from __future__ import annotations

import pytest

from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.placement.checkpoint import Order, OrderState, PartReport
from standfast.stream.snapshot_counts import SnapshotCounts
from standfast.stream.workers.parts import PoolParts, merged
from standfast.stream.workers.protocol import (
    Counted,
    FollowCheckpoint,
    StateReport,
    checkpoint,
    checkpoint_of,
    command_line,
    counted,
    counts_of,
    parse_command,
    parse_report,
    report_line,
    state,
)

A, B, C = TaskId(0, 0), TaskId(0, 1), TaskId(1, 0)
WHY = "worker 1, which ran it, ended in the middle of the checkpoint"


def tasks(*found: TaskId) -> frozenset[TaskId]:
    return frozenset(found)


class Sent(list[Order]):
    """Orders that went to the workers."""


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def parts(sent: Sent) -> PoolParts:
    return PoolParts(sent.append)


def test_instance_without_parts_reports_none(parts: PoolParts) -> None:
    parts.reported(0, None)
    assert parts.report() is None


def test_report_of_an_instance_has_the_parts_of_all_its_workers() -> None:
    one = PartReport(3, 2, tasks(A), tasks(A), tasks(A))
    two = PartReport(3, 2, tasks(B, C), tasks(B), failed={C: "disk full"})
    assert merged([one, two]) == PartReport(3, 2, tasks(A, B, C), tasks(A, B), tasks(A), {C: "disk full"})


def test_worker_that_has_not_seen_the_newest_step_keeps_its_parts_and_has_applied_nothing() -> None:
    """Else writers would go on while a reader does not keep to their ends yet."""
    behind, ahead = PartReport(3, 1, tasks(A), tasks(A)), PartReport(3, 2, tasks(B))
    assert merged([behind, ahead]) == PartReport(3, 2, tasks(B), tasks(A))


def test_parts_of_an_older_checkpoint_are_no_parts_of_the_newest_one() -> None:
    old, new = PartReport(3, 4, tasks(A), tasks(A), tasks(A), {A: "old"}), PartReport(4, 1, tasks(B))
    assert merged([old, new]) == new


def test_workers_get_each_order_once_and_the_one_that_frees_them_too(parts: PoolParts, sent: Sent) -> None:
    order = Order(1, 1, stop=frozenset({0}))
    for one in (None, order, Order(1, 1, stop=frozenset({0}))):
        parts.follow(one)
    assert parts.under_way
    over = Order(1, 2, OrderState.ABANDONED, why="a task moved")
    parts.follow(over)
    assert sent == [order, over]
    assert not parts.under_way


@pytest.mark.parametrize(
    "had",
    [
        PartReport(5, 1, tasks(A)),
        PartReport(5, 1, tasks(A), tasks(A)),
        PartReport(5, 1, frozenset(), tasks(A), tasks(A)),
    ],
)
def test_tasks_of_a_worker_that_ends_in_a_checkpoint_fail_however_far_they_were(
    parts: PoolParts, had: PartReport
) -> None:
    parts.follow(Order(5, 1, stop=frozenset({0})))
    parts.reported(0, had)
    parts.reported(1, PartReport(5, 1, tasks(B), tasks(B)))
    parts.ended(0, ())
    assert parts.report() == PartReport(5, 1, tasks(B), tasks(B), failed={A: WHY})
    # Its replacement makes no part good again that was lost.
    parts.reported(0, PartReport(5, 1, tasks(A), tasks(A), tasks(A)))
    found = parts.report()
    assert found is not None
    assert found.failed == {A: WHY}


def test_the_ends_of_two_workers_in_one_checkpoint_fail_the_tasks_of_both(parts: PoolParts) -> None:
    parts.follow(Order(5, 1, stop=frozenset({0})))
    for number, task in enumerate((A, B)):
        parts.reported(number, PartReport(5, 1, tasks(task)))
        parts.ended(number, tasks(task))
    found = parts.report()
    assert found is not None
    assert set(found.failed) == {A, B}


def test_worker_that_ends_outside_a_checkpoint_fails_nothing(parts: PoolParts) -> None:
    parts.follow(Order(5, 1, stop=frozenset({0})))
    parts.reported(0, PartReport(5, 1, tasks(A), tasks(A), tasks(A)))
    parts.follow(Order(5, 2, OrderState.COMPLETE))
    parts.ended(0, tasks(A))
    assert parts.report() is None


def test_an_end_in_one_checkpoint_is_no_failure_of_the_next_one(parts: PoolParts) -> None:
    parts.follow(Order(5, 1, stop=frozenset({0})))
    parts.reported(0, PartReport(5, 1, tasks(A)))
    parts.ended(0, tasks(A))
    parts.follow(Order(6, 1, stop=frozenset({0})))
    parts.reported(0, PartReport(6, 1, tasks(A)))
    assert parts.report() == PartReport(6, 1, tasks(A))


def test_tasks_fail_also_if_their_worker_ends_before_it_has_the_order(parts: PoolParts) -> None:
    """The tasks of other workers would stand still until its replacement runs."""
    parts.follow(Order(6, 1, stop=frozenset({0})))
    parts.reported(0, PartReport(5, 1, tasks(C)))
    parts.ended(0, tasks(A))
    assert parts.report() == PartReport(6, 0, failed={A: WHY})


def test_end_of_a_worker_without_tasks_fails_nothing(parts: PoolParts) -> None:
    parts.follow(Order(6, 1, stop=frozenset({0})))
    parts.ended(0, ())
    assert parts.report() is None


def test_order_and_parts_come_through_the_pipe_as_they_are() -> None:
    order = Order(
        7, 3, stop=frozenset({1}), done=frozenset({0}), limits={TopicPartition("a-b", 2): 41}, stopped_at=(3, 9)
    )
    command = parse_command(command_line(checkpoint(order)))
    assert isinstance(command, FollowCheckpoint)
    assert checkpoint_of(command) == order
    parts = PartReport(7, 3, tasks(A), tasks(B), tasks(C), {A: "why"})
    report = parse_report(report_line(state(1, {}, parts=parts)))
    assert isinstance(report, StateReport)
    assert report == state(1, {}, parts=parts)
    assert report != state(1, {})


def test_counts_of_snapshots_come_through_the_pipe_as_they_are() -> None:
    counts = SnapshotCounts(uploaded_bytes=7, downloaded_bytes=8, at_ms={"0_1": 5}, errors={"0_1": ("away", 6)})
    counts.made.update({"made": 2, "failed": 1})
    counts.restores["restored"] = 3
    counts.paused(30)
    report = parse_report(report_line(counted(counts)))
    assert isinstance(report, Counted)
    found = counts_of(report)
    assert (found.pauses.counts, found.pauses.total) == (counts.pauses.counts, counts.pauses.total)
    found.pauses = counts.pauses  # a histogram has no equality
    assert found == counts
    with pytest.raises(ValueError, match="1 counts of pauses"):
        counts_of(Counted({}, {}, 0, 0, {}, (1,), 0.0, (), {}))
