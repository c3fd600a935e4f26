"""Pauses of tasks that move: the moments between which they count, and their way through reports."""

from __future__ import annotations

from standfast.replication.log import Record
from standfast.replication.offsets import TaskId
from standfast.replication.pauses import FAILOVER, KEPT_MAX, PLANNED, Left, Pause, PauseWatch, newest
from standfast.replication.placement.records import PlacementState, Report, report_record

TASK, OTHER = TaskId(0, 1), TaskId(0, 2)


def test_pause_on_one_machine_counts_from_the_last_commit_of_the_former_owner() -> None:
    watch = PauseWatch()
    watch.left(TASK, Left(1_000, 40), 1_090, same_clock=True, generation=7)
    assert watch.runs(TASK, 1_130) == Pause(130, PLANNED, 7)
    assert watch.runs(TASK, 1_200) is None, "a pause ends once"


def test_pause_over_two_machines_adds_both_sides_and_compares_no_clocks() -> None:
    watch = PauseWatch()
    watch.left(TASK, Left(9_000_000, 40), 1_090, same_clock=False, generation=7)
    assert watch.runs(TASK, 1_130) == Pause(80, PLANNED, 7)


def test_time_ahead_of_the_present_is_of_another_clock_whatever_the_boot_id_says() -> None:
    watch = PauseWatch()
    watch.left(TASK, Left(9_000_000, 40), 1_090, same_clock=True)
    assert watch.runs(TASK, 1_130) == Pause(80, PLANNED)


def test_failover_counts_from_the_first_look_at_the_free_task() -> None:
    watch = PauseWatch()
    watch.frees(TASK, FAILOVER, 500, generation=3)
    watch.frees(TASK, FAILOVER, 600, generation=4)
    assert TASK in watch
    assert watch.runs(TASK, 640) == Pause(140, FAILOVER, 3)


def test_task_that_does_not_come_any_more_has_no_pause() -> None:
    watch = PauseWatch()
    watch.frees(TASK, PLANNED, 500)
    watch.frees(OTHER, PLANNED, 500)
    watch.keep({OTHER})
    assert watch.runs(TASK, 640) is None
    assert watch.runs(OTHER, 640) == Pause(140, PLANNED)
    assert not watch


def test_report_carries_what_left_and_what_came() -> None:
    report = Report(boot="b1", left={TASK: Left(1_000, 40)}, pauses={OTHER: Pause(130, PLANNED, 7)})
    state = PlacementState("app-standfast-placement")
    written = report_record("a", report, 5)
    state.apply([Record(0, 5, written.key, written.value, ())])
    assert state.report("a") == report


def test_report_of_a_thousand_and_one_tasks_leaves_the_oldest_out() -> None:
    found = {TaskId(0, number): number for number in range(KEPT_MAX + 1)}
    assert newest(found) == {task: number for task, number in found.items() if number > 0}
    assert newest(found, [TASK]) == {TASK: 1}
