"""The placement document: views and assignments as versioned JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from unit.replication.test_placement import views

from standfast.replication.offsets import TaskId
from standfast.replication.placement.document import read_view, write_view
from standfast.replication.placement.model import Assignment, Away, CopyState, Settings, View
from standfast.replication.placement.place import place
from standfast.store.errors import InvalidRequest

SMALL: dict[str, Any] = {
    "standfast_placement": 1,
    "groups": [{"group": 0, "partitions": 2}],
    "instances": [{"id": "a", "tasks": {"0_0": {"state": "running"}, "0_1": {"state": "standby", "lag": 12}}}],
    "away": {"b": {"for_ms": 1200, "stopped": True}},
    "previous": {"generation": 7, "active": {"0_0": "a", "0_1": "b"}, "standbys": {"0_1": ["a"]}},
}


def test_document_becomes_a_view() -> None:
    view = read_view(json.dumps(SMALL))
    assert view.tasks == (TaskId(0, 0), TaskId(0, 1))
    assert view.settings == Settings()
    assert view.members[0].copies[TaskId(0, 1)].state is CopyState.STANDBY
    assert view.members[0].copies[TaskId(0, 1)].lag == 12
    assert view.away == {"b": Away(1200, stopped=True)}
    assert view.previous == Assignment(7, {TaskId(0, 0): "a", TaskId(0, 1): "b"}, {TaskId(0, 1): ("a",)})


@settings(max_examples=30)
@given(views())
def test_view_and_assignment_survive_the_document(view: View) -> None:
    groups = {group: sum(task.group == group for task in view.tasks) for group in {task.group for task in view.tasks}}
    if any(task.partition >= groups[task.group] for task in view.tasks):
        return
    read = read_view(write_view(view))
    assert write_view(read) == write_view(view)
    assert place(read) == place(view)
    assignment = place(view).assignment
    assert read_view(write_view(replace(view, previous=assignment))).previous == assignment


def test_fields_of_a_later_version_are_passed_over() -> None:
    later = {**SMALL, "colour": 1, "instances": [{**SMALL["instances"][0], "memory": 3}]}
    assert read_view(json.dumps(later)) == read_view(json.dumps(SMALL))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"standfast_placement": 2}, "format 2, and this version reads up to 1"),
        ({"standfast_placement": 0}, "not a placement document"),
        ({"instances": [{"id": "a"}, {"id": "a"}]}, "instance id 'a' is used twice"),
        ({"instances": [{"id": "a", "slots": 0}]}, "instance 'a' has 0 slots"),
        ({"instances": [{"id": ""}]}, "an instance has an empty id"),
        ({"instances": [{"id": "a", "tasks": {"0_7": {"state": "running"}}}]}, "there is no task 0_7"),
        ({"instances": [{"id": "a", "tasks": {"x": {"state": "running"}}}]}, "'x' is not a task"),
        ({"instances": [{"id": "a", "tasks": {"0_0": {"state": "runing"}}}]}, "there are restoring, running"),
        ({"instances": [{"id": "a", "tasks": {"0_0": {"state": "standby", "lag": -1}}}]}, ">= 0"),
        ({"groups": [{"group": 0, "partitions": 2}, {"group": 0, "partitions": 1}]}, "group 0 stands in groups twice"),
        ({"away": {"a": {"for_ms": 1}}}, "instance 'a' is away and a member"),
        ({"previous": {"active": {"0_0": "a"}, "standbys": {"0_0": ["a"]}}}, "are not different"),
        ({"previous": {"active": {"0_0": "a"}, "warmups": {"0_0": "a"}}}, "beside another copy"),
        ({"previous": {"active": {"0_9": "a"}}}, "previous active: there is no task 0_9"),
        ({"settings": {"warmups_max": 0}}, "warmups_max is 0: give 1 or more"),
    ],
)
def test_wrong_document_is_refused_with_the_place(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words.replace("(", r"\(")):
        read_view(json.dumps({**SMALL, **change}))


def test_all_problems_are_named_at_once() -> None:
    wrong = {**SMALL, "instances": [{"id": "a", "slots": 0}, {"id": "a"}]}
    with pytest.raises(InvalidRequest, match=r"0 slots.*; .*used twice"):
        read_view(json.dumps(wrong))


@pytest.mark.parametrize("text", ["", "[]", "{", "{}", '{"standfast_placement": 1}'])
def test_text_that_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        read_view(text)


def test_view_with_a_gap_in_its_partitions_has_no_document() -> None:
    with pytest.raises(InvalidRequest, match="without a gap"):
        write_view(View((), (TaskId(0, 1),)))
