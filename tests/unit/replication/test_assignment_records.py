"""Records of a placement topic: ranges of tasks, and the state of a reader after records in any order."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.replication.log import Outgoing, Record
from standfast.replication.offsets import TaskId
from standfast.replication.placement.model import Assignment
from standfast.replication.placement.records import (
    Generation,
    PlacementState,
    Report,
    assignment_records,
    instances_of,
    report_record,
)
from standfast.replication.placement.task_ranges import parse_ranges, task_ranges
from standfast.store.errors import Corruption

TASKS = st.frozensets(st.builds(TaskId, st.integers(0, 3), st.integers(0, 40)))


def as_read(records: list[Outgoing], first: int = 0) -> list[Record]:
    return [Record(first + at, 1, one.key, one.value) for at, one in enumerate(records)]


def compacted(records: list[Record]) -> list[Record]:
    """The last record of each key, as compaction keeps it."""
    return sorted({one.key: one for one in records}.values())


@given(TASKS)
def test_ranges_give_the_same_tasks_back(tasks: frozenset[TaskId]) -> None:
    assert parse_ranges(task_ranges(tasks)) == tasks


@pytest.mark.parametrize(
    ("tasks", "text"),
    [
        ([], ""),
        ([TaskId(0, 3)], "0_3"),
        ([TaskId(0, 1), TaskId(0, 0), TaskId(0, 2), TaskId(1, 3), TaskId(0, 8)], "0_0-2,0_8,1_3"),
    ],
)
def test_neighbours_are_written_as_one_range(tasks: list[TaskId], text: str) -> None:
    assert task_ranges(tasks) == text


@pytest.mark.parametrize("text", ["0", "0_", "a_1", "0_5-2", "0_0-999999999", "0_0-600000,1_0-600000", "0_0,", "0_-1"])
def test_other_text_is_refused_before_it_takes_memory(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid literal|no range of at most"):
        parse_ranges(text)


NAMES = st.sampled_from("abc")
TASK = st.builds(TaskId, st.integers(0, 1), st.integers(0, 6))
HOLDERS = st.dictionaries(TASK, NAMES, max_size=8)
PAIRS = st.permutations("abc").map(lambda names: (names[0], names[1]))
ASSIGNMENTS = st.builds(
    Assignment,
    st.just(0),
    HOLDERS,
    st.dictionaries(TASK, st.permutations("abc").flatmap(lambda names: st.integers(1, 3).map(lambda n: (*names[:n],)))),
    HOLDERS,
    st.just({}),
    HOLDERS,
    st.dictionaries(TASK, PAIRS),
    HOLDERS,
).map(lambda one: replace(one, after=dict.fromkeys(sorted(one.active)[::2], "z")))


@given(st.lists(ASSIGNMENTS, min_size=1, max_size=4), st.data())
def test_a_reader_has_the_last_whole_generation_wherever_the_records_end(
    assignments: list[Assignment], data: st.DataObject
) -> None:
    written: list[Record] = []
    ends: list[tuple[int, Generation]] = []
    before: set[str] = set()
    for number, one in enumerate(assignments, 1):
        generation = Generation(7, replace(one, generation=number))
        written += as_read(assignment_records(generation, before, 1), len(written))
        ends.append((len(written), generation))
        before |= instances_of(one)
    cut = data.draw(st.integers(0, len(written)))
    state = PlacementState("t")
    state.apply(written[:cut])
    assert state.valid == next((one for end, one in reversed(ends) if end <= cut), None)
    assert state.unfinished == 0
    fresh = PlacementState("t")  # of an instance that starts when the topic was compacted
    fresh.apply(compacted(written))
    assert fresh.valid == ends[-1][1]
    assert fresh.written == instances_of(assignments[-1])


@given(st.permutations([(3, 1), (3, 2), (4, 1), (2, 9)]))
def test_the_newest_epoch_wins_in_whatever_order_generations_come(stamps: list[tuple[int, int]]) -> None:
    state = PlacementState("t")
    offsets = itertools.count()
    for epoch, number in stamps:
        one = Generation(epoch, Assignment(number, active={TaskId(epoch, number): "a"}))
        state.apply([record._replace(offset=next(offsets)) for record in as_read(assignment_records(one, (), 1))])
    assert state.valid == Generation(4, Assignment(1, active={TaskId(4, 1): "a"}))


def reported(value: bytes) -> PlacementState:
    state = PlacementState("t")
    state.apply([Record(0, 1, b"report/a", value)])
    return state


def test_report_has_the_tasks_of_each_worker_process_by_its_number() -> None:
    one, two, standby = TaskId(0, 1), TaskId(0, 2), TaskId(1, 0)
    workers = (frozenset({one, standby}), frozenset({two}), frozenset[TaskId]())
    report = Report(frozenset({one, two}), lags={standby: 7}, generation=3, workers=workers)
    value = report_record("a", report, 5).value
    assert value is not None
    found = reported(value).report("a")
    assert found is not None and found == report
    assert [found.worker_of(task) for task in (one, two, standby, TaskId(0, 9))] == [1, 2, 1, None]


def test_report_of_a_version_without_workers_is_read_and_so_is_one_of_a_later_version() -> None:
    old = b'{"standfast":1,"running":"0_1","generation":3}'
    assert reported(old).report("a") == Report(frozenset({TaskId(0, 1)}), generation=3)
    later = b'{"standfast":1,"running":"0_1","generation":3,"workers":["0_1"],"colours":["red"]}'
    found = reported(later).report("a")
    assert found is not None and found.worker_of(TaskId(0, 1)) == 1


def test_workers_that_cannot_be_read_are_corrupt_with_topic_and_instance() -> None:
    for wrong in (b'"workers":["0_5-2"]', b'"workers":"0_1"'):
        with pytest.raises(Corruption, match="t-0: the report of instance 'a' cannot be read"):
            reported(b'{"standfast":1,%s}' % wrong).report("a")
