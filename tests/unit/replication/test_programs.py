"""The programs of one application: how two of them differ, in words, and the bound of their text in a generation."""

from __future__ import annotations

from typing import Any

import pytest

import standfast as sf
from standfast.replication.log import Record
from standfast.replication.placement.model import Assignment
from standfast.replication.placement.records import Generation, PlacementState, assignment_records
from standfast.replication.programs import SHAPES_BYTES_MAX, GroupShape, bounded, difference
from standfast.replication.shapes import dump, plain
from standfast.stream.task.groups import TaskGroup, program_of, shapes_of

TEXT, INT, JSON = sf.serde.string, sf.serde.int64, sf.serde.json
COUNT, OTHER = sf.KeyValueStore("count", TEXT, INT), sf.KeyValueStore("other", TEXT, INT)


def group(*stores: sf.KeyValueStore[str, int], topics: str = "in", partitions: int = 4, own: bool = False) -> TaskGroup:
    return TaskGroup(partitions, stores, frozenset(topics.split()), declared=own)


CASES = {
    "store": ({0: group(COUNT)}, {0: group(COUNT, OTHER)}, "store 'other' of group 0 is only in this program"),
    "store gone": (
        {0: group(COUNT, OTHER)},
        {0: group(COUNT)},
        "store 'other' of group 0 is only in the running program",
    ),
    "topic": ({0: group(topics="in")}, {0: group(topics="in b")}, "topic 'b' of group 0 is read by this program only"),
    "group": (
        {0: group(), 1: group(topics="b")},
        {0: group()},
        "group 1 (topics b) is only in the running program",
    ),
    "definition": (
        {0: group(COUNT)},
        {0: group(sf.KeyValueStore("count", TEXT, JSON))},
        "store 'count' of group 0 differs (running -> this: value: 'int64' -> 'json')",
    ),
    "declared partitions": (
        {0: group(own=True)},
        {0: group(own=True, partitions=8)},
        "partitions of group 0: 4 in the running program, 8 in this",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_difference_of_two_programs_is_named(case: str) -> None:
    running, mine, wanted = CASES[case]
    assert program_of(running) != program_of(mine)
    assert difference(shapes_of(running), shapes_of(mine)) == wanted


def test_partitions_of_a_topic_make_no_other_program() -> None:
    assert program_of({0: group(partitions=4)}) == program_of({0: group(partitions=8)})


def test_many_differences_are_counted() -> None:
    mine = {0: group(*(sf.KeyValueStore(f"s{number}", TEXT, INT) for number in range(9)))}
    found = difference(shapes_of({0: group()}), shapes_of(mine))
    assert found.count("is only in this program") == 4 and found.endswith("; and 5 more differences")


def test_program_without_shapes_differs_in_general_words() -> None:
    assert difference({}, shapes_of({0: group()})) == "other groups, source topics or stores"


def test_shapes_of_many_stores_keep_their_bound_and_still_name_a_changed_store() -> None:
    def shapes(kind: sf.serde.Serde[Any], count: int) -> dict[str, GroupShape]:
        specs = [sf.KeyValueStore(f"store-{number:05}", TEXT, INT) for number in range(count)]
        return shapes_of({0: TaskGroup(1, (*specs, sf.KeyValueStore("last", TEXT, kind)), frozenset({"in"}))})

    running, mine = bounded(shapes(INT, 2_000)), shapes(JSON, 2_000)
    assert len(dump({number: plain(one) for number, one in running.items()})) <= SHAPES_BYTES_MAX
    assert difference(running, mine) == "store 'last' of group 0 has another definition"
    assert bounded(shapes(INT, 20_000)) == {}


def test_generation_brings_the_shapes_of_its_program_back() -> None:
    shapes = shapes_of({0: group(COUNT), 1: TaskGroup(2, (), None)})
    wanted = Generation(3, Assignment(4), "p", shapes, "before", drains=True)
    state = PlacementState("t")
    records = assignment_records(wanted, (), 1)
    state.apply(Record(at, 1, one.key, one.value) for at, one in enumerate(records))
    assert state.valid == wanted
